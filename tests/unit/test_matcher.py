from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.drafting.matcher import (
    CHAIN_DEPTH,
    GAMMA_LONG,
    GAMMA_MAX,
    MAX_CANDIDATES,
    Matcher,
    _bucket,
)

Candidates = list[tuple[int, int]]


def found(matcher: Matcher, tokens: Tokens) -> Candidates:
    sources, lengths = matcher.find(tokens)
    return list(zip(sources.tolist(), lengths.tolist(), strict=True))


def slow_length(tokens: list[int], earlier: int) -> int:
    length = 0
    while length <= min(earlier, GAMMA_MAX - 1) and tokens[earlier - length] == tokens[-1 - length]:
        length += 1
    return length


def slow_matches(tokens: list[int]) -> Candidates:
    """All earlier matches, the newest first."""
    matches = [(p + 1, slow_length(tokens, p)) for p in range(len(tokens) - 2, -1, -1)]
    return [(source, length) for source, length in matches if length]


def slow_find(tokens: list[int]) -> Candidates:
    """The contract where no two different tails share a bucket."""
    matches = slow_matches(tokens)
    long = [match for match in matches if match[1] >= GAMMA_LONG]
    newest = matches[:CHAIN_DEPTH]
    return long[:CHAIN_DEPTH] + [match for match in newest if match[1] < GAMMA_LONG]


def find_growing(
    tokens: list[int], *, at_once: int = 1, capacity: int | None = None
) -> list[Candidates]:
    """What is found as a history grows to `tokens`."""
    matcher, array = Matcher(capacity or len(tokens) or 1), as_tokens(tokens)
    return [found(matcher, array[:n]) for n in range(at_once, len(tokens) + 1, at_once)]


alphabets = st.sampled_from([1, 2, 3, 5, 50])


@st.composite
def histories(
    draw: st.DrawFn, max_size: int, alphabet: st.SearchStrategy[int] = alphabets
) -> list[int]:
    n_tokens = draw(alphabet)
    period = draw(st.lists(st.integers(0, n_tokens - 1), min_size=1, max_size=7))
    loops = period * draw(st.integers(0, max_size // len(period)))
    noise = draw(st.lists(st.integers(0, n_tokens - 1), max_size=max_size))
    return (noise + loops)[:max_size]


# So many buckets that the tails of so few different tokens do not share any: see below.
ROOMY = 1 << 16


def test_the_reference_holds_since_no_tails_of_few_tokens_collide_in_a_roomy_index() -> None:
    n_buckets = len(Matcher(ROOMY)._heads[0])
    tails = [as_tokens([a, b, c]) for a in range(5) for b in range(5) for c in range(5)]
    assert len({_bucket(tail, 2, GAMMA_LONG, n_buckets) for tail in tails}) == len(tails)
    ones = as_tokens(range(50))
    assert len({_bucket(ones, i, 1, n_buckets) for i in range(50)}) == 50


@settings(max_examples=40, deadline=None)
@given(histories(120, st.sampled_from([1, 2, 3, 5])), st.integers(1, 9))
def test_finds_exactly_the_newest_matches_of_both_chains(tokens: list[int], at_once: int) -> None:
    lengths = range(at_once, len(tokens) + 1, at_once)
    grown = find_growing(tokens, at_once=at_once, capacity=ROOMY)
    assert grown == [slow_find(tokens[:n]) for n in lengths]


@settings(max_examples=100, deadline=None)
@given(histories(300), st.integers(5, 40))
def test_every_candidate_matches_exactly_and_no_longer(tokens: list[int], at_once: int) -> None:
    for n, candidates in enumerate(find_growing(tokens, at_once=at_once), start=1):
        seen = tokens[: n * at_once]
        assert len(candidates) <= MAX_CANDIDATES
        assert all(1 <= source < len(seen) for source, _ in candidates)
        assert all(1 <= slow_length(seen, s - 1) == length for s, length in candidates)


@settings(max_examples=100, deadline=None)
@given(histories(300), st.integers(1, 40))
def test_long_matches_come_first_and_each_kind_from_the_newest_on(
    tokens: list[int], at_once: int
) -> None:
    for candidates in find_growing(tokens, at_once=at_once):
        long = [source for source, length in candidates if length >= GAMMA_LONG]
        short = [source for source, length in candidates if length < GAMMA_LONG]
        assert [source for source, _ in candidates] == long + short
        assert long == sorted(set(long), reverse=True)
        assert short == sorted(set(short), reverse=True)
        assert max(len(long), len(short)) <= CHAIN_DEPTH


@pytest.mark.parametrize(
    "tokens",
    [[7] * 300, [1, 2] * 150, [1, 2, 3] * 90 + [4], [0, 0, 1] * 100, [5] * 63 + [6] + [5] * 100],
    ids=["one token", "period 2", "period 3", "small alphabet", "break"],
)
@pytest.mark.parametrize("at_once", [1, 7])
def test_pathological_histories(tokens: list[int], at_once: int) -> None:
    slow = [slow_find(tokens[:n]) for n in range(at_once, len(tokens) + 1, at_once)]
    assert find_growing(tokens, at_once=at_once) == slow


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3]])
def test_a_history_without_a_repeated_end_matches_nothing(tokens: list[int]) -> None:
    assert found(Matcher(8), as_tokens(tokens)) == []


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([4, 4], [(1, 1)]),
        ([4, 4, 4], [(2, 2), (1, 1)]),
        ([4, 4, 4, 4], [(3, 3), (2, 2), (1, 1)]),
        ([4, 5, 4], [(1, 1)]),
    ],
)
def test_the_shortest_histories_that_can_match_do(tokens: list[int], expected: Candidates) -> None:
    assert found(Matcher(8), as_tokens(tokens)) == expected


def test_a_full_history_is_searched() -> None:
    tokens = [1, 2, 3, 9, 1, 2, 3]
    assert find_growing(tokens)[-1] == [(3, 3)]


def test_a_long_match_comes_before_a_newer_short_one() -> None:
    tokens = as_tokens([7, 1, 2, 8, 6, 1, 2, 9, 7, 1, 2])
    assert found(Matcher(16), tokens) == [(3, 3), (7, 2)]


def test_a_match_is_counted_up_to_its_greatest_length() -> None:
    assert found(Matcher(200), as_tokens([*range(90), *range(90)])) == [(90, GAMMA_MAX)]


def test_a_match_ends_at_the_beginning_of_the_history() -> None:
    assert found(Matcher(16), as_tokens([1, 2, 3, 4, 1, 2, 3, 4])) == [(4, 4)]


def repeats(unit: list[int], n: int) -> list[int]:
    """`n` times `unit`, with ever new tokens in between."""
    return [token for i in range(n) for token in [1000 + i, *unit]]


@pytest.mark.parametrize("n_newer", [0, CHAIN_DEPTH - 1, CHAIN_DEPTH])
def test_a_long_match_is_found_behind_any_number_of_short_ones(n_newer: int) -> None:
    tokens = [7, 8, 9, *repeats([9], n_newer), 7, 8, 9]
    candidates = found(Matcher(ROOMY), as_tokens(tokens))
    assert candidates[0] == (3, 3)
    assert len(candidates) == 1 + min(n_newer, CHAIN_DEPTH)


@pytest.mark.parametrize(("n_newer", "longest"), [(CHAIN_DEPTH - 1, 4), (CHAIN_DEPTH, GAMMA_LONG)])
def test_a_longer_match_is_found_up_to_the_chain_depth_only(n_newer: int, longest: int) -> None:
    tokens = [6, 7, 8, 9, *repeats([7, 8, 9], n_newer), 6, 7, 8, 9]
    candidates = found(Matcher(ROOMY), as_tokens(tokens))
    assert len(candidates) == CHAIN_DEPTH
    assert max(length for _, length in candidates) == longest


def test_of_short_matches_the_newest_are_found_up_to_the_chain_depth() -> None:
    candidates = found(Matcher(ROOMY), as_tokens([*repeats([9], CHAIN_DEPTH + 5), 5, 9]))
    assert [length for _, length in candidates] == [1] * CHAIN_DEPTH
    assert candidates[0][0] == 2 * (CHAIN_DEPTH + 5)


def colliding_with(wanted: Tokens, count: int, n_buckets: int) -> list[list[int]]:
    """Tails that share no token with `wanted`, but its bucket."""
    gamma = len(wanted)
    random, bucket = np.random.default_rng(0), _bucket(wanted, gamma - 1, gamma, n_buckets)
    tails: list[list[int]] = []
    while len(tails) < count:
        tail = random.integers(1000, 1_000_000, gamma).astype(np.int32)
        if _bucket(tail, gamma - 1, gamma, n_buckets) == bucket:
            tails.append(tail.tolist())
    return tails


@pytest.mark.parametrize("gamma", [1, GAMMA_LONG])
def test_a_hash_collision_is_no_match(gamma: int) -> None:
    wanted = as_tokens([1, 2, 3][:gamma])
    (other,) = colliding_with(wanted, 1, 256)
    assert found(Matcher(16), as_tokens([*other, 7, *wanted])) == []


@pytest.mark.parametrize("gamma", [1, GAMMA_LONG])
def test_a_match_behind_hash_collisions_is_found(gamma: int) -> None:
    wanted = [1, 2, 3][:gamma]
    tails = colliding_with(as_tokens(wanted), CHAIN_DEPTH - 1, 256)
    others = [token for tail in tails for token in tail]
    tokens = as_tokens([*wanted, *others, *wanted])
    assert found(Matcher(128), tokens) == [(gamma, gamma)]


@settings(max_examples=200, deadline=None)
@given(histories(60), histories(60), st.integers(0, 60))
def test_after_a_reset_a_rewritten_history_is_matched_as_if_new(
    first: list[int], second: list[int], kept: int
) -> None:
    matcher, fresh = Matcher(128), Matcher(128)
    matcher.find(as_tokens(first))
    rewritten = as_tokens(first[:kept] + second)
    matcher.reset()
    assert found(matcher, rewritten) == found(fresh, rewritten)


@given(histories(60), st.integers(0, 59))
def test_a_history_that_got_shorter_is_matched_as_if_new(tokens: list[int], length: int) -> None:
    matcher, shorter = Matcher(64), as_tokens(tokens[:length])
    matcher.find(as_tokens(tokens))
    assert found(matcher, shorter) == found(Matcher(64), shorter)


@given(histories(60))
def test_a_history_that_stayed_the_same_is_matched_the_same(tokens: list[int]) -> None:
    matcher, array = Matcher(64), as_tokens(tokens)
    assert found(matcher, array) == found(matcher, array)


def test_candidates_are_views_until_the_next_call() -> None:
    matcher, tokens = Matcher(16), as_tokens([4, 4, 4, 5])
    sources, lengths = matcher.find(tokens[:3])
    kept = sources.copy(), lengths.copy()
    assert (kept[0].tolist(), kept[1].tolist()) == ([2, 1], [2, 1])
    later = matcher.find(tokens)[0]
    assert np.shares_memory(sources, matcher.find(tokens[:3])[0])
    assert len(later) == 0


def test_the_history_is_left_alone() -> None:
    tokens = as_tokens([1, 2, 3, 1, 2, 3])
    tokens.flags.writeable = False
    assert found(Matcher(8), tokens) == [(3, 3)]


def test_token_ids_of_large_vocabularies_match() -> None:
    big = np.iinfo(np.int32).max
    assert found(Matcher(8), as_tokens([big, big - 1, 0, big, big - 1])) == [(2, 2)]


def index_bytes(matcher: Matcher) -> int:
    return sum(part.nbytes for part in vars(matcher).values() if isinstance(part, np.ndarray))


@pytest.mark.parametrize("capacity", [4096, 8192, 8193, 16_383, 131_072, 100_000])
def test_the_index_takes_16_bytes_a_token_at_most(capacity: int) -> None:
    candidates = MAX_CANDIDATES * 2 * 4
    assert 8 * capacity < index_bytes(Matcher(capacity)) <= 16 * capacity + candidates


def test_the_index_does_not_grow() -> None:
    matcher, tokens = Matcher(2000), as_tokens(np.random.default_rng(0).integers(0, 9, 2000))
    before = index_bytes(matcher)
    for n in range(0, 2001, 10):
        matcher.find(tokens[:n])
    assert index_bytes(matcher) == before
