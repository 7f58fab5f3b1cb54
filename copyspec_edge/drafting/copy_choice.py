"""Which of several earlier occurrences to copy, and how sure each token of that copy is.

Kernels on arrays; they know candidates and accept estimates, not how candidates are found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import FloatArray, Tokens
from copyspec_edge.drafting.acceptance import NO_SHIFT, Slots, find_features, probability
from copyspec_edge.drafting.compiled import compiled

_Ints = npt.NDArray[np.int32]


@compiled
def _read(tokens: Tokens, draft: Tokens, position: int) -> int:
    """The token at a position; past the history's end the copy goes on reading itself."""
    past = position - len(tokens)
    return int(tokens[position] if past < 0 else draft[past])


@compiled
def choose_copy(
    tokens: Tokens,
    sources: _Ints,
    lengths: _Ints,
    written: int,
    offset: int,
    weights: FloatArray,
    slots: Slots,
) -> int:
    """The candidate whose first token is the likeliest to be accepted."""
    end = len(tokens)
    best, best_probability = 0, -1.0
    for one in range(len(sources)):
        agree = disagree = 0
        for other in range(len(sources)):
            if other != one and lengths[other] >= min(lengths[one], 2):
                same = tokens[sources[other]] == tokens[sources[one]]
                agree += same
                disagree += not same
        shift = end - sources[one] - offset if offset else NO_SHIFT
        token, previous = tokens[sources[one]], tokens[end - 1]
        find_features(slots, token, previous, lengths[one], agree, disagree, written, shift, 0)
        accept = probability(slots, weights)
        if accept > best_probability:
            best, best_probability = one, accept
    return best


@compiled
def follow_copy(
    tokens: Tokens,
    sources: _Ints,
    lengths: _Ints,
    chosen: int,
    written: int,
    offset: int,
    eog: Tokens,
    weights: FloatArray,
    draft: Tokens,
    accept: FloatArray,
    slots: Slots,
) -> int:
    """Fill `draft`, `accept` and `slots` with the chosen copy; returns its length.

    The occurrences that go on alike so far are counted again at every token. It ends behind its
    first end-of-generation token.
    """
    alive = lengths >= min(lengths[chosen], 2)
    alive[chosen] = False
    previous = tokens[len(tokens) - 1]
    shift = len(tokens) - sources[chosen] - offset if offset else NO_SHIFT
    for depth in range(len(draft)):
        token = _read(tokens, draft, sources[chosen] + depth)
        agree = disagree = 0
        for other in range(len(sources)):
            if alive[other]:
                alive[other] = _read(tokens, draft, sources[other] + depth) == token
                agree += alive[other]
                disagree += not alive[other]
        length = lengths[chosen] + depth
        at = slots[depth]
        find_features(at, token, previous, length, agree, disagree, written + depth, shift, depth)
        accept[depth] = probability(at, weights)
        draft[depth] = previous = token
        for end in eog:
            if token == end:
                return depth + 1
    return len(draft)
