"""Finds where the last tokens occurred before. Kernels on arrays; no notion of a model.

The index is the one LZ77 match finders use, twice: the last token, and a hash of the last
`GAMMA_LONG`, head chains of the earlier positions that follow the same tokens. The newest links of
both chains are the candidates, and comparing tokens backwards gives the length of each match, so a
hash collision costs time but is never a match. Method: CopySpec, arXiv 2502.08923, which takes the
first occurrence of a fixed number of tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting.compiled import compiled

GAMMA_LONG = 3
GAMMA_MAX = 48
CHAIN_DEPTH = 16
MAX_CANDIDATES = 2 * CHAIN_DEPTH

_Index = npt.NDArray[np.int32]


@compiled
def _bucket(tokens: Tokens, position: int, gamma: int, n_buckets: int) -> int:
    mixed = np.uint64(0)
    for i in range(position - gamma + 1, position + 1):
        mixed = (mixed ^ np.uint64(tokens[i])) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return int(mixed & np.uint64(n_buckets - 1))


@compiled
def _extend(tokens: Tokens, start: int, gamma: int, head: _Index, prev: _Index) -> None:
    """Enter the positions of the tokens from `start` on. `prev` ends a chain with -1."""
    for position in range(max(start, gamma - 1), len(tokens)):
        bucket = _bucket(tokens, position, gamma, len(head))
        prev[position] = head[bucket]
        head[bucket] = position


@compiled
def _match_length(tokens: Tokens, end: int, earlier: int) -> int:
    """How many tokens up to and including `earlier` equal those up to and including `end`."""
    length = 0
    while length < GAMMA_MAX and length <= earlier:
        if tokens[end - length] != tokens[earlier - length]:
            break
        length += 1
    return length


@compiled
def _walk(
    tokens: Tokens,
    gamma: int,
    below: int,
    head: _Index,
    prev: _Index,
    sources: _Index,
    lengths: _Index,
    count: int,
) -> int:
    """Append the matches of one chain whose length is from `gamma` to `below` - 1."""
    end = len(tokens) - 1
    if end < gamma:
        return count
    earlier = head[_bucket(tokens, end, gamma, len(head))]
    for _ in range(CHAIN_DEPTH + 1):
        if earlier < 0:
            break
        if earlier < end:
            length = _match_length(tokens, end, earlier)
            if gamma <= length < below:
                sources[count], lengths[count] = earlier + 1, length
                count += 1
        if count == len(sources):
            break
        earlier = prev[earlier]
    return count


class Matcher:
    """An index over a history of at most `capacity` tokens: 16 bytes a token, allocated once.

    Indexing costs O(1) a token and a search O(1), whatever the length of the history.
    """

    def __init__(self, capacity: int) -> None:
        n_buckets = 1 << max(8, capacity.bit_length() - 1)
        self._heads = np.full((2, n_buckets), -1, np.int32)
        self._prevs = np.full((2, capacity), -1, np.int32)
        self._n_indexed = 0
        self._sources = np.empty(MAX_CANDIDATES, np.int32)
        self._lengths = np.empty(MAX_CANDIDATES, np.int32)

    def reset(self) -> None:
        """Forget everything: the history was rewritten."""
        self._heads.fill(-1)
        self._n_indexed = 0

    def find(self, tokens: Tokens) -> tuple[_Index, _Index]:
        """Index what is new in `tokens` and return earlier matches of their end.

        Returns:
            (sources, lengths), views until the next call: `tokens[s - n:s]` equals the last n
            tokens, n from 1 to GAMMA_MAX. Long matches first, each kind from the newest on.
        """
        if len(tokens) < self._n_indexed:
            self.reset()
        count, below = 0, GAMMA_MAX + 1
        for chain, gamma in enumerate((GAMMA_LONG, 1)):
            head, prev = self._heads[chain], self._prevs[chain]
            _extend(tokens, self._n_indexed, gamma, head, prev)
            count = _walk(tokens, gamma, below, head, prev, self._sources, self._lengths, count)
            below = gamma
        self._n_indexed = len(tokens)
        return self._sources[:count], self._lengths[:count]
