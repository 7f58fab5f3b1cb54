from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.arrays import as_tokens
from copyspec_edge.drafting.acceptance import AcceptanceModel
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.draft_length import trim
from copyspec_edge.drafting.drafter import MAX_DRAFT
from copyspec_edge.evaluation.replay import replay
from copyspec_edge.evaluation.traces import TokenTrace
from copyspec_edge.tuning.curves import CPU_CURVE

EOG = 0


def copy_drafter(capacity: int = 256, model: AcceptanceModel | None = None) -> CopyDrafter:
    return CopyDrafter(capacity, frozenset({EOG}), model)


def blank() -> AcceptanceModel:
    """Estimates that know nothing: 0.5 for every token."""
    model = AcceptanceModel()
    model.weights[:] = 0
    model.squares[:] = 1
    return model


def first_accept(drafter: CopyDrafter, history: list[int]) -> float:
    return float(drafter.draft(as_tokens(history), 8).accept[0])


# What follows its end in its past is 3.
REPEATED = [1, 2, 3, 9, 8, 1, 2]


def test_drafts_what_followed_the_match_and_goes_on_reading_itself() -> None:
    draft = copy_drafter().draft(as_tokens(REPEATED), 9)
    assert draft.tokens.tolist() == [3, 9, 8, 1, 2, 3, 9, 8, 1]
    assert draft.source == "copy"
    assert len(draft.accept) == len(draft) == 9


def test_a_repeated_token_is_repeated() -> None:
    assert copy_drafter().draft(as_tokens([4, 7, 7]), 5).tokens.tolist() == [7] * 5


def test_nothing_is_drafted_where_nothing_matches() -> None:
    draft = copy_drafter().draft(as_tokens([1, 2, 3, 4]), 9)
    assert (len(draft), draft.source) == (0, "none")


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


def test_drafts_are_not_overwritten_by_later_ones() -> None:
    drafter = copy_drafter()
    draft = drafter.draft(as_tokens(REPEATED), 3)
    before = draft.tokens.tolist(), draft.accept.tolist()
    drafter.draft(as_tokens([*REPEATED, 5, 8, 1]), 3)
    assert (draft.tokens.tolist(), draft.accept.tolist()) == before


def test_a_longer_match_is_trusted_more_before_anything_was_learned() -> None:
    short = first_accept(copy_drafter(), REPEATED)
    longer = first_accept(copy_drafter(), [7, 6, 5, 4, 1, 2, 3, 9, 7, 6, 5, 4, 1, 2])
    assert 0 < short < longer < 1


# Twice the same four tokens went on with 30, and once, last, with 40.
VOTES = [*[11, 12, 13, 14, 30, 51], *[11, 12, 13, 14, 30, 52], *[11, 12, 13, 14, 40, 53]]


def test_of_equal_matches_the_continuation_that_several_agree_on_is_drafted() -> None:
    draft = copy_drafter().draft(as_tokens([*VOTES, 11, 12, 13, 14]), 1)
    assert draft.tokens.tolist() == [30]


def test_others_that_disagree_lower_the_trust_from_where_they_do() -> None:
    end = [11, 12, 13, 14]
    alone = copy_drafter().draft(as_tokens([*end, 20, 21, 22, 23, 50, *end]), 3)
    split = [*end, 20, 21, 22, 23, 50, *end, 20, 21, 77, 78, 51, *end]
    draft = copy_drafter().draft(as_tokens(split), 3)
    assert draft.tokens[:2].tolist() == alone.tokens[:2].tolist() == [20, 21]
    assert draft.accept[2] < alone.accept[2]
    assert draft.accept[2] < draft.accept[1]


# Two copies of one text that go on differently, and what comes before each.
SHARED = list(range(100, 112))
TWO = [*[201, 202, 203], *SHARED, 30, 31, 32, *[301, 302, 303], *SHARED, 40, 41, 42]


@pytest.mark.parametrize(
    ("begin", "token"), [([201, 202, 203], 30), ([301, 302, 303], 40)], ids=["first", "second"]
)
def test_the_copy_that_was_followed_is_preferred_to_another_as_long(
    begin: list[int], token: int
) -> None:
    """Behind a break both match equally long, and only where it copied from tells them apart."""
    drafter, history = copy_drafter(), [*TWO, 900, *begin]
    drafter.draft(as_tokens(history), 8)
    # One token is another than in both, so that neither match reaches back to `begin`.
    for new in [*SHARED[:2], 999, *SHARED[3:]]:
        history.append(new)
        draft = drafter.draft(as_tokens(history), 8)
    assert draft.tokens[0] == token


def test_a_new_answer_follows_no_old_copy() -> None:
    """The prompt between two answers is shorter than the proposal that was open before it."""
    followed, cut = copy_drafter(), copy_drafter()
    history = [*TWO, 900, 201, 202, 203]
    for drafter in (followed, cut):
        drafter.draft(as_tokens(history), MAX_DRAFT)
        drafter.draft(as_tokens([*history, *SHARED[:4]]), MAX_DRAFT)
    cut._offset = 0
    asked = [*history, *SHARED[:4], 777, 778, *SHARED[4:]]
    expected = cut.draft(as_tokens(asked), 1).accept
    assert followed.draft(as_tokens(asked), 1).accept == expected
    assert followed._answer_at == len(asked) - 1


def taught(came: Callable[[int], int]) -> float:
    """P(accepted) of the 3 behind a match of two tokens, after 12 others were followed by this."""
    drafter, history = copy_drafter(), [1, 2, 3]
    for i in range(12):
        history += [100 + i, 1, 2]
        drafter.draft(as_tokens(history), 1)
        history.append(came(i))
    drafter.reset()
    return first_accept(drafter, REPEATED)


def test_misses_teach_distrust_and_hits_teach_trust() -> None:
    untaught = first_accept(copy_drafter(), REPEATED)
    assert taught(lambda i: 200 + i) < untaught < taught(lambda _: 3)


def test_only_up_to_the_first_difference_is_learned() -> None:
    drafter = copy_drafter(model=blank())
    assert drafter.draft(as_tokens(REPEATED), 8).accept.tolist() == [0.5] * 8
    drafter.draft(as_tokens([*REPEATED, 3, 9, 77, 55]), 0)
    drafter.reset()
    learned = drafter.draft(as_tokens(REPEATED), 8).accept
    # Token and match length of the first and third are their own; those behind it too.
    assert learned[0] > 0.5
    assert learned[2] < 0.5


def test_what_lies_behind_the_difference_moves_no_weight() -> None:
    short, long = blank(), blank()
    for model, limit in ((short, 3), (long, 8)):
        drafter = copy_drafter(model=model)
        drafter.draft(as_tokens(REPEATED), limit)
        drafter.draft(as_tokens([*REPEATED, 3, 9, 77, 55]), 0)
    assert short.weights.any()
    assert (short.weights == long.weights).all()


def test_tokens_that_have_not_come_yet_are_not_learned_from() -> None:
    one, many = blank(), blank()
    for model, limit in ((one, 1), (many, 8)):
        drafter = copy_drafter(model=model)
        drafter.draft(as_tokens(REPEATED), limit)
        drafter.draft(as_tokens([*REPEATED, 3]), 0)
    assert one.weights.any()
    assert (one.weights == many.weights).all()


def test_a_proposal_that_was_not_sent_is_learned_from() -> None:
    model = blank()
    drafter = copy_drafter(model=model)
    assert len(drafter.draft(as_tokens(REPEATED), 8).head(0)) == 0
    drafter.draft(as_tokens([*REPEATED, 3]), 8)
    assert model.weights.sum() > 0


def test_a_proposal_is_learned_from_once() -> None:
    model = blank()
    drafter = copy_drafter(model=model)
    drafter.draft(as_tokens(REPEATED), 1)
    drafter.draft(as_tokens([*REPEATED, 3]), 0)
    once = model.weights.copy()
    assert once.any()
    for history in ([*REPEATED, 3], [*REPEATED, 3], [*REPEATED, 3, 9], [*REPEATED, 3, 9, 8]):
        drafter.draft(as_tokens(history), 0)
    assert (model.weights == once).all()


def test_asking_again_about_the_same_history_teaches_nothing() -> None:
    model = blank()
    drafter = copy_drafter(model=model)
    first = drafter.draft(as_tokens(REPEATED), 8)
    again = drafter.draft(as_tokens(REPEATED), 8)
    assert not model.weights.any()
    assert first.tokens.tolist() == again.tokens.tolist()


def test_a_reset_forgets_the_tokens_and_the_proposal_but_not_what_was_learned() -> None:
    model = blank()
    drafter = copy_drafter(model=model)
    drafter.draft(as_tokens(REPEATED), 1)
    drafter.draft(as_tokens([*REPEATED, 3]), 1)
    learned = model.weights.copy()
    drafter.reset()
    assert len(drafter.draft(as_tokens([1, 2]), 8)) == 0
    assert (model.weights == learned).all()
    drafter.reset()
    assert first_accept(drafter, REPEATED) > 0.5


def test_a_proposal_before_a_reset_is_not_learned_from() -> None:
    model = blank()
    drafter = copy_drafter(model=model)
    drafter.draft(as_tokens(REPEATED), 8)
    drafter.reset()
    drafter.draft(as_tokens([*REPEATED, 3, 9]), 0)
    assert not model.weights.any()


def test_a_reset_drafter_matches_the_rewritten_history() -> None:
    drafter = copy_drafter()
    drafter.draft(as_tokens(REPEATED), 4)
    drafter.reset()
    draft = drafter.draft(as_tokens([6, 5, 4, 30, 31, 32, 33, 6, 5]), 3)
    assert draft.tokens.tolist() == [4, 30, 31]


def test_drafters_given_one_model_learn_together() -> None:
    model = blank()
    first, second = copy_drafter(model=model), copy_drafter(model=model)
    first.draft(as_tokens(REPEATED), 1)
    first.draft(as_tokens([*REPEATED, 3]), 0)
    assert first_accept(second, REPEATED) > 0.5


def test_drafters_by_themselves_learn_alone() -> None:
    first, second = copy_drafter(), copy_drafter()
    untaught = first_accept(copy_drafter(), REPEATED)
    first.draft(as_tokens(REPEATED), 1)
    first.draft(as_tokens([*REPEATED, 4]), 0)
    assert first_accept(second, REPEATED) == untaught


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


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=60))
def test_a_draft_is_a_copy_of_what_followed_an_earlier_match(tokens: list[int]) -> None:
    drafted = copy_drafter().draft(as_tokens(tokens), 9).tokens.tolist()
    copies = []
    for source in range(1, len(tokens)):
        if tokens[source - 1] == tokens[-1]:
            read = list(tokens)
            for i in range(9):
                read.append(read[source + i])
            copies.append(read[len(tokens) :])
    assert drafted in (copies or [[]])


def test_a_full_history_of_the_longest_match_is_drafted() -> None:
    assert len(copy_drafter(200).draft(as_tokens([5] * 200), MAX_DRAFT)) == MAX_DRAFT


def breaking(n: int, gamma: int, seed: int = 0) -> list[int]:
    """A phrase of `gamma` tokens again and again, each time followed by something new."""
    random = np.random.default_rng(seed)
    text: list[int] = []
    while len(text) < n:
        text += [*range(10, 10 + gamma), *map(int, random.integers(1000, 30_000, 3))]
    return text[:n]


def follow(drafter: CopyDrafter, text: list[int], start: int) -> Iterable[tuple[float, int]]:
    """(accept of the first token or 0, how many tokens are worth sending) at each position."""
    for n in range(start, len(text)):
        draft = drafter.draft(as_tokens(text[:n]), MAX_DRAFT)
        first = float(draft.accept[0]) if len(draft) else 0.0
        yield first, len(trim(draft, CPU_CURVE))


def ends_of(gamma: int, n: int) -> range:
    """The positions behind each phrase of `breaking`."""
    return range(gamma, n, gamma + 3)


@pytest.mark.parametrize("gamma", [3, 5, 12])
def test_bad_luck_cools_it_down(gamma: int) -> None:
    n = 60 * (gamma + 3)
    seen = dict(enumerate(follow(copy_drafter(n), breaking(n, gamma), 1), start=1))
    behind = [seen[end] for end in ends_of(gamma, n) if end > gamma]
    assert all(n_sent == 0 for _, n_sent in behind[6:])
    assert all(accept < 0.3 for accept, _ in behind[15:])
    assert all(accept < 0.15 for accept, _ in behind[40:])
    assert behind[0][0] > 0.45


def test_where_nothing_came_true_for_long_nothing_is_sent_any_more() -> None:
    text = np.random.default_rng(1).integers(1, 9, 1500).tolist()
    sent = [n_sent for _, n_sent in follow(copy_drafter(1500), text, 1)]
    assert np.mean(np.array(sent[-500:]) > 0) < 0.02


def test_it_recovers_when_copies_come_true_again_although_nothing_was_sent() -> None:
    model = AcceptanceModel()
    n = 600
    bad = breaking(n, 5)
    drafter = copy_drafter(2000, model)
    for _ in follow(drafter, bad, 1):
        pass
    good = [*range(500, 560)]
    text = [*bad, *good, 3000, *good, 3001, *good]
    sent = [n_sent for _, n_sent in follow(drafter, text, n)]
    # In the third repetition most of it is sent, though none of what is drafted here is verified.
    assert sent[-60] == 0
    assert np.mean(np.array(sent[-50:-10]) >= 8) > 0.9


def eight_symbols(n: int) -> list[int]:
    return list(map(int, np.random.default_rng(5).integers(1, 9, n)))


def changing_period(n: int) -> list[int]:
    """A period that is repeated a few times, then another of another length."""
    random = np.random.default_rng(6)
    text: list[int] = []
    while len(text) < n:
        period = random.integers(1, 50, int(random.integers(2, 9))).tolist()
        text += period * int(random.integers(2, 4))
    return text[:n]


def mimicry(n: int) -> list[int]:
    """Repeats that break after 3 to 12 tokens, where the last ones broke later."""
    random = np.random.default_rng(7)
    phrase = random.integers(1, 4000, 12).tolist()
    text: list[int] = []
    while len(text) < n:
        length = int(random.integers(3, 13))
        text += [*phrase[:length], int(random.integers(5000, 30_000))]
    return text[:n]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: breaking(n, 2),
        lambda n: breaking(n, 3),
        lambda n: breaking(n, 5),
        lambda n: breaking(n, 12),
        eight_symbols,
        changing_period,
        mimicry,
    ],
    ids=["2", "3", "5", "12", "eight symbols", "periods", "mimicry"],
)
@pytest.mark.parametrize("length", [200, 1000])
def test_adversarial_texts_cost_little_more_than_plain_decoding(
    make: Callable[[int], list[int]], length: int
) -> None:
    text = as_tokens(make(length + 50))
    trace = TokenTrace("adversarial", text[:50], text[50:])
    tally = replay(copy_drafter(2048), trace, CPU_CURVE)
    assert tally.speedup(CPU_CURVE) >= 0.95


def spite(n: int, n_symbols: int, *, knows_all: bool) -> float:
    """Speed against plain decoding on a text that breaks each copy that is sent.

    `knows_all`: and that makes each copy come true that is not sent.
    """
    random, drafter, text, seconds = np.random.default_rng(0), copy_drafter(n), [1, 2, 3], 0.0
    while len(text) < n:
        draft = drafter.draft(as_tokens(text), MAX_DRAFT)
        sent = trim(draft, CPU_CURVE)
        seconds += float(CPU_CURVE.table[len(sent) + 1])
        if len(sent):
            text.append(int(draft.tokens[0]) % n_symbols + 1)
        elif knows_all and len(draft):
            text.append(int(draft.tokens[0]))
        else:
            text.append(int(random.integers(1, n_symbols + 1)))
    return (n - 3) / seconds


@pytest.mark.parametrize("n_symbols", [8, 50])
def test_a_text_that_breaks_whatever_is_sent_costs_little(n_symbols: int) -> None:
    assert spite(1000, n_symbols, knows_all=False) >= 0.95


@pytest.mark.parametrize("n_symbols", [2, 8, 50])
def test_even_spite_that_knows_every_draft_has_a_bounded_cost(n_symbols: int) -> None:
    assert spite(1000, n_symbols, knows_all=True) >= 0.75
