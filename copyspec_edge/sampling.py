"""Chooses tokens from rows of logits, and checks a draft against what is chosen.

A sampler sees one row at a time, in order, and is told each token that is committed. What it draws
depends on the row, its seed and the tokens committed before, never on what was drafted.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import weakref
from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

import llama_cpp
import numpy as np
import numpy.typing as npt

from copyspec_edge.errors import EngineError, InvalidInputError
from copyspec_edge.history import Tokens, as_tokens

Row = npt.NDArray[np.float32]
_N_SEEDS = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when an answer ends. The defaults are llama.cpp's.

    Attributes:
        temperature: 0 takes the likeliest token; higher is more random.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens that together have this probability; 1 keeps all.
        min_p: keep tokens at least this likely relative to the likeliest; 0 keeps all.
        seed: from 0 to 2**32 - 2; None draws one.
        max_tokens: most tokens of an answer; None: up to the context limit.
        stop: strings that end the answer and are not part of it.

    Raises:
        InvalidInputError: a value out of its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, math.inf)
        _check("top_k", self.top_k, 0, 1 << 30, whole=True)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check("seed", self.seed, 0, _N_SEEDS - 1, whole=True)
        if self.max_tokens is not None:
            _check("max_tokens", self.max_tokens, 1, 1 << 30, whole=True)
        if not isinstance(self.stop, (tuple, list)):
            raise InvalidInputError(f"stop must be a tuple of strings, not {self.stop!r}")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise InvalidInputError("stop strings must be text and not empty")
        object.__setattr__(self, "stop", tuple(self.stop))


def _check(name: str, value: float, low: float, high: float, *, whole: bool = False) -> None:
    kind = int if whole else (int, float)
    valid = isinstance(value, kind) and not isinstance(value, bool)
    if not (valid and low <= value <= high) or value == math.inf:
        wanted = "a whole number" if whole else "a number"
        limits = f"from {low} to {high}" if math.isfinite(high) else f"of at least {low:g}"
        raise InvalidInputError(f"{name} must be {wanted} {limits}, not {value!r}")


class Sampler(Protocol):
    """Chooses one token from each row. `choose` may draw once; `accept` commits."""

    def choose(self, row: Row) -> int:
        """The token for a row of logits, shape (n_vocab,)."""
        ...

    def accept(self, token: int) -> None:
        """`token` was committed."""
        ...


class GreedySampler:
    """Takes the likeliest token, the first of several."""

    def choose(self, row: Row) -> int:
        """The token with the largest logit."""
        token = int(row.argmax())
        if not math.isfinite(row[token]):
            raise EngineError("the model computed logits that are not numbers")
        return token

    def accept(self, token: int) -> None:
        """Nothing depends on it."""


class ChainSampler:
    """llama.cpp's sampler chain: top-k, top-p, min-p, temperature, one draw."""

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        seed = secrets.randbelow(_N_SEEDS) if params.seed is None else params.seed
        self._chain = llama_cpp.llama_sampler_chain_init(
            llama_cpp.llama_sampler_chain_default_params()
        )
        self._free = weakref.finalize(self, llama_cpp.llama_sampler_free, self._chain)
        for link in (
            llama_cpp.llama_sampler_init_top_k(params.top_k),
            llama_cpp.llama_sampler_init_top_p(params.top_p, 1),
            llama_cpp.llama_sampler_init_min_p(params.min_p, 1),
            llama_cpp.llama_sampler_init_temp(params.temperature),
            llama_cpp.llama_sampler_init_dist(seed),
        ):
            llama_cpp.llama_sampler_chain_add(self._chain, link)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._candidates = np.zeros(
            n_vocab, np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        )
        self._data = ctypes.cast(
            self._candidates.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data)
        )

    def choose(self, row: Row) -> int:
        """A token drawn from the row's distribution after the chain."""
        if not np.isfinite(row.max()):
            raise EngineError("the model computed logits that are not numbers")
        self._candidates["id"] = self._ids
        self._candidates["logit"] = row
        array = llama_cpp.llama_token_data_array(
            data=self._data, size=len(self._ids), selected=-1, sorted=False
        )
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def accept(self, token: int) -> None:
        """Advance the chain's state."""
        llama_cpp.llama_sampler_accept(self._chain, token)


def make_sampler(params: SamplingParams, n_vocab: int) -> Sampler:
    """The sampler for one answer."""
    return GreedySampler() if params.temperature == 0 else ChainSampler(params, n_vocab)


def verify(
    draft: Tokens, rows: npt.NDArray[np.float32], sampler: Sampler, eog: Container[int]
) -> Tokens:
    """The tokens one forward pass yields.

    Each row is sampled as if there were no draft; the first choice that differs from the draft
    is the correction and the last one. The output distribution is the model's own, one draw for
    each emitted token. An end-of-generation token ends it too.

    Args:
        draft: proposed tokens, shape (n,).
        rows: logits behind the last committed token and behind each drafted one,
            shape (at least n + 1, n_vocab).
        sampler: asked once per emitted token.
        eog: end-of-generation tokens.

    Returns:
        shape (from 1 to n + 1,).
    """
    chosen: list[int] = []
    for position in range(len(draft) + 1):
        token = sampler.choose(rows[position])
        sampler.accept(token)
        chosen.append(token)
        if token in eog or (position < len(draft) and token != draft[position]):
            break
    return as_tokens(chosen)
