from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec_edge.arrays import as_tokens, common_prefix
from copyspec_edge.decoding.history import History
from copyspec_edge.errors import ContextFullError

token_lists = st.lists(st.integers(0, 2), max_size=12)


@given(st.lists(token_lists, max_size=6), st.randoms(use_true_random=False))
def test_behaves_like_a_list_that_is_extended_and_cut(
    parts: list[list[int]], random: Random
) -> None:
    history, model = History(80), list[int]()
    for part in parts:
        history.extend(part)
        model += part
        length = random.randint(0, len(model))
        history.truncate(length)
        del model[length:]
        assert history.tokens.tolist() == model
        assert len(history) == len(model)


def test_holds_exactly_its_capacity() -> None:
    history = History(3)
    history.extend([1, 2, 3])
    assert history.capacity == len(history) == 3


def test_extending_beyond_the_capacity_raises_and_appends_nothing() -> None:
    history = History(3)
    history.extend([1, 2])
    with pytest.raises(ContextFullError, match="4 tokens do not fit into the context of 3"):
        history.extend([3, 4])
    assert history.tokens.tolist() == [1, 2]


def test_extending_by_nothing_is_allowed_when_full() -> None:
    history = History(1)
    history.extend([7])
    history.extend([])
    assert history.tokens.tolist() == [7]


def test_extend_copies_its_argument() -> None:
    history, source = History(4), np.array([1, 2], np.int32)
    history.extend(source)
    source[0] = 9
    assert history.tokens.tolist() == [1, 2]


@pytest.mark.parametrize("length", [-1, 3])
def test_cutting_to_what_is_not_there_raises_and_changes_nothing(length: int) -> None:
    history = History(4)
    history.extend([1, 2])
    with pytest.raises(ValueError, match="cannot cut 2 tokens"):
        history.truncate(length)
    assert history.tokens.tolist() == [1, 2]


def test_tokens_are_int32() -> None:
    history = History(4)
    history.extend(np.array([1, 2], np.int64))
    assert history.tokens.dtype == np.int32
    assert as_tokens(5).tolist() == [5]


@given(token_lists, token_lists)
def test_common_prefix_is_the_longest_common_beginning(first: list[int], second: list[int]) -> None:
    length = common_prefix(as_tokens(first), as_tokens(second))
    assert first[:length] == second[:length]
    assert first[length : length + 1] != second[length : length + 1] or length == len(first)
