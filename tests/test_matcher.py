from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.history import Tokens, as_tokens
from copyspec_edge.matcher import (
    CHAIN_DEPTH,
    GAMMA_MAX,
    GAMMA_MIN,
    Matcher,
    _bucket,
    copy_from,
)


def slow_length(tokens: list[int], earlier: int) -> int:
    length = 0
    while length <= min(earlier, GAMMA_MAX - 1) and tokens[earlier - length] == tokens[-1 - length]:
        length += 1
    return length


def slow_find(tokens: list[int], depth: int) -> tuple[int, int]:
    """The longest of the `depth` newest earlier occurrences of the last pair, the newest first."""
    pair = tokens[-GAMMA_MIN:]
    ends = [p for p in range(len(tokens) - 2, 0, -1) if tokens[p - 1 : p + 1] == pair]
    best = (-1, 0)
    for end in ends[:depth]:
        length = slow_length(tokens, end)
        if length > best[1]:
            best = (end + 1, length)
    return best


def find_growing(tokens: list[int], *, at_once: int = 1) -> list[tuple[int, int]]:
    matcher, array = Matcher(len(tokens) or 1), as_tokens(tokens)
    return [matcher.find(array[:n]) for n in range(at_once, len(tokens) + 1, at_once)]


alphabets = st.sampled_from([1, 2, 3, 5, 50])


@st.composite
def histories(draw: st.DrawFn, max_size: int) -> list[int]:
    n_tokens = draw(alphabets)
    period = draw(st.lists(st.integers(0, n_tokens - 1), min_size=1, max_size=7))
    loops = period * draw(st.integers(0, max_size // len(period)))
    noise = draw(st.lists(st.integers(0, n_tokens - 1), max_size=max_size))
    return (noise + loops)[:max_size]


@settings(max_examples=400, deadline=None)
@given(histories(CHAIN_DEPTH), st.integers(1, 5))
def test_finds_the_longest_and_newest_match_of_short_histories(
    tokens: list[int], at_once: int
) -> None:
    found = find_growing(tokens, at_once=at_once)
    lengths = range(at_once, len(tokens) + 1, at_once)
    assert found == [slow_find(tokens[:n], CHAIN_DEPTH) for n in lengths]


@settings(max_examples=60, deadline=None)
@given(histories(300))
def test_a_match_of_a_long_history_is_exact_and_no_longer_than_the_longest(
    tokens: list[int],
) -> None:
    for n, (source, length) in enumerate(find_growing(tokens, at_once=9), start=1):
        seen = tokens[: n * 9]
        if length:
            assert seen[source - length : source] == seen[len(seen) - length :]
            assert source < len(seen)
            assert GAMMA_MIN <= length <= GAMMA_MAX
        assert length <= slow_find(seen, len(seen))[1]


@pytest.mark.parametrize(
    "tokens",
    [[7] * 300, [1, 2] * 150, [1, 2, 3] * 90 + [4], [0, 0, 1] * 100, [5] * 63 + [6] + [5] * 100],
    ids=["one token", "period 2", "period 3", "small alphabet", "break"],
)
def test_pathological_histories_match_within_the_chain_depth(tokens: list[int]) -> None:
    slow = [slow_find(tokens[:n], CHAIN_DEPTH - 1) for n in range(1, len(tokens) + 1)]
    assert find_growing(tokens) == slow


@pytest.mark.parametrize("tokens", [[], [1], [1, 1], [1, 2]])
def test_a_history_without_an_earlier_pair_matches_nothing(tokens: list[int]) -> None:
    assert Matcher(8).find(as_tokens(tokens)) == (-1, 0)


def test_the_shortest_history_that_can_match_does() -> None:
    assert Matcher(3).find(as_tokens([4, 4, 4])) == (2, 2)


def test_a_full_history_is_searched() -> None:
    tokens = [1, 2, 3, 9, 1, 2, 3]
    assert Matcher(len(tokens)).find(as_tokens(tokens)) == (3, 3)


def test_of_equally_long_matches_the_newest_wins() -> None:
    tokens = as_tokens([1, 2, 8, 1, 2, 9, 1, 2])
    assert Matcher(16).find(tokens) == (5, 2)


def test_a_longer_match_wins_over_a_newer_one() -> None:
    tokens = as_tokens([7, 1, 2, 8, 6, 1, 2, 9, 7, 1, 2])
    assert Matcher(16).find(tokens) == (3, 3)


def test_a_match_is_counted_up_to_its_greatest_length() -> None:
    source, length = Matcher(200).find(as_tokens([*range(90), *range(90)]))
    assert (source, length) == (90, GAMMA_MAX)


def pairs(n: int, *, before: int) -> list[int]:
    """`n` times the pair (1, 2), with ever new tokens in between."""
    return [token for i in range(n) for token in (before + i, 1, 2)]


@pytest.mark.parametrize(("n_newer", "expected"), [(CHAIN_DEPTH - 2, 3), (CHAIN_DEPTH - 1, 2)])
def test_a_longer_match_is_found_up_to_the_chain_depth_only(n_newer: int, expected: int) -> None:
    tokens = [9, 1, 2, *pairs(n_newer, before=100_000), 9, 1, 2]
    n_buckets_mask = (1 << 20) - 1
    clashes = [p for p in pairwise(tokens) if p != (1, 2)]
    assert all(_bucket(*p, n_buckets_mask) != _bucket(1, 2, n_buckets_mask) for p in clashes)
    assert Matcher(1 << 20).find(as_tokens(tokens))[1] == expected


def colliding_pairs(first: tuple[int, int], count: int, mask: int) -> list[tuple[int, int]]:
    wanted = _bucket(*first, mask)
    found = [
        (a, b) for a in range(300, 400) for b in range(400, 600) if _bucket(a, b, mask) == wanted
    ]
    return found[:count]


def test_a_hash_collision_is_no_match() -> None:
    (other,) = colliding_pairs((1, 2), 1, 255)
    assert Matcher(16).find(as_tokens([*other, 7, 1, 2])) == (-1, 0)


def test_a_match_behind_hash_collisions_is_found() -> None:
    others = [token for pair in colliding_pairs((1, 2), 20, 255) for token in pair]
    tokens = as_tokens([5, 1, 2, *others, 5, 1, 2])
    assert Matcher(64).find(tokens) == (3, 3)


@settings(max_examples=200, deadline=None)
@given(histories(60), histories(60), st.integers(0, 60))
def test_after_a_reset_a_rewritten_history_is_matched_as_if_new(
    first: list[int], second: list[int], kept: int
) -> None:
    matcher = Matcher(128)
    matcher.find(as_tokens(first))
    rewritten = (first[:kept] + second)[:CHAIN_DEPTH]
    matcher.reset()
    assert matcher.find(as_tokens(rewritten)) == slow_find(rewritten, CHAIN_DEPTH)


@given(histories(60), st.integers(0, 59))
def test_a_history_that_got_shorter_is_matched_as_if_new(tokens: list[int], length: int) -> None:
    matcher = Matcher(64)
    matcher.find(as_tokens(tokens))
    shorter = tokens[:length]
    assert matcher.find(as_tokens(shorter)) == slow_find(shorter, CHAIN_DEPTH)


def test_token_ids_of_large_vocabularies_match() -> None:
    big = np.iinfo(np.int32).max
    assert Matcher(8).find(as_tokens([big, big - 1, 0, big, big - 1])) == (2, 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.data())
def test_a_copy_past_the_end_reads_itself(tokens: list[int], data: st.DataObject) -> None:
    source = data.draw(st.integers(0, len(tokens) - 1))
    count = data.draw(st.integers(0, 70))
    read = list(tokens)
    for i in range(count):
        read.append(read[source + i])
    assert copy_from(as_tokens(tokens), source, count).tolist() == read[len(tokens) :]


def test_a_copy_leaves_the_history_alone() -> None:
    tokens: Tokens = as_tokens([1, 2, 3])
    copy_from(tokens, 1, 5)[:] = 0
    assert tokens.tolist() == [1, 2, 3]
