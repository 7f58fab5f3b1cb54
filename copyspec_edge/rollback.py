"""Rollback: how rejected tokens are undone in the memory of a llama.cpp context.

It knows positions and states, neither tokens nor logits. An attention cache is cut. A recurrent
state is overwritten by every token: of some models llama.cpp keeps the states within the last
batch, of the others a copy is made before a draft and put back.
"""

from __future__ import annotations

from typing import Protocol

import llama_cpp

from copyspec_edge.batch import SEQUENCE
from copyspec_edge.recurrent_state import State, StateCopy


class Rollback(Protocol):
    """A way to undo tokens.

    Attributes:
        name: what it is called in the statistics.
        longest: most tokens of a draft that can be undone.
    """

    name: str
    longest: int

    def prepare(self, n_past: int, n_tokens: int, rows: int) -> bool:
        """Get the memory ready for a batch behind `n_past` tokens; False: it cannot be trusted."""
        ...

    def cut(self, length: int) -> int:
        """Forget what is behind `length` tokens, or more; returns how many are kept.

        The last batch may have failed half-way: of its tokens none can be kept then.
        """
        ...


def choose_rollback(context: object, *, n_swa: int, state: State | None, longest: int) -> Rollback:
    """The way for a context of a model with this state; None: it keeps attention alone."""
    if state is None:
        return AttentionRollback(context, n_swa, longest)
    snapshots = int(llama_cpp.llama_n_rs_seq(context))
    if snapshots or not state.can_restore:
        return SnapshotRollback(context, min(snapshots, longest))
    return CheckpointRollback(context, longest)


class AttentionRollback:
    """Keys and values of single tokens are removed."""

    name = "attention"

    def __init__(self, context: object, n_swa: int, longest: int) -> None:
        self.longest = longest
        self._memory = llama_cpp.llama_get_memory(context)
        self._n_swa = n_swa

    def prepare(self, n_past: int, n_tokens: int, rows: int) -> bool:
        """Nothing has to be kept."""
        return True

    def cut(self, length: int) -> int:
        """Everything is forgotten where the sliding window behind `length` has passed."""
        if length and llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, length, -1):
            # Of a sliding window the cells behind it may be gone, and nothing else would say so.
            oldest = llama_cpp.llama_memory_seq_pos_min(self._memory, SEQUENCE)
            if not self._n_swa or 0 <= oldest <= max(0, length - self._n_swa + 1):
                return length
        llama_cpp.llama_memory_clear(self._memory, False)
        return 0


class SnapshotRollback:
    """llama.cpp goes back within the last batch, once; without snapshots not at all.

    It goes back when the next batch comes, so that several cuts in a row are one. `seq_rm` would
    also go back further than the last batch, to states of an earlier one, and report success.
    """

    def __init__(self, context: object, n_snapshots: int) -> None:
        self.name = "native" if n_snapshots else "none"
        self.longest = n_snapshots
        self._memory = llama_cpp.llama_get_memory(context)
        self._end = 0
        self._start = 0

    def prepare(self, n_past: int, n_tokens: int, rows: int) -> bool:
        """Go back if a cut has been asked for."""
        if n_past < self._end and not llama_cpp.llama_memory_seq_rm(
            self._memory, SEQUENCE, n_past, -1
        ):
            self._forget()
            return False
        self._end = n_past + n_tokens
        self._start = self._end - min(self.longest, n_tokens - 1)
        return True

    def cut(self, length: int) -> int:
        """Everything is forgotten where `length` lies before the last batch."""
        return length if length >= self._start else self._forget()

    def _forget(self) -> int:
        llama_cpp.llama_memory_clear(self._memory, False)
        self._end = self._start = 0
        return 0


class CheckpointRollback:
    """A copy of the state is made before a draft; the tokens behind it are read again."""

    name = "checkpoint"

    def __init__(self, context: object, longest: int) -> None:
        self.longest = longest
        self._memory = llama_cpp.llama_get_memory(context)
        self._copy = StateCopy(context)
        self._saved: int | None = None
        self._end = 0

    def prepare(self, n_past: int, n_tokens: int, rows: int) -> bool:
        """Put the copy back if a cut has been asked for; make one before several rows."""
        sound = n_past >= self._end or self._restore(n_past)
        if sound and rows > 1 and self._saved != n_past:
            self._saved = n_past
            sound = n_past == 0 or self._copy.save()
        if not sound:
            self._forget()
            return False
        self._end = n_past + n_tokens
        return True

    def cut(self, length: int) -> int:
        """Where the last copy was made, or nothing if `length` lies before it."""
        if self._saved is not None and self._saved <= length:
            return self._saved
        return self._forget()

    def _restore(self, n_past: int) -> bool:
        if n_past == 0:
            llama_cpp.llama_memory_clear(self._memory, False)
            return True
        return self._copy.restore() and bool(
            llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, n_past, -1)
        )

    def _forget(self) -> int:
        llama_cpp.llama_memory_clear(self._memory, False)
        self._saved, self._end = None, 0
        return 0
