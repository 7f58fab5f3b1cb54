from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.drafting.acceptance import (
    _LENGTH_EDGES,
    _N_DIAGONALS,
    _N_LENGTHS,
    _N_WRITTEN,
    LEARNING_RATE,
    N_FEATURES,
    N_PRIOR,
    N_SLOTS,
    NO_SHIFT,
    AcceptanceModel,
    Slots,
    _diagonal_bucket,
    _length_bucket,
    _written_bucket,
    find_features,
    learn,
    probability,
)
from copyspec_edge.host.data_files import data_file

slowly_compiled = settings(deadline=None)


def features(
    *,
    token: int = 7,
    previous: int = 8,
    length: int = 4,
    agree: int = 1,
    disagree: int = 1,
    written: int = 10,
    shift: int = 0,
    depth: int = 0,
) -> Slots:
    slots = np.full(N_FEATURES, -1, np.int32)
    find_features(slots, token, previous, length, agree, disagree, written, shift, depth)
    return slots


def blank() -> AcceptanceModel:
    model = AcceptanceModel()
    model.weights[:] = 0
    model.squares[:] = 1
    return model


@slowly_compiled
@given(st.lists(st.floats(-4, 4, width=32), min_size=N_FEATURES, max_size=N_FEATURES))
def test_a_probability_is_the_logistic_of_the_sum_of_the_weights(weights: list[float]) -> None:
    model, slots = blank(), features()
    model.weights[slots] = weights
    assert probability(slots, model.weights) == pytest.approx(
        1 / (1 + math.exp(-sum(weights))), rel=1e-4
    )


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 0.5), (1e6, 1.0), (-1e6, 0.0)])
def test_extreme_weights_give_a_probability_too(weight: float, expected: float) -> None:
    slots = features()
    assert probability(slots, np.full(N_SLOTS, weight, np.float32)) == expected


sizes = st.integers(0, 2**31 - 1)


@settings(max_examples=300, deadline=None)
@given(sizes, sizes, st.integers(1, 2**31 - 1), sizes, sizes, sizes, sizes, sizes)
def test_features_stay_in_their_own_parts_of_the_table(
    token: int,
    previous: int,
    length: int,
    agree: int,
    disagree: int,
    written: int,
    shift: int,
    depth: int,
) -> None:
    slots = features(
        token=token,
        previous=previous,
        length=length,
        agree=agree,
        disagree=disagree,
        written=written,
        shift=-shift if token % 2 else shift,
        depth=depth,
    )
    bounds = [0, 280, 280 + 112, N_PRIOR, N_PRIOR + 4096, N_SLOTS]
    assert [np.searchsorted(bounds, slot, side="right") - 1 for slot in slots] == [0, 1, 2, 3, 4]


ALL = {
    "length": [1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 25, 33, 48, 64],
    "agree": [0, 1, 2, 3, 6],
    "disagree": [0, 1, 2, 3],
    "written": [1, 5, 13, 33, 83, 210, 530, 2000],
    "shift": [0, 1, 100, NO_SHIFT],
    "depth": [0, 1, 2],
}


@pytest.mark.parametrize(
    ("slot", "names"),
    [
        (0, ("length", "agree", "disagree")),
        (1, ("length", "written")),
        (2, ("length", "shift", "depth")),
    ],
)
def test_each_combination_of_buckets_has_a_slot_of_its_own(
    slot: int, names: tuple[str, ...]
) -> None:
    combinations: list[dict[str, int]] = [{}]
    for name in names:
        combinations = [{**c, name: value} for c in combinations for value in ALL[name]]
    slots = {int(features(**combination)[slot]) for combination in combinations}
    assert len(slots) == len(combinations)
    for other in set(ALL) - set(names):
        changed = {int(features(**{other: value})[slot]) for value in ALL[other]}
        assert len(changed) == 1


def test_the_slots_of_all_combinations_fill_the_prior() -> None:
    sizes = {name: len(values) for name, values in ALL.items()}
    support = sizes["length"] * sizes["agree"] * sizes["disagree"]
    written = sizes["length"] * sizes["written"]
    diagonal = sizes["length"] * sizes["shift"] * sizes["depth"]
    assert support + written + diagonal == N_PRIOR


def test_tokens_have_slots_by_their_id_and_place() -> None:
    one, other = features(token=7, previous=8), features(token=8, previous=7)
    assert one[3] != other[3]
    assert one[4] != other[4]
    assert (one[:3] == other[:3]).all()
    assert len({int(features(token=token)[3]) for token in range(2000)}) > 1500


@slowly_compiled
@given(st.integers(0, 2**31 - 2))
def test_buckets_are_monotone(size: int) -> None:
    assert 0 <= _length_bucket(size) <= _length_bucket(size + 1) < _N_LENGTHS
    assert 0 <= _written_bucket(size) <= _written_bucket(size + 1) < _N_WRITTEN


def test_buckets_use_their_whole_range() -> None:
    assert {_length_bucket(n) for n in range(1, 100)} == set(range(_N_LENGTHS))
    assert {_written_bucket(n) for n in range(3000)} == set(range(_N_WRITTEN))
    assert [_length_bucket(edge) - _length_bucket(edge - 1) for edge in _LENGTH_EDGES] == [1] * 13


@slowly_compiled
@given(st.integers(0, 2**31 - 2))
def test_a_copy_further_off_the_last_one_is_in_no_closer_bucket(distance: int) -> None:
    assert _diagonal_bucket(distance) == _diagonal_bucket(-distance)
    assert _diagonal_bucket(distance) <= _diagonal_bucket(min(distance + 1, NO_SHIFT - 1)) <= 2


def test_the_diagonals() -> None:
    shifts = [0, 1, 12, 13, -12, NO_SHIFT - 1, NO_SHIFT]
    assert [_diagonal_bucket(shift) for shift in shifts] == [0, 1, 1, 2, 1, 2, 3]
    assert _N_DIAGONALS == 4


def learn_one(model: AcceptanceModel, slots: Slots, came_true: bool) -> float:
    """Learn from a draft of one token; returns how its probability changed."""
    before = probability(slots, model.weights)
    learn(np.array([before], np.float32), slots[None], int(came_true), model.weights, model.squares)
    return probability(slots, model.weights) - before


@pytest.mark.parametrize("came_true", [True, False])
def test_learning_moves_the_slots_touched_in_the_right_direction_and_no_others(
    came_true: bool,
) -> None:
    model, slots = AcceptanceModel(), features()
    weights, squares = model.weights.copy(), model.squares.copy()
    learn_one(model, slots, came_true)
    moved = np.flatnonzero(model.weights != weights)
    assert moved.tolist() == np.flatnonzero(model.squares != squares).tolist()
    assert moved.tolist() == sorted(slots.tolist())
    assert (np.sign(model.weights - weights)[slots] == (1 if came_true else -1)).all()
    assert (model.squares >= squares).all()


def test_the_step_is_that_of_adagrad() -> None:
    model, slots = blank(), features()
    learn_one(model, slots, True)
    assert model.squares[slots] == pytest.approx([1.25] * N_FEATURES)
    assert model.weights[slots] == pytest.approx([LEARNING_RATE * 0.5 / 1.25**0.5] * N_FEATURES)


def test_what_was_seen_more_often_moves_less() -> None:
    changes = []
    for square in (1.0, 10.0, 1000.0):
        model = blank()
        model.squares[:] = square
        changes.append(learn_one(model, features(), True))
    assert changes[0] > changes[1] > changes[2] > 0


def test_a_surprise_moves_more_than_what_was_expected() -> None:
    moved = []
    for came_true in (True, False):
        model = blank()
        model.weights[features()] = 0.4
        moved.append(abs(learn_one(model, features(), came_true)))
    assert moved[0] < moved[1]


@pytest.mark.parametrize(
    ("n_agreed", "signs"),
    [
        (0, [-1, 0, 0, 0]),
        (2, [1, 1, -1, 0]),
        (3, [1, 1, 1, -1]),
        (4, [1, 1, 1, 1]),
    ],
)
def test_tokens_before_the_break_came_true_and_the_one_at_it_did_not(
    n_agreed: int, signs: list[int]
) -> None:
    draft = [features(token=10 * i, previous=10 * i + 5, length=40) for i in range(4)]
    own = np.array([slots[3] for slots in draft])
    model = blank()
    known = min(n_agreed + 1, 4)
    accept = np.full(4, 0.5, np.float32)[:known]
    learn(accept, np.array(draft), n_agreed, model.weights, model.squares)
    assert np.sign(model.weights[own]).tolist() == signs


def test_nothing_known_teaches_nothing() -> None:
    model = blank()
    learn(np.empty(0, np.float32), features()[None], 0, model.weights, model.squares)
    assert not model.weights.any()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_probabilities_come_to_the_share_of_what_came_true(share: float) -> None:
    model, slots = AcceptanceModel(), features()
    random = np.random.default_rng(0)
    given_ = []
    for came_true in random.random(2000) < share:
        given_.append(probability(slots, model.weights))
        learn_one(model, slots, bool(came_true))
    assert np.mean(given_[500:]) == pytest.approx(share, abs=0.04)


def test_a_new_model_starts_with_the_shipped_prior_and_no_tokens() -> None:
    prior = json.loads(data_file("drafting/acceptance_prior.json").read_text(encoding="utf-8"))
    model = AcceptanceModel()
    assert model.weights.shape == model.squares.shape == (N_SLOTS,)
    assert model.weights[:N_PRIOR] == pytest.approx(prior["weights"])
    assert model.squares[:N_PRIOR] == pytest.approx(prior["squares"])
    assert not model.weights[N_PRIOR:].any()
    assert (model.squares[N_PRIOR:] == 1).all()


def test_models_do_not_share_what_they_learn() -> None:
    first, second = AcceptanceModel(), AcceptanceModel()
    learn_one(first, features(), True)
    assert (second.weights == AcceptanceModel().weights).all()


def test_the_shipped_prior_is_sane() -> None:
    prior = json.loads(data_file("drafting/acceptance_prior.json").read_text(encoding="utf-8"))
    assert sorted(prior) == ["squares", "weights"]
    assert len(prior["weights"]) == len(prior["squares"]) == N_PRIOR
    weights, squares = np.array(prior["weights"]), np.array(prior["squares"])
    assert np.isfinite(weights).all()
    assert np.abs(weights).max() < 8
    assert squares.min() >= 1
    assert 1 < squares.max() <= 10
    assert (weights != 0).mean() > 0.8


def accept(**arguments: int) -> float:
    return float(probability(features(**arguments), AcceptanceModel().weights))


def test_the_shipped_prior_trusts_what_should_be_trusted() -> None:
    assert (
        0.05 < accept(length=1, agree=0, disagree=5) < 0.5 < accept(length=40, agree=0, disagree=0)
    )
    assert accept(length=4, agree=4, disagree=0) > accept(length=4, agree=0, disagree=4)
    assert accept(length=17) > accept(length=2)
    assert accept(length=8, shift=0) > accept(length=8, shift=200)
