from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.drafting.draft_length import best_length, trim
from copyspec_edge.drafting.drafter import NO_DRAFT, Draft
from copyspec_edge.tuning.cost import CostCurve
from copyspec_edge.tuning.curves import CPU_CURVE, GPU_CURVE

probabilities = st.lists(st.floats(0.0, 1.0, width=32), max_size=9)


class SlowPolicy:
    """The documented recurrence, word for word."""

    def __init__(self, accept: list[float], cost: list[float], breaks: list[float]) -> None:
        self._accept, self._cost, self._breaks = accept, cost, breaks
        self.least = lru_cache(maxsize=None)(self._least)

    def shapes(self, j: int) -> range:
        return range(min(len(self._accept) - j, len(self._cost) - 2) + 1)

    def expected(self, j: int, k: int) -> float:
        """Time when k tokens are drafted at position j."""
        time = self._cost[k + 1]
        for n_accepted in range(k):
            reach = float(np.prod(self._accept[j : j + n_accepted]))
            time += reach * (1 - self._accept[j + n_accepted]) * self._breaks[n_accepted]
        if j + k < len(self._accept):
            reach = float(np.prod(self._accept[j : j + k + 1]))
            time += reach * self.least(j + k + 1)
        return time

    def _least(self, j: int) -> float:
        return min(self.expected(j, k) for k in self.shapes(j))


def choose(accept: list[float], cost: list[float], breaks: list[float] | None = None) -> int:
    arrays = (accept, cost, breaks or [0.0] * (len(cost) - 2))
    return int(best_length(*(np.array(values, np.float32) for values in arrays)))


@settings(max_examples=500, deadline=None)
@given(probabilities, st.data())
def test_no_other_length_takes_less_expected_time(accept: list[float], data: st.DataObject) -> None:
    times = st.floats(0.5, 8.0, width=32)
    cost = data.draw(st.lists(times, min_size=2, max_size=12))
    n_breaks = len(cost) - 2
    breaks = data.draw(st.lists(times, min_size=n_breaks, max_size=n_breaks) | st.none())
    slow = SlowPolicy(accept, cost, breaks or [0.0] * n_breaks)
    k = choose(accept, cost, breaks)
    assert k in slow.shapes(0)
    if accept:
        assert slow.expected(0, k) == pytest.approx(slow.least(0), rel=1e-5)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0.0, 1.0, width=32), max_size=80),
    st.lists(st.floats(0.5, 8.0, width=32), min_size=2, max_size=80),
)
def test_never_more_than_the_draft_or_the_cost_table_has(
    accept: list[float], cost: list[float]
) -> None:
    assert 0 <= choose(accept, cost) <= min(len(accept), len(cost) - 2)


def test_nothing_is_drafted_where_tokens_are_unlikely_and_rows_cost() -> None:
    assert choose([0.1] * 10, [0.0, *range(1, 20)]) == 0


def test_a_certain_draft_is_sent_whole_where_rows_are_free() -> None:
    assert choose([1.0] * 10, [1.0] * 20) == 10


def test_a_draft_stops_before_a_token_that_will_not_be_accepted() -> None:
    assert choose([1.0, 1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]) == 3


def test_a_draft_goes_as_far_as_a_step_in_the_cost() -> None:
    cost = [0.0, 1.0, 1.01, 1.02, 1.03, 9.0, 9.0, 9.0, 9.0]
    assert choose([0.99] * 7, cost) == 3


def test_a_gpu_drafts_longer_than_a_cpu() -> None:
    accept = np.full(40, 0.8, np.float32)
    gpu, cpu = (best_length(accept, c.table, c.breaks) for c in (GPU_CURVE, CPU_CURVE))
    assert gpu > cpu > 0


def test_what_a_break_costs_makes_drafts_of_doubtful_copies_not_worth_their_while() -> None:
    cost, free, dear = [0.0, 1.0, 1.2, 1.4, 1.6], [0.0] * 3, [1.0, 1.2, 1.4]
    assert choose([0.6] * 3, cost, free) > 0
    assert choose([0.6] * 3, cost, dear) == 0
    assert choose([1.0] * 3, cost, dear) == choose([1.0] * 3, cost, free) == 3


def test_trim_keeps_the_beginning_of_a_draft() -> None:
    draft = Draft(np.array([4, 5, 6], np.int32), np.array([1.0, 1.0, 0.0], np.float32), "copy")
    trimmed = trim(draft, CostCurve((1, 8), (1.0, 1.5)))
    assert (trimmed.tokens.tolist(), trimmed.accept.tolist()) == ([4, 5], [1.0, 1.0])
    assert trimmed.source == "copy"


def test_trim_of_no_draft_is_no_draft() -> None:
    assert len(trim(NO_DRAFT, CPU_CURVE)) == 0
