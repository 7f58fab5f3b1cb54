"""Home: the process that native objects belong to. Neither threads nor a GPU follow a fork."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from copyspec_edge.errors import SessionClosedError


class Home:
    """The process it was made in."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and not one that it has forked."""
        return os.getpid() == self._pid

    def require(self) -> None:
        """Raise SessionClosedError in a forked process."""
        if not self.is_here:
            raise SessionClosedError(
                "this model was loaded before the process forked, and llama.cpp does not work in "
                "the child: load it there, or start the process with multiprocessing's 'spawn'"
            )

    def free_with(
        self, owner: object, free: Callable[..., object], *arguments: object
    ) -> weakref.finalize[..., object]:
        """Call `free` with its owner's end or at exit, but never in a forked process."""
        return weakref.finalize(owner, self._free, free, *arguments)

    def _free(self, free: Callable[..., object], *arguments: object) -> None:
        if self.is_here:
            free(*arguments)
