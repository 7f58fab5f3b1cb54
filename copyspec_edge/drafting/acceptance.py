"""How likely is a drafted token to be accepted? An online logistic model over sparse features.

It knows token ids and counts, not matchers or costs. Every drafted token has a handful of
features, each a slot in one table of weights; the probability is the logistic function of their
sum, and the weights follow what was accepted by AdaGrad (Duchi et al., JMLR 2011). What can be
said of any model is fitted offline (`bench/fit_priors.py`); what depends on the vocabulary starts
from nothing.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import FloatArray
from copyspec_edge.drafting.compiled import compiled
from copyspec_edge.host import data_file

Slots = npt.NDArray[np.int32]

N_FEATURES = 5
LEARNING_RATE = 0.25

_LENGTH_EDGES = (2, 3, 4, 5, 6, 8, 10, 13, 17, 25, 33, 48, 64)
_N_LENGTHS = len(_LENGTH_EDGES) + 1
_N_AGREE, _N_DISAGREE = 5, 4
_N_WRITTEN = 8
_N_DIAGONALS, _N_DEPTHS = 4, 3
_N_HASHES = 4096

_SUPPORT = 0
_WRITTEN = _SUPPORT + _N_LENGTHS * _N_AGREE * _N_DISAGREE
_DIAGONAL = _WRITTEN + _N_WRITTEN * _N_LENGTHS
N_PRIOR = _DIAGONAL + _N_LENGTHS * _N_DIAGONALS * _N_DEPTHS
_TOKEN = N_PRIOR
_PREVIOUS = _TOKEN + _N_HASHES
N_SLOTS = _PREVIOUS + _N_HASHES


@compiled
def _length_bucket(length: int) -> int:
    bucket = 0
    for edge in _LENGTH_EDGES:
        bucket += length >= edge
    return bucket


@compiled
def _written_bucket(written: int) -> int:
    bucket = 0
    while written > 4 and bucket < _N_WRITTEN - 1:
        written = written * 2 // 5
        bucket += 1
    return bucket


@compiled
def _diagonal_bucket(shift: int) -> int:
    """0: the copy goes on where the last one was; 1: close to it; 2: elsewhere; 3: no last one."""
    if shift == NO_SHIFT:
        return 3
    if shift == 0:
        return 0
    return 1 if abs(shift) <= 12 else 2


NO_SHIFT = np.iinfo(np.int32).max


@compiled
def _hash(token: int) -> int:
    return int(np.uint64(token) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)) % _N_HASHES


@compiled
def find_features(
    slots: Slots,
    token: int,
    previous: int,
    length: int,
    agree: int,
    disagree: int,
    written: int,
    shift: int,
    depth: int,
) -> None:
    """Fill `slots`, shape (N_FEATURES,), with the features of one drafted token.

    Args:
        token, previous: its id, and that of the token before it.
        length: tokens that match before it, drafted ones included.
        agree, disagree: other occurrences that go on with the same token, with another.
        written: tokens of the answer so far.
        shift: distance of this copy's offset from the last copy's, or NO_SHIFT.
        depth: how many drafted tokens stand before it.
    """
    long = _length_bucket(length)
    agreeing = agree if agree < 3 else (3 if agree < 6 else 4)
    support = agreeing * _N_DISAGREE + min(disagree, _N_DISAGREE - 1)
    diagonal = _diagonal_bucket(shift) * _N_DEPTHS + min(depth, _N_DEPTHS - 1)
    slots[0] = _SUPPORT + long * _N_AGREE * _N_DISAGREE + support
    slots[1] = _WRITTEN + _written_bucket(written) * _N_LENGTHS + long
    slots[2] = _DIAGONAL + long * _N_DIAGONALS * _N_DEPTHS + diagonal
    slots[3] = _TOKEN + _hash(token)
    slots[4] = _PREVIOUS + _hash(previous)


@compiled
def probability(slots: Slots, weights: FloatArray) -> float:
    """P(accepted) for one drafted token with these features."""
    total = np.float32(0.0)
    for slot in slots:
        total += weights[slot]
    return float(np.float32(1.0) / (np.float32(1.0) + np.exp(-total)))


@compiled
def learn(
    accept: FloatArray, slots: Slots, n_agreed: int, weights: FloatArray, squares: FloatArray
) -> None:
    """Learn from a draft of which the first `n_agreed` tokens came true.

    Args:
        accept: the probabilities given, for the tokens whose outcome is known: those that came
            true and, if the draft was not used up, the first that did not; shape (n,).
        slots: their features, shape (at least n, N_FEATURES).
        weights, squares: the model, changed in place.
    """
    for position in range(len(accept)):
        error = accept[position] - np.float32(position < n_agreed)
        for slot in slots[position]:
            squares[slot] += error * error
            weights[slot] -= np.float32(LEARNING_RATE) * error / np.sqrt(squares[slot])


class AcceptanceModel:
    """Weights of the model and the sums of squared gradients that set their learning rates.

    Attributes:
        weights, squares: shape (N_SLOTS,); the first N_PRIOR are fitted offline.
    """

    def __init__(self) -> None:
        self.weights = np.zeros(N_SLOTS, np.float32)
        self.squares = np.ones(N_SLOTS, np.float32)
        prior = json.loads(data_file("drafting/acceptance_prior.json").read_text(encoding="utf-8"))
        self.weights[:N_PRIOR] = prior["weights"]
        self.squares[:N_PRIOR] = prior["squares"]
