"""Batch: a llama_batch over numpy arrays. It knows the layout of the native structure only."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens

SEQUENCE = 0


class Batch:
    """A llama_batch over preallocated arrays: filled by slices, in about a microsecond."""

    def __init__(self, capacity: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        self._n_seq_id = np.ones(capacity, np.int32)
        self._sequence = np.full(1, SEQUENCE, np.int32)
        self._seq_id = np.full(capacity, self._sequence.ctypes.data, np.uintp)
        fields = dict(llama_cpp.llama_batch._fields_)

        def pointer(name: str, array: npt.NDArray[np.generic]) -> object:
            return ctypes.cast(array.ctypes.data, fields[name])

        self._batch = llama_cpp.llama_batch(
            token=pointer("token", self._token),
            pos=pointer("pos", self._pos),
            n_seq_id=pointer("n_seq_id", self._n_seq_id),
            seq_id=pointer("seq_id", self._seq_id),
            logits=pointer("logits", self._logits),
        )

    def fill(self, tokens: Tokens, position: int, rows: int) -> llama_cpp.llama_batch:
        """`tokens` from `position` on, logits wanted for the last `rows`."""
        n = len(tokens)
        self._token[:n] = tokens
        self._pos[:n] = np.arange(position, position + n)
        self._logits[: n - rows] = 0
        self._logits[n - rows : n] = 1
        self._batch.n_tokens = n
        return self._batch
