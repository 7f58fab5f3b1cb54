"""Recurrent state: how large that of a model is, and a copy of it.

It knows native memory, neither tokens nor drafts. Attention has none. What llama.cpp can do with
a model's state is found out by trying it, not from a list of architectures.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import llama_cpp
import numpy as np
import numpy.typing as npt

from copyspec_edge.host import machine
from copyspec_edge.llama.batch import SEQUENCE, Batch
from copyspec_edge.llama.compatibility import complete

_PARTIAL_ONLY = 1  # llama_cpp has no name for it
# The states of one batch may take this share of free memory, and are worth having from this many.
_MEMORY_SHARE = 16
_LEAST_SNAPSHOTS = 4
_N_PROBED = 7
_ROUNDING = 1e-3

Row = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class State:
    """The recurrent state of a model.

    Attributes:
        n_bytes: size of a copy.
        has_snapshots: whether llama.cpp can keep the states within a batch (`n_rs_seq`).
        can_restore: whether a copy put back gives the same logits again.
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
    """Find out about the recurrent state of a model, by reading a few tokens."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = _N_PROBED + 1
    params.n_outputs_max = 1
    params.n_seq_max = params.n_rs_seq = 1
    params.n_threads = params.n_threads_batch = n_threads
    params.swa_full = False
    context = llama_cpp.llama_init_from_model(model, complete(params))
    if not context:
        return State(0, has_snapshots=False, can_restore=False)
    try:
        copy = StateCopy(context)
        can_restore = _restores(context, model, copy)
        return State(copy.n_bytes, llama_cpp.llama_n_rs_seq(context) > 0, can_restore)
    finally:
        llama_cpp.llama_free(context)


def _restores(context: object, model: object, copy: StateCopy) -> bool:
    n_vocab = int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)))
    tokens = np.arange(_N_PROBED + 1, dtype=np.int32) % n_vocab
    batch = Batch(_N_PROBED)

    def read(start: int, stop: int) -> Row:
        row = np.full(n_vocab, np.nan, np.float32)
        code = llama_cpp.llama_decode(context, batch.fill(tokens[start:stop], start, 1))
        logits = llama_cpp.llama_get_logits(context) if code == 0 else None
        if logits:
            row[:] = np.ctypeslib.as_array(logits, (n_vocab,))
        return row

    read(0, _N_PROBED)
    if not copy.save():
        return False
    first = read(_N_PROBED, _N_PROBED + 1)
    memory = llama_cpp.llama_get_memory(context)
    if not (copy.restore() and llama_cpp.llama_memory_seq_rm(memory, SEQUENCE, _N_PROBED, -1)):
        return False
    again = read(_N_PROBED, _N_PROBED + 1)
    # The same batch gives the same bits on a CPU; a GPU may add in another order.
    return bool(np.abs(again - first).max() <= _ROUNDING * np.ptp(first))
