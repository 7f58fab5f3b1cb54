"""Candidates: token ids with logits in the form llama.cpp's samplers take. It knows memory only."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
import numpy.typing as npt

from copyspec_edge.errors import EngineError
from copyspec_edge.llama.samplers import NativeSampler

_RECORD = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """Memory for up to `capacity` candidates, filled anew for every use."""

    def __init__(self, capacity: int) -> None:
        self._records = np.zeros(capacity, _RECORD)
        pointer = ctypes.POINTER(llama_cpp.llama_token_data)
        self._data = ctypes.cast(self._records.ctypes.data, pointer)

    def apply(
        self, sampler: NativeSampler, ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]
    ) -> llama_cpp.llama_token_data_array:
        """Let a sampler work on candidates, shapes (n,), and give what it left of them."""
        self._records["id"][: len(ids)] = ids
        self._records["logit"][: len(ids)] = logits
        array = llama_cpp.llama_token_data_array(
            data=self._data, size=len(ids), selected=-1, sorted=False
        )
        llama_cpp.llama_sampler_apply(sampler.pointer, ctypes.byref(array))
        return array

    def logits(self, n: int) -> npt.NDArray[np.float32]:
        """The first n logits as the last sampler left them, a view of shape (n,)."""
        logits: npt.NDArray[np.float32] = self._records["logit"][:n]
        return logits


def selected(array: llama_cpp.llama_token_data_array) -> int:
    """The token a selecting sampler took.

    Raises:
        EngineError: it took none.
    """
    if not 0 <= array.selected < array.size:
        raise EngineError("llama.cpp's samplers took no token: an option is far out of scale")
    return int(array.data[array.selected].id)
