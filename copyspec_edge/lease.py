"""Lease: one user at a time. A stop reaches the one who has it, and never the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from copyspec_edge.errors import SessionBusyError


def _do_nothing() -> None:
    pass


class Lease:
    """Held by one thread at a time, which may let another give it back.

    Args:
        busy: what the others are told.
        stop: makes the holder give it back soon; called from any thread.
        unstop: takes that back; called before each new holder begins.
    """

    def __init__(
        self,
        busy: str,
        *,
        stop: Callable[[], None] = _do_nothing,
        unstop: Callable[[], None] = _do_nothing,
    ) -> None:
        self._busy = busy
        self._stop = stop
        self._unstop = unstop
        self._held = threading.Lock()
        # Reentrant: a signal handler or a finalizer may come in between.
        self._changing = threading.RLock()
        self._thread: int | None = None
        self._term = 0

    def take(self, *, waits: bool = False) -> int:
        """Become the holder, and get the number of this term.

        Args:
            waits: until it is given back, unless this thread itself has it.

        Raises:
            SessionBusyError: somebody has it.
        """
        thread = threading.get_ident()
        if not self._held.acquire(blocking=waits and thread != self._thread):
            raise SessionBusyError(self._busy)
        with self._changing:
            self._thread = thread
            self._term += 1
            self._unstop()
            return self._term

    def give_back(self) -> None:
        """End the term."""
        with self._changing:
            self._thread = None
            self._held.release()

    @contextmanager
    def held(self, *, waits: bool = False) -> Iterator[None]:
        """Hold it meanwhile. Raises as `take`."""
        self.take(waits=waits)
        try:
            yield
        finally:
            self.give_back()

    def stop(self, term: int | None = None) -> None:
        """Stop who has it now if it is that term or none is given, from any thread."""
        with self._changing:
            if self._held.locked() and term in (None, self._term):
                self._stop()
