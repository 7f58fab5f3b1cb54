"""Rollback: how rejected tokens are undone in the memory of a llama.cpp context.

It knows positions and states, neither tokens nor logits. An attention cache is cut. A recurrent
state is overwritten by every token: of some models llama.cpp keeps the states within the last
batch, of the others a copy is made before a draft and put back. Which way a model needs is found
out from llama.cpp by trying it, not from a list of architectures.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

import llama_cpp
import numpy as np

from copyspec_edge import machine
from copyspec_edge.batch import SEQUENCE, Batch

_PARTIAL_ONLY = 1  # llama_cpp has no name for it
# The states of one batch may take this share of free memory, and are worth having from this many.
_MEMORY_SHARE = 16
_LEAST_SNAPSHOTS = 4


@dataclass(frozen=True, slots=True)
class State:
    """The recurrent state of a model.

    Attributes:
        n_bytes: size of a copy.
        has_snapshots: whether llama.cpp can keep the states within a batch (`n_rs_seq`).
        can_restore: whether a copy put back gives the same logits again, bit for bit.
    """

    n_bytes: int
    has_snapshots: bool
    can_restore: bool

    def affordable_snapshots(self, longest: int, n_ubatch: int) -> int:
        """How many earlier states to have llama.cpp keep for drafts of `longest` tokens.

        Args:
            n_ubatch: most tokens llama.cpp computes at once.
        """
        memory = machine.available_memory()
        most = min(longest, n_ubatch - 2)  # llama.cpp aborts the process where they are more
        if not self.has_snapshots or memory is None or most < 1:
            return 0
        count = min(most, memory // _MEMORY_SHARE // max(1, self.n_bytes))
        return count if count >= min(most, _LEAST_SNAPSHOTS) or not self.can_restore else 0


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
        """Forget what is behind `length` tokens, or more; returns how many are kept."""
        ...

    def recover(self, n_past: int) -> int:
        """A batch behind `n_past` tokens failed half-way; returns how many tokens are kept."""
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

    def recover(self, n_past: int) -> int:
        """What a failed batch has left is removed."""
        return self.cut(n_past)


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
            self.recover(n_past)
            return False
        self._end = n_past + n_tokens
        self._start = self._end - min(self.longest, n_tokens - 1)
        return True

    def cut(self, length: int) -> int:
        """Everything is forgotten where `length` lies before the last batch."""
        return length if length >= self._start else self.recover(length)

    def recover(self, n_past: int) -> int:
        """A half-computed batch has overwritten the state."""
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

    def recover(self, n_past: int) -> int:
        """A half-computed batch has overwritten the state."""
        return self.cut(n_past)

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


class StateCopy:
    """A copy of what cannot be cut in a context's memory."""

    def __init__(self, context: object) -> None:
        self._context = context
        self._data = np.empty(0, np.uint8)
        self.n_bytes = 0

    def save(self) -> bool:
        """Copy the state; False: it could not be read."""
        self.n_bytes = int(
            llama_cpp.llama_state_seq_get_size_ext(self._context, SEQUENCE, _PARTIAL_ONLY)
        )
        if len(self._data) < self.n_bytes:
            self._data = np.empty(self.n_bytes, np.uint8)
        written = llama_cpp.llama_state_seq_get_data_ext(
            self._context, self._pointer(), self.n_bytes, SEQUENCE, _PARTIAL_ONLY
        )
        return 0 < self.n_bytes == int(written)

    def restore(self) -> bool:
        """Put the copy back; False: the memory is now in no known state."""
        read = llama_cpp.llama_state_seq_set_data_ext(
            self._context, self._pointer(), self.n_bytes, SEQUENCE, _PARTIAL_ONLY
        )
        return 0 < self.n_bytes == int(read)

    def _pointer(self) -> object:
        return self._data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def probe_state(model: object, n_threads: int) -> State:
    """Find out about the recurrent state of a model, by reading three tokens."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 8
    params.n_outputs_max = 1
    params.n_seq_max = params.n_rs_seq = 1
    params.n_threads = params.n_threads_batch = n_threads
    params.swa_full = False
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        return State(0, has_snapshots=False, can_restore=False)
    try:
        copy = StateCopy(context)
        can_restore = _restores_exactly(context, model, copy)
        return State(copy.n_bytes, llama_cpp.llama_n_rs_seq(context) > 0, can_restore)
    finally:
        llama_cpp.llama_free(context)


def _restores_exactly(context: object, model: object, copy: StateCopy) -> bool:
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch, token = Batch(1), np.zeros(1, np.int32)

    def read(position: int) -> bytes:
        if llama_cpp.llama_decode(context, batch.fill(token, position, 1)):
            return b""
        return ctypes.string_at(llama_cpp.llama_get_logits(context), 4 * n_vocab)

    read(0)
    if not copy.save():
        return False
    first = read(1)
    memory = llama_cpp.llama_get_memory(context)
    restored = copy.restore() and llama_cpp.llama_memory_seq_rm(memory, SEQUENCE, 1, -1)
    return bool(restored) and first != b"" and first == read(1)
