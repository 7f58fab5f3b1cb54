from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec_edge.arrays import as_tokens
from copyspec_edge.decoding.stats import Stats, Step, fold


def step(n: int, *, drafted: int = 0, accepted: int = 0, seconds: float = 0.5) -> Step:
    return Step(as_tokens(range(n)), drafted, accepted, "copy", 1, seconds)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    n = draw(st.integers(1, 9))
    accepted = draw(st.integers(n - 1, n))
    drafted = draw(st.integers(accepted, accepted + 5))
    seconds = draw(st.floats(0.125, 2.0))
    return step(n, drafted=drafted, accepted=accepted, seconds=seconds)


@given(st.lists(steps(), max_size=8))
def test_generated_tokens_are_steps_and_accepted_less_steps_that_ended_drafted(
    several: list[Step],
) -> None:
    stats = fold(several, prompt_tokens=3, cached_tokens=2)
    ended_drafted = sum(s.accepted == len(s.tokens) for s in several)
    counted = stats.verify_steps + stats.accepted_tokens - ended_drafted
    assert stats.generated_tokens == counted == sum(len(s.tokens) for s in several)
    assert stats.accepted_tokens <= stats.drafted_tokens


def test_the_first_step_is_prefill_and_the_others_are_decoding() -> None:
    several = [step(1, seconds=3.0), step(4, drafted=6, accepted=3), step(2, drafted=1, accepted=1)]
    stats = fold(iter(several), prompt_tokens=9, cached_tokens=5)
    assert stats == Stats(
        prompt_tokens=9,
        cached_tokens=5,
        generated_tokens=7,
        verify_steps=3,
        drafted_tokens=7,
        accepted_tokens=4,
        prefill_seconds=3.0,
        decode_seconds=1.0,
        tokens_per_second=6.0,
    )


def test_what_was_declined_and_read_again_is_counted() -> None:
    tokens = as_tokens([1])
    several = [
        Step(tokens, 0, 0, "none", 40, 1.0),
        Step(tokens, 3, 0, "copy", 1, 1.0),
        Step(tokens, 0, 0, "none", 2, 1.0),
        Step(tokens, 0, 0, "none", 1, 1.0, declined=True),
    ]
    stats = fold(several, prompt_tokens=40, cached_tokens=0, rollback="checkpoint")
    assert (stats.declined_drafts, stats.reread_tokens) == (1, 1)
    assert stats.rollback == "checkpoint"
    assert several[-1].cut(1).declined


@pytest.mark.parametrize("several", [[], [step(2, drafted=2, accepted=1)]])
def test_without_a_second_step_there_is_no_speed(several: list[Step]) -> None:
    assert fold(several, prompt_tokens=1, cached_tokens=0).tokens_per_second == 0.0


def test_stats_as_dict_are_the_attributes_by_name() -> None:
    stats = fold([step(2, drafted=3, accepted=1)], prompt_tokens=1, cached_tokens=0)
    assert stats.as_dict()["drafted_tokens"] == 3
    assert Stats(**stats.as_dict()) == stats  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "accepted"), [(1, 1), (3, 3), (4, 3)])
def test_a_cut_step_counts_the_accepted_tokens_that_remain(length: int, accepted: int) -> None:
    cut = step(4, drafted=5, accepted=3).cut(length)
    assert (len(cut.tokens), cut.drafted, cut.accepted) == (length, 5, accepted)
