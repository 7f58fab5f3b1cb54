"""Selectors: choose a token from a row, greedily or by llama.cpp's chain of samplers.

They know rows and committed tokens, neither grammars nor drafts.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import weakref
from collections.abc import Iterator

import llama_cpp
import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.errors import EngineError, InvalidInputError
from copyspec_edge.llama import Candidates, Vocab, selected
from copyspec_edge.sampling.params import N_SEEDS, SamplingParams

Row = npt.NDArray[np.float32]

# Below it logits divided by the temperature may leave the range of numbers.
_COLDEST = 1e-4
_NO_NUMBERS = (
    "there are logits that are not numbers, or none that is finite: "
    "the model, a logits processor or the biases made them so"
)
_MIROSTAT_M = 100
# llama.cpp cuts longer ones without a word.
_LONGEST_BREAKER = 40
# Each is looked for in the whole vocabulary.
_MOST_BREAKERS = 64
# With less likely tokens llama.cpp's typical sampling computes 0 · log 0, and its XTC may take
# an impossible one for the least likely that is above its threshold.
_NEGLIGIBLE = 1e-30


def is_greedy(params: SamplingParams) -> bool:
    """Whether the choice is the likeliest token of each row, whatever came before."""
    return params.temperature <= _COLDEST and not (params.penalizes or params.xtc_probability)


class GreedySampler:
    """Takes the likeliest token, the first of several."""

    n_decisive: int | None = 1

    def choose(self, row: Row) -> int:
        """The token with the largest logit."""
        token = int(row.argmax())
        if not math.isfinite(row[token]):
            raise EngineError(_NO_NUMBERS)
        return token

    def accept(self, token: int) -> None:
        """Nothing depends on it."""

    def admits(self, draft: Tokens) -> int:
        """Any token can be the likeliest."""
        return len(draft)


class ChainSampler:
    """llama.cpp's samplers, in its order, ending with one draw or, at temperature 0, the likeliest.

    Args:
        params: which samplers.
        vocab: of the model; read by the DRY penalty only.
        prompt: the penalties begin with it, shape (n,).
        n_ctx: most tokens the penalties look back.

    Raises:
        InvalidInputError: a sequence breaker cannot be used.
    """

    def __init__(self, params: SamplingParams, vocab: Vocab, prompt: Tokens, n_ctx: int) -> None:
        seed = secrets.randbelow(N_SEEDS) if params.seed is None else params.seed
        self.n_decisive = _n_decisive(params)
        self._chain = llama_cpp.llama_sampler_chain_init(
            llama_cpp.llama_sampler_chain_default_params()
        )
        self._free = weakref.finalize(self, llama_cpp.llama_sampler_free, self._chain)
        for link in _penalties(params, vocab, n_ctx):
            llama_cpp.llama_sampler_chain_add(self._chain, link)
            for token in prompt[-n_ctx:].tolist():
                llama_cpp.llama_sampler_accept(link, token)
        for link in _selectors(params, vocab.n_tokens, seed):
            llama_cpp.llama_sampler_chain_add(self._chain, link)
        self._ids = np.arange(vocab.n_tokens, dtype=np.int32)
        self._candidates = Candidates(vocab.n_tokens)

    def choose(self, row: Row) -> int:
        """A token drawn from the row's distribution after the chain."""
        if not np.isfinite(row.max()):
            raise EngineError(_NO_NUMBERS)
        return selected(self._candidates.apply(self._chain, self._ids, row))

    def accept(self, token: int) -> None:
        """Advance the chain's state."""
        llama_cpp.llama_sampler_accept(self._chain, token)

    def admits(self, draft: Tokens) -> int:
        """Any token can be drawn."""
        return len(draft)


def _n_decisive(params: SamplingParams) -> int | None:
    """How many of the likeliest tokens the choice depends on; None: all."""
    cold = params.temperature <= _COLDEST
    n_kept = 1 if cold and not params.xtc_probability else params.top_k
    if not n_kept or params.top_n_sigma or (params.mirostat and not cold):
        return None
    if not params.penalizes:
        return n_kept
    lowers = (
        params.repeat_penalty >= 1
        and min(params.frequency_penalty, params.presence_penalty, params.penalty_last_n) >= 0
    )
    # The recent tokens may fall out of the kept ones, and as many others come in.
    return n_kept + params.penalty_last_n if lowers and not params.uses_dry else None


def _penalties(params: SamplingParams, vocab: Vocab, n_ctx: int) -> Iterator[object]:
    def last_n(n: int) -> int:
        return n_ctx if n < 0 else min(n, n_ctx)

    strengths = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
    if strengths != (1.0, 0.0, 0.0) and params.penalty_last_n:
        yield llama_cpp.llama_sampler_init_penalties(
            vocab.n_tokens, last_n(params.penalty_last_n), *strengths
        )
    if params.uses_dry:
        texts = params.dry_sequence_breakers if vocab.exists else ()
        if len(texts) > _MOST_BREAKERS:
            raise InvalidInputError(f"there can be {_MOST_BREAKERS} DRY sequence breakers at most")
        breakers = [_breaker(text) for text in texts]
        yield llama_cpp.llama_sampler_init_dry(
            vocab.native if breakers else None,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            last_n(params.dry_penalty_last_n),
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )


def _breaker(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > _LONGEST_BREAKER or b"\0" in encoded:
        raise InvalidInputError(
            f"a DRY sequence breaker has at most {_LONGEST_BREAKER} bytes and no NUL: {text!r}"
        )
    return encoded


def _selectors(params: SamplingParams, n_vocab: int, seed: int) -> Iterator[object]:
    if params.mirostat and params.temperature > _COLDEST:
        yield llama_cpp.llama_sampler_init_temp(params.temperature)
        tau, eta = params.mirostat_tau, params.mirostat_eta
        if params.mirostat == 1:
            yield llama_cpp.llama_sampler_init_mirostat(n_vocab, seed, tau, eta, _MIROSTAT_M)
        else:
            yield llama_cpp.llama_sampler_init_mirostat_v2(seed, tau, eta)
        return
    yield from _filters(params, seed)
    if params.temperature <= _COLDEST:
        yield llama_cpp.llama_sampler_init_greedy()
        return
    yield llama_cpp.llama_sampler_init_temp_ext(
        params.temperature, params.dynatemp_range, params.dynatemp_exponent
    )
    yield llama_cpp.llama_sampler_init_dist(seed)


def _filters(params: SamplingParams, seed: int) -> Iterator[object]:
    if params.top_n_sigma:
        yield llama_cpp.llama_sampler_init_top_n_sigma(params.top_n_sigma)
    if params.top_k:
        yield llama_cpp.llama_sampler_init_top_k(params.top_k)
    if params.typical_p < 1 or params.xtc_probability:
        yield llama_cpp.llama_sampler_init_min_p(_NEGLIGIBLE, 1)
    if params.typical_p < 1:
        yield llama_cpp.llama_sampler_init_typical(params.typical_p, 1)
    if params.top_p < 1:
        yield llama_cpp.llama_sampler_init_top_p(params.top_p, 1)
    if params.min_p:
        yield llama_cpp.llama_sampler_init_min_p(params.min_p, 1)
    if params.xtc_probability:
        yield llama_cpp.llama_sampler_init_xtc(
            params.xtc_probability, params.xtc_threshold, 1, seed
        )
