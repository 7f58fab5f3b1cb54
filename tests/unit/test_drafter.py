from __future__ import annotations

import numpy as np
import pytest

from copyspec_edge.arrays import as_tokens
from copyspec_edge.drafting.drafter import NO_DRAFT, Draft, NoDrafter


def test_head_cuts_tokens_and_probabilities() -> None:
    draft = Draft(as_tokens([1, 2, 3]), np.array([0.5, 0.25, 0.125], np.float32), "x")
    head = draft.head(2)
    assert (head.tokens.tolist(), head.accept.tolist(), head.source) == ([1, 2], [0.5, 0.25], "x")


@pytest.mark.parametrize("length", [0, 3, 9])
def test_head_gives_what_there_is(length: int) -> None:
    draft = Draft(as_tokens([1, 2, 3]), np.ones(3, np.float32), "x")
    assert len(draft.head(length)) == len(draft.head(length).accept) == min(length, 3)


def test_no_draft_is_empty() -> None:
    assert (len(NO_DRAFT), len(NO_DRAFT.accept), NO_DRAFT.source) == (0, 0, "none")


def test_no_drafter_drafts_nothing() -> None:
    drafter = NoDrafter()
    assert len(drafter.draft(as_tokens([1, 2, 3, 9, 8, 1, 2]), 9)) == 0
    drafter.reset()
    assert drafter.draft(as_tokens([1, 1]), 9) is NO_DRAFT
