"""Sampled tokens are distributed as the model says, whatever was drafted.

20,000 tokens are decoded on the fake engine. What follows each token is counted and compared with
the softmax of its row by a chi-square test.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from fake_engine import FakeEngine, TinyLanguage
from fake_vocab import bare_vocab
from scripted_drafter import FLAT

from copyspec_edge import SamplingParams
from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.decoding import loop as decoder
from copyspec_edge.decoding.history import History
from copyspec_edge.decoding.loop import decode
from copyspec_edge.drafting.drafter import NO_DRAFT, Draft, Drafter, NoDrafter
from copyspec_edge.sampling.sampler import Sampler, make_sampler
from copyspec_edge.sampling.verify import verify

N_VOCAB = 12
N_RUNS, N_CTX = 100, 201
PURE = SamplingParams(top_k=0, top_p=1.0, min_p=0.0)
# Each row depends on the token before it only, so that there are 12 distributions to compare.
LANGUAGE = TinyLanguage(N_VOCAB, order=1, seed=4)
ROWS = np.stack([LANGUAGE.row([token]) / 2 for token in range(N_VOCAB)])

Counts = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class HalvedLanguage:
    """The logits halved, so that no token is all but certain."""

    n_vocab = N_VOCAB

    def row(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        return np.asarray(ROWS[tokens[-1]], np.float32)


class Guess:
    """Drafts three tokens: what will be drawn, never that, anything, or the likeliest ones."""

    def __init__(self, kind: str, drawn: Tokens) -> None:
        self._kind = kind
        self._drawn = drawn
        self._random = np.random.default_rng(9)

    def draft(self, history: Tokens, limit: int) -> Draft:
        n = min(3, limit, len(self._drawn) - len(history))
        if n <= 0:
            return NO_DRAFT
        truth = self._drawn[len(history) : len(history) + n]
        if self._kind == "likeliest":
            tokens = [int(history[-1])]
            for _ in range(n):
                tokens.append(int(ROWS[tokens[-1]].argmax()))
            return Draft(as_tokens(tokens[1:]), np.ones(n, np.float32), "guess")
        random = self._random.integers(0, N_VOCAB, n).astype(np.int32)
        if self._kind == "wrong":
            random = (truth + 1 + random % (N_VOCAB - 1)) % N_VOCAB
        tokens_ = truth if self._kind == "right" else random
        return Draft(tokens_, np.ones(n, np.float32), "guess")

    def reset(self) -> None:
        pass


def run(params: SamplingParams, drafter: Drafter) -> Tokens:
    engine = FakeEngine(HalvedLanguage(), n_ctx=N_CTX)
    history = History(N_CTX)
    history.extend([3])
    for _ in decode(
        engine,
        history,
        drafter=drafter,
        sampler=make_sampler(params, bare_vocab(N_VOCAB), history.tokens, N_CTX),
        cost=FLAT,
        eog=(),
        max_tokens=N_CTX,
    ):
        pass
    return as_tokens(history.tokens.copy())


@cache
def drawn(temperature: float) -> tuple[Tokens, ...]:
    """All runs without drafts."""
    params = replace(PURE, temperature=temperature)
    return tuple(run(replace(params, seed=seed), NoDrafter()) for seed in range(N_RUNS))


def count(runs: Iterable[Tokens]) -> Counts:
    """How often each token followed each, over 20,000 draws."""
    followed = np.zeros((N_VOCAB, N_VOCAB), np.int64)
    for tokens in runs:
        np.add.at(followed, (tokens[:-1], tokens[1:]), 1)
    assert followed.sum() >= 20_000
    return followed


def count_drafted(temperature: float, kind: str) -> Counts:
    params = replace(PURE, temperature=temperature)
    truths = enumerate(drawn(temperature))
    return count(run(replace(params, seed=seed), Guess(kind, truth)) for seed, truth in truths)


def softmax(logits: npt.NDArray[np.generic]) -> FloatArray:
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype=np.float64)
    return np.asarray(exponents / exponents.sum(axis=-1, keepdims=True))


def excess(seen: Counts, p: FloatArray) -> float:
    """By how many standard deviations the counts are farther off than chance.

    The chi-square statistics of all rows summed up, tokens expected less than 5 times taken
    together, and the sum made normal by the cube root of Wilson and Hilferty.
    """
    statistic, freedom = 0.0, 0
    for counts, row in zip(seen, p * seen.sum(axis=1, keepdims=True), strict=True):
        common = row >= 5
        expected = np.append(row[common], row[~common].sum())
        observed = np.append(counts[common], counts[~common].sum())
        filled = expected > 0
        assert observed[~filled].sum() == 0
        statistic += float(((observed - expected)[filled] ** 2 / expected[filled]).sum())
        freedom += max(0, int(filled.sum()) - 1)
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_without_drafts_what_follows_each_token_is_distributed_as_its_row(
    temperature: float,
) -> None:
    assert abs(excess(count(drawn(temperature)), softmax(ROWS / temperature))) < 4


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("kind", ["wrong", "right", "random", "likeliest"])
def test_drafts_do_not_change_how_what_follows_is_distributed(
    kind: str, temperature: float
) -> None:
    seen = count_drafted(temperature, kind)
    assert abs(excess(seen, softmax(ROWS / temperature))) < 4


def test_the_statistic_notices_a_verifier_that_favours_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that takes a drafted token in place of the drawn one in one of twenty rows."""
    random = np.random.default_rng(2)

    def lenient(
        draft: Tokens, rows: npt.NDArray[np.float32], sampler: Sampler, eog: Container[int]
    ) -> Tokens:
        new = verify(draft, rows, sampler, eog)
        if len(new) <= len(draft) and random.random() < 0.05:
            new[-1] = draft[len(new) - 1]
        return new

    monkeypatch.setattr(decoder, "verify", lenient)
    assert excess(count_drafted(1.0, "random"), softmax(ROWS)) > 8


def test_the_statistic_notices_another_temperature() -> None:
    assert excess(count(drawn(0.7)), softmax(ROWS / 0.8)) > 8
