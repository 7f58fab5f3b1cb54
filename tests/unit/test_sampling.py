from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_vocab import bare_vocab
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.errors import EngineError, InvalidInputError
from copyspec_edge.evaluation import RecordedSampler
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import Sampler, make_sampler
from copyspec_edge.sampling.selectors import ChainSampler, GreedySampler
from copyspec_edge.sampling.verify import verify

Row = npt.NDArray[np.float32]
N_VOCAB = 16
UNFILTERED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)


def sampler_for(params: SamplingParams) -> Sampler:
    return make_sampler(params, bare_vocab(N_VOCAB), as_tokens([]), 64)


def chain(params: SamplingParams) -> ChainSampler:
    return ChainSampler(params, bare_vocab(N_VOCAB), as_tokens([]), 64)


def random_rows(n: int, seed: int = 0) -> Row:
    return np.random.default_rng(seed).normal(0, 2, (n, N_VOCAB)).astype(np.float32)


def draw(sampler: Sampler, rows: Row) -> list[int]:
    return verify_all(sampler, rows, lambda at: as_tokens([]))


def verify_all(
    sampler: Sampler,
    rows: Row,
    draft_at: Callable[[int], Tokens],
    eog: frozenset[int] = frozenset(),
) -> list[int]:
    """Tokens for all rows, several at a time as drafts allow."""
    emitted: list[int] = []
    while len(emitted) < len(rows):
        at = len(emitted)
        draft = draft_at(at)[: len(rows) - at - 1]
        new = verify(draft, rows[at : at + len(draft) + 1], sampler, eog)
        assert 1 <= len(new) <= len(draft) + 1
        emitted += new.tolist()
    return emitted


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "1"},
        {"temperature": 10**400},
        {"temperature": 1e39},
        {"temperature": True},
        {"temperature": None},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_k": 2**31},
        {"top_p": -0.01},
        {"top_p": 1.01},
        {"min_p": -0.01},
        {"min_p": 1.01},
        {"seed": -1},
        {"seed": 2**32 - 1},
        {"seed": 0.0},
        {"max_tokens": 0},
        {"max_tokens": -3},
        {"max_tokens": 2.0},
        {"stop": "text"},
        {"stop": ("",)},
        {"stop": (b"x",)},
    ],
    ids=str,
)
def test_params_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(bad))):
        SamplingParams(**bad)


@pytest.mark.parametrize(
    "good",
    [
        {"temperature": 0},
        {"temperature": 5.5},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1},
        {"min_p": 1.0},
        {"seed": 0},
        {"seed": 2**32 - 2},
        {"max_tokens": 1},
        {"stop": ("a", "b")},
    ],
    ids=str,
)
def test_params_at_the_ends_of_their_ranges_are_taken(good: dict[str, Any]) -> None:
    params = SamplingParams(**good)
    for name, value in good.items():
        assert getattr(params, name) == value


def test_stop_strings_may_be_given_as_a_list() -> None:
    stops: Any = ["a", "b"]
    assert SamplingParams(stop=stops).stop == ("a", "b")


def test_temperature_0_is_greedy_and_anything_else_is_the_chain() -> None:
    assert isinstance(sampler_for(SamplingParams(temperature=0)), GreedySampler)
    assert isinstance(sampler_for(SamplingParams(temperature=0.1)), ChainSampler)


def test_greedy_takes_the_largest_logit_and_the_first_of_several() -> None:
    assert GreedySampler().choose(np.array([1, 5, 2, 5], np.float32)) == 1


SAMPLERS = {"greedy": SamplingParams(temperature=0), "chain": SamplingParams(seed=1)}


@pytest.mark.parametrize("params", SAMPLERS.values(), ids=SAMPLERS.keys())
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 7, N_VOCAB - 1])
def test_logits_that_are_not_numbers_are_an_error(
    params: SamplingParams, bad: float, where: int
) -> None:
    row = random_rows(1)[0]
    row[where] = bad
    with pytest.raises(EngineError, match="not numbers"):
        sampler_for(params).choose(row)


@pytest.mark.parametrize("params", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_rows_without_any_possible_token_are_an_error(params: SamplingParams) -> None:
    with pytest.raises(EngineError, match="not numbers"):
        sampler_for(params).choose(np.full(N_VOCAB, -np.inf, np.float32))


def test_impossible_tokens_are_allowed_and_never_drawn() -> None:
    rows = random_rows(300)
    rows[:, 5:] = -np.inf
    assert set(draw(chain(UNFILTERED), rows)) == set(range(5))


def test_choosing_leaves_the_row_alone() -> None:
    row = random_rows(1)[0]
    kept = row.copy()
    chain(SamplingParams(seed=1)).choose(row)
    assert (row == kept).all()


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 2])
def test_the_same_seed_draws_the_same_tokens(seed: int) -> None:
    params, rows = replace(UNFILTERED, seed=seed), random_rows(100)
    first = draw(chain(params), rows)
    assert draw(chain(params), rows) == first


@pytest.mark.parametrize("seeds", [(0, 1), (None, None), (0, None)], ids=str)
def test_different_seeds_and_none_draw_different_tokens(seeds: tuple[int | None, ...]) -> None:
    rows = random_rows(200)
    draws = [draw(chain(replace(UNFILTERED, seed=s)), rows) for s in seeds]
    assert draws[0] != draws[1]


@pytest.mark.parametrize(
    "params",
    [SamplingParams(top_k=1), SamplingParams(top_p=0.0), SamplingParams(min_p=1.0)],
    ids=["top_k", "top_p", "min_p"],
)
def test_the_strictest_filters_equal_greedy(params: SamplingParams) -> None:
    rows = random_rows(100)
    assert draw(chain(params), rows) == rows.argmax(axis=1).tolist()


def filtered_probabilities(row: Row, params: SamplingParams) -> npt.NDArray[np.float64]:
    """What llama.cpp documents: top-k, then top-p, then min-p, then the temperature."""
    logits = row.astype(np.float64)
    order = np.argsort(-logits)
    kept = order[: params.top_k] if params.top_k else order
    p = np.exp(logits[kept] - logits[kept].max())
    p /= p.sum()
    n_top = int(np.searchsorted(np.cumsum(p), params.top_p)) + 1
    kept, p = kept[:n_top], p[:n_top]
    kept = kept[p >= params.min_p * p[0]]
    out = np.zeros(len(row))
    out[kept] = np.exp((logits[kept] - logits[kept].max()) / params.temperature)
    out /= out.sum()
    return out


def chi_square_excess(drawn: list[int], p: npt.NDArray[np.float64]) -> float:
    """By how many standard deviations the draws are farther off than chance."""
    seen = np.bincount(drawn, minlength=len(p))
    assert seen[p == 0].sum() == 0
    expected = p[p > 0] * len(drawn)
    chi_square = float(((seen[p > 0] - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    return (chi_square - freedom) / math.sqrt(2 * freedom)


N_DRAWS = 20_000
FILTERED = SamplingParams(temperature=0.7, top_k=12, top_p=0.97, min_p=0.02, seed=11)
CHI_PARAMS = {
    "0.7 filtered": FILTERED,
    "1.0 filtered": replace(FILTERED, temperature=1.0),
    "1.0 unfiltered": replace(UNFILTERED, seed=11),
}


@pytest.fixture(params=list(CHI_PARAMS.values()), ids=list(CHI_PARAMS), scope="module")
def reference(request: pytest.FixtureRequest) -> tuple[SamplingParams, Row, list[int]]:
    params: SamplingParams = request.param
    rows = np.broadcast_to(random_rows(1, seed=5), (N_DRAWS, N_VOCAB))
    return params, rows, draw(chain(params), rows)


def drafts(kind: str, truth: list[int]) -> Callable[[int], Tokens]:
    random = iter(np.random.default_rng(1).integers(0, N_VOCAB, (N_DRAWS, 4)))

    def draft_at(at: int) -> Tokens:
        right = as_tokens(truth[at : at + 4])
        if kind == "right":
            return right
        return (right + 1) % N_VOCAB if kind == "wrong" else as_tokens(next(random))

    return draft_at


def test_filters_leave_some_tokens_out() -> None:
    p = filtered_probabilities(random_rows(1, seed=5)[0], FILTERED)
    assert 3 < np.count_nonzero(p) < 12


def test_plain_draws_are_distributed_as_the_filtered_softmax(
    reference: tuple[SamplingParams, Row, list[int]],
) -> None:
    params, rows, drawn = reference
    assert chi_square_excess(drawn, filtered_probabilities(rows[0], params)) < 4


def test_the_chi_square_notices_another_temperature() -> None:
    rows = np.broadcast_to(random_rows(1, seed=5), (N_DRAWS, N_VOCAB))
    drawn = draw(chain(replace(FILTERED, temperature=0.8)), rows)
    assert chi_square_excess(drawn, filtered_probabilities(rows[0], FILTERED)) > 8


@pytest.mark.parametrize("kind", ["wrong", "right", "random"])
def test_drafts_change_no_draw(kind: str, reference: tuple[SamplingParams, Row, list[int]]) -> None:
    params, rows, drawn = reference
    assert verify_all(chain(params), rows, drafts(kind, drawn)) == drawn


@pytest.mark.parametrize("kind", ["wrong", "right", "random"])
def test_drafted_draws_with_another_seed_are_distributed_as_the_filtered_softmax(
    kind: str, reference: tuple[SamplingParams, Row, list[int]]
) -> None:
    params, rows, _ = reference
    other = replace(params, seed=77)
    truth = draw(chain(other), rows)
    drawn = verify_all(chain(other), rows, drafts(kind, truth))
    assert chi_square_excess(drawn, filtered_probabilities(rows[0], params)) < 4


class Witness(RecordedSampler):
    """Says a fixed sequence over and over, and keeps what it is asked and told."""

    def __init__(self, says: list[int]) -> None:
        super().__init__(as_tokens(list(islice(cycle(says), 10))))
        self.asked: list[int] = []
        self.told: list[int] = []

    def choose(self, row: Row) -> int:
        self.asked.append(int(row[0]))
        return super().choose(row)

    def accept(self, token: int) -> None:
        self.told.append(token)


draft_tokens = st.lists(st.integers(0, 3), max_size=6)


@settings(max_examples=300)
@given(
    draft_tokens, st.lists(st.integers(0, 3), min_size=1, max_size=7), st.sets(st.integers(0, 3))
)
def test_verify_keeps_choices_up_to_the_first_that_differs_or_ends(
    draft: list[int], says: list[int], eog: set[int]
) -> None:
    sampler = Witness(says)
    rows = np.arange(len(draft) + 1, dtype=np.float32)[:, None]
    new = verify(as_tokens(draft or np.empty(0)), rows, sampler, eog).tolist()
    choices = list(islice(cycle(says), len(draft) + 1))
    stops = [i for i, (a, b) in enumerate(zip(choices, draft, strict=False)) if a != b or a in eog]
    assert new == choices[: (stops[0] if stops else len(draft)) + 1]
    assert sampler.told == new
    assert sampler.asked == list(range(len(new)))


def test_rows_beyond_the_draft_are_not_looked_at() -> None:
    rows = random_rows(3)
    rows[2] = np.nan
    best = int(rows[0].argmax())
    assert len(verify(as_tokens([best]), rows, GreedySampler(), ())) == 2


def test_numpy_numbers_are_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(5),
        logit_bias={np.int32(3): np.float64(1.5)},
    )
    assert (type(params.temperature), type(params.top_k)) == (float, int)
    assert params.logit_bias == {3: 1.5}


@pytest.mark.parametrize("bias", [{5: 1e39}, {5: 10**400}, {-1: 0.0}, {True: 0.0}, {5: "1"}, [5]])
def test_biases_that_are_no_numbers_to_llama_cpp_are_refused(bias: Any) -> None:
    with pytest.raises(InvalidInputError, match="logit_bias must map"):
        SamplingParams(logit_bias=bias)


def test_a_bias_below_all_numbers_bans() -> None:
    assert SamplingParams(logit_bias={5: -1e39}).logit_bias == {5: -float("inf")}
