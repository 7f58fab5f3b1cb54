from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.copy_drafter import CopyDrafter
from copyspec_edge.drafter import MAX_DRAFT, Draft, NoDrafter
from copyspec_edge.history import as_tokens

EOG = 0


def copy_drafter(capacity: int = 256) -> CopyDrafter:
    return CopyDrafter(capacity, frozenset({EOG}))


def first_accept(drafter: CopyDrafter, history: list[int]) -> float:
    return float(drafter.draft(as_tokens(history), 8).accept[0])


# The end of the first is followed by 3 in its past; of the second by nothing it knows.
REPEATED = [1, 2, 3, 9, 8, 1, 2]


def test_drafts_what_followed_the_match_and_goes_on_reading_itself() -> None:
    draft = copy_drafter().draft(as_tokens(REPEATED), 9)
    assert draft.tokens.tolist() == [3, 9, 8, 1, 2, 3, 9, 8, 1]
    assert draft.source == "copy"
    assert len(draft.accept) == len(draft) == 9


def test_nothing_is_drafted_where_nothing_matches() -> None:
    assert len(copy_drafter().draft(as_tokens([1, 2, 3, 4]), 9)) == 0


@pytest.mark.parametrize("limit", [-1, 0, 1, 2, 62, 63, 64, 500])
def test_a_draft_is_as_long_as_the_limit_and_the_longest_draft_allow(limit: int) -> None:
    draft = copy_drafter().draft(as_tokens(REPEATED), limit)
    assert len(draft) == max(0, min(limit, MAX_DRAFT))


@pytest.mark.parametrize(
    ("history", "expected"),
    [([1, 2, 3, EOG, 4, 1, 2], [3, EOG]), ([1, 2, EOG, EOG, 1, 2], [EOG])],
    ids=["in the middle", "first"],
)
def test_a_draft_ends_with_its_first_end_of_generation(
    history: list[int], expected: list[int]
) -> None:
    assert copy_drafter().draft(as_tokens(history), 9).tokens.tolist() == expected


def test_any_of_several_end_of_generation_tokens_ends_a_draft() -> None:
    drafter = CopyDrafter(32, frozenset({50, 40}))
    draft = drafter.draft(as_tokens([1, 2, 3, 40, 50, 1, 2]), 9)
    assert draft.tokens.tolist() == [3, 40]


def test_a_longer_match_is_trusted_more_before_anything_was_learned() -> None:
    short = first_accept(copy_drafter(), [1, 2, 3, 9, 8, 1, 2])
    longer = first_accept(copy_drafter(), [7, 6, 5, 1, 2, 3, 9, 7, 6, 5, 1, 2])
    assert 0 < short < longer < 1


def trained(next_token: int, *, rounds: int = 12) -> float:
    """P(accepted) of a match of two tokens, after `next_token` came instead of 3 each time."""
    drafter, history = copy_drafter(), [1, 2, 3]
    for new in range(100, 100 + rounds):
        history += [new, 1, 2]
        drafter.draft(as_tokens(history), 1)
        history.append(next_token)
    return first_accept(drafter, [*history, 99, 1, 2])


def test_misses_teach_distrust_and_hits_teach_trust() -> None:
    untrained = first_accept(copy_drafter(), REPEATED)
    drafter, history = copy_drafter(), [1, 2]
    for new in range(100, 112):
        history += [new, 1, 2]
        drafter.draft(as_tokens(history), 1)
    assert first_accept(drafter, [*history, 99, 1, 2]) < untrained < trained(3)


def test_only_the_first_difference_is_learned_from() -> None:
    drafter = copy_drafter()
    untrained = drafter.draft(as_tokens(REPEATED), 8).accept
    learned = drafter.draft(as_tokens([*REPEATED, 3, 9, 77, 55, 1, 2]), 8).accept
    assert learned[0] > untrained[0]
    assert learned[2] < untrained[2]
    assert learned[5] == untrained[5]


def test_a_proposal_that_was_not_sent_is_learned_from() -> None:
    history = [*REPEATED, 3, 9, 8, 1, 2]
    asked, silent = copy_drafter(), copy_drafter()
    never_sent = asked.draft(as_tokens(REPEATED), 8)
    silent.draft(as_tokens(REPEATED), 0)
    assert len(never_sent.head(0)) == 0
    learned = asked.draft(as_tokens([*history, 50, 1, 2]), 8).accept
    unlearned = silent.draft(as_tokens([*history, 50, 1, 2]), 8).accept
    assert learned[0] > unlearned[0]


def test_a_proposal_is_learned_from_once() -> None:
    drafter = copy_drafter()
    drafter.draft(as_tokens(REPEATED), 1)
    longer = [*REPEATED, 3]
    drafter.draft(as_tokens(longer), 0)
    once = first_accept(drafter, [*longer, 50, 1, 2])
    twice_asked = copy_drafter()
    twice_asked.draft(as_tokens(REPEATED), 1)
    twice_asked.draft(as_tokens(longer), 0)
    twice_asked.draft(as_tokens([*longer, 50]), 0)
    assert first_accept(twice_asked, [*longer, 50, 1, 2]) == once


def test_a_reset_forgets_the_tokens_and_the_proposal_but_not_what_was_learned() -> None:
    untrained = first_accept(copy_drafter(), REPEATED)
    drafter = copy_drafter()
    drafter.draft(as_tokens(REPEATED), 1)
    trust = first_accept(drafter, [*REPEATED, 3, 50, 1, 2])
    drafter.reset()
    assert len(drafter.draft(as_tokens([1, 2]), 8)) == 0
    assert first_accept(drafter, [*REPEATED[:3], 44, 1, 2]) == trust > untrained


def test_a_reset_drafter_matches_the_rewritten_history() -> None:
    drafter = copy_drafter()
    drafter.draft(as_tokens(REPEATED), 4)
    drafter.reset()
    assert drafter.draft(as_tokens([6, 5, 4, 30, 31, 32, 33, 6, 5]), 3).tokens.tolist() == [
        4,
        30,
        31,
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=20))
def test_accept_is_always_a_probability_for_each_token(parts: list[list[int]]) -> None:
    drafter, history = copy_drafter(), list[int]()
    for part in parts:
        history += part
        draft = drafter.draft(as_tokens(history), 70)
        assert len(draft.accept) == len(draft) <= MAX_DRAFT
        assert ((draft.accept >= 0) & (draft.accept <= 1)).all()
        assert EOG not in draft.tokens[:-1]


def test_a_full_history_of_the_longest_match_is_drafted() -> None:
    drafter = copy_drafter(200)
    assert len(drafter.draft(as_tokens([5] * 200), MAX_DRAFT)) == MAX_DRAFT


def test_head_cuts_tokens_and_probabilities() -> None:
    draft = Draft(as_tokens([1, 2, 3]), np.array([0.5, 0.25, 0.125], np.float32), "x")
    head = draft.head(2)
    assert (head.tokens.tolist(), head.accept.tolist(), head.source) == ([1, 2], [0.5, 0.25], "x")


def test_no_drafter_drafts_nothing() -> None:
    drafter = NoDrafter()
    assert len(drafter.draft(as_tokens(REPEATED), 9)) == 0
    drafter.reset()
