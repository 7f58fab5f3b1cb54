"""Finds where the last tokens occurred before. Kernels on arrays; no notion of a model.

The index is the one LZ77 match finders use: a hash of the last `GAMMA_MIN` tokens heads a chain of
earlier positions. Walking the newest links of a chain and comparing backwards gives the longest
earlier match among them. Tokens are compared, so a hash collision costs time but is never a match.
Method: CopySpec, arXiv 2502.08923, which takes the first occurrence of a fixed number of tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyspec_edge.history import Tokens
from copyspec_edge.kernel import kernel

GAMMA_MIN = 2
GAMMA_MAX = 48
CHAIN_DEPTH = 64

_Index = npt.NDArray[np.int32]


@kernel
def _bucket(first: int, second: int, mask: int) -> int:
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ np.uint64(second)) * np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed >> np.uint64(29)) & np.uint64(mask))


@kernel
def _extend(tokens: Tokens, start: int, head: _Index, prev: _Index) -> None:
    """Enter the positions that follow each pair of tokens, for the tokens from `start` on.

    `prev[p]` is the position before p that follows the same pair; -1 ends a chain.
    """
    for position in range(max(start, 1), len(tokens)):
        bucket = _bucket(tokens[position - 1], tokens[position], len(head) - 1)
        prev[position] = head[bucket]
        head[bucket] = position


@kernel
def _match_length(tokens: Tokens, end: int, earlier: int) -> int:
    """How many tokens up to and including `earlier` equal those up to and including `end`."""
    length = 0
    while length < GAMMA_MAX and length <= earlier:
        if tokens[end - length] != tokens[earlier - length]:
            break
        length += 1
    return length


@kernel
def _longest(tokens: Tokens, head: _Index, prev: _Index) -> tuple[int, int]:
    """(source, length): the copy would start at `source`; length 0 means no match."""
    end = len(tokens) - 1
    best_source, best_length = -1, 0
    if end < GAMMA_MIN:
        return best_source, best_length
    candidate = head[_bucket(tokens[end - 1], tokens[end], len(head) - 1)]
    for _ in range(CHAIN_DEPTH):
        if candidate < 0 or best_length == GAMMA_MAX:
            break
        if candidate < end:
            length = _match_length(tokens, end, candidate)
            if length >= GAMMA_MIN and length > best_length:
                best_source, best_length = candidate + 1, length
        candidate = prev[candidate]
    return best_source, best_length


@kernel
def copy_from(tokens: Tokens, source: int, count: int) -> Tokens:
    """The `count` tokens from `source` on; past the end the copy goes on reading itself."""
    out = np.empty(count, np.int32)
    for i in range(count):
        position = source + i
        out[i] = tokens[position] if position < len(tokens) else out[position - len(tokens)]
    return out


class Matcher:
    """An index over a history of at most `capacity` tokens: 8 to 12 bytes a token, allocated once.

    Indexing costs O(1) a token and a search O(1), whatever the length of the history.
    """

    def __init__(self, capacity: int) -> None:
        n_buckets = 1 << max(8, (capacity - 1).bit_length())
        self._head = np.full(n_buckets, -1, np.int32)
        self._prev = np.full(capacity, -1, np.int32)
        self._n_indexed = 0

    def reset(self) -> None:
        """Forget everything: the history was rewritten."""
        self._head.fill(-1)
        self._n_indexed = 0

    def find(self, tokens: Tokens) -> tuple[int, int]:
        """Index what is new in `tokens` and return the longest earlier match of their end.

        Returns:
            (source, length): `tokens[source - length:source]` equals the last `length` tokens;
            the most recent among the longest. (-1, 0) where nothing of at least GAMMA_MIN matches.
        """
        if len(tokens) < self._n_indexed:
            self.reset()
        _extend(tokens, self._n_indexed, self._head, self._prev)
        self._n_indexed = len(tokens)
        return _longest(tokens, self._head, self._prev)
