"""Selectors: choose a token from a row, greedily or by penalties and llama.cpp's samplers.

They know rows and committed tokens, neither grammars nor drafts.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator

import numpy as np

from copyspec_edge.arrays import Row, Tokens
from copyspec_edge.errors import EngineError, InvalidInputError
from copyspec_edge.llama import Candidates, NativeSampler, Vocab, samplers, selected
from copyspec_edge.sampling.params import N_SEEDS, SamplingParams
from copyspec_edge.sampling.penalties import Penalties

# Below it logits divided by the temperature may leave the range of numbers.
_COLDEST = 1e-4
_NO_NUMBERS = (
    "there are logits that are not numbers, or none that is finite: "
    "the model, a logits processor or the biases made them so"
)
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
    """Penalties and llama.cpp's samplers, in its order, ending with one draw.

    At temperature 0 they end with the likeliest token instead.

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
        self._penalties = _penalties(params, vocab, prompt, n_ctx)
        links = [*_dry(params, vocab, prompt, n_ctx), *_selectors(params, vocab.n_tokens, seed)]
        self._chain = samplers.chain(links)
        self._ids = np.arange(vocab.n_tokens, dtype=np.int32)
        self._candidates = Candidates(vocab.n_tokens)

    def choose(self, row: Row) -> int:
        """A token drawn from the row's distribution after the chain."""
        if not np.isfinite(row.max()):
            raise EngineError(_NO_NUMBERS)
        if self._penalties:
            row = self._penalties.lower(row)
        return selected(self._candidates.apply(self._chain, self._ids, row))

    def accept(self, token: int) -> None:
        """Advance the penalties and the chain."""
        if self._penalties:
            self._penalties.accept(token)
        self._chain.accept(token)

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


def _penalties(
    params: SamplingParams, vocab: Vocab, prompt: Tokens, n_ctx: int
) -> Penalties | None:
    strengths = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
    if strengths == (1.0, 0.0, 0.0) or not params.penalty_last_n:
        return None
    last_n = _looks_back(params.penalty_last_n, n_ctx)
    return Penalties(params, prompt, vocab.n_tokens, last_n)


def _dry(
    params: SamplingParams, vocab: Vocab, prompt: Tokens, n_ctx: int
) -> Iterator[NativeSampler]:
    if not params.uses_dry:
        return
    last_n = _looks_back(params.dry_penalty_last_n, n_ctx)
    link = samplers.dry(
        vocab,
        last_n,
        multiplier=params.dry_multiplier,
        base=params.dry_base,
        allowed_length=params.dry_allowed_length,
        breakers=_breakers(params.dry_sequence_breakers) if vocab.exists else (),
    )
    link.accept_all(prompt[-last_n:])
    yield link


def _looks_back(last_n: int, n_ctx: int) -> int:
    return n_ctx if last_n < 0 else min(last_n, n_ctx)


def _breakers(texts: tuple[str, ...]) -> list[bytes]:
    if len(texts) > _MOST_BREAKERS:
        raise InvalidInputError(f"there can be {_MOST_BREAKERS} DRY sequence breakers at most")
    encoded = [text.encode("utf-8", "replace") for text in texts]
    for text, breaker in zip(texts, encoded, strict=True):
        if len(breaker) > _LONGEST_BREAKER or b"\0" in breaker:
            raise InvalidInputError(
                f"a DRY sequence breaker has at most {_LONGEST_BREAKER} bytes and no NUL: {text!r}"
            )
    return encoded


def _selectors(params: SamplingParams, n_vocab: int, seed: int) -> Iterator[NativeSampler]:
    if params.mirostat and params.temperature > _COLDEST:
        yield samplers.temperature(params.temperature)
        tau, eta = params.mirostat_tau, params.mirostat_eta
        if params.mirostat == 1:
            yield samplers.mirostat(n_vocab, seed, tau, eta)
        else:
            yield samplers.mirostat_v2(seed, tau, eta)
        return
    yield from _filters(params, seed)
    if params.temperature <= _COLDEST:
        yield samplers.greedy()
        return
    yield samplers.temperature(
        params.temperature, span=params.dynatemp_range, exponent=params.dynatemp_exponent
    )
    yield samplers.draw(seed)


def _filters(params: SamplingParams, seed: int) -> Iterator[NativeSampler]:
    if params.top_n_sigma:
        yield samplers.top_n_sigma(params.top_n_sigma)
    if params.top_k:
        yield samplers.top_k(params.top_k)
    if params.typical_p < 1 or params.xtc_probability:
        yield samplers.min_p(_NEGLIGIBLE)
    if params.typical_p < 1:
        yield samplers.typical_p(params.typical_p)
    if params.top_p < 1:
        yield samplers.top_p(params.top_p)
    if params.min_p:
        yield samplers.min_p(params.min_p)
    if params.xtc_probability:
        yield samplers.xtc(params.xtc_probability, params.xtc_threshold, seed)
