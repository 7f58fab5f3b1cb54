"""ngram-cache in llama.cpp's server, written anew from its sources.

Sources, as of llama-cpp-python 0.3.36: llama.cpp, docs/speculative.md, common/ngram-cache.cpp and
common/speculative.cpp, which calls it. What these name the prompt of a step is the history without
its last token, the one just sampled.
"""

from __future__ import annotations

import numpy as np

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting import Draft
from copyspec_edge.evaluation.ngrams import NOTHING, sure

# For n-grams of 1 to 4 tokens: least number of times seen, least share in per cent.
_ENOUGH = ((2, 66), (2, 50), (1, 50), (1, 50))


class NgramCache:
    """ngram-cache: the likeliest next token after the last 4, 3, 2 or 1 tokens, by their counts.

    The longest n-gram counts that was seen often enough and with one continuation often enough.
    Without static and dynamic caches, as the server runs it by default; `n_draft` is 8 there. Ties
    go to the continuation first seen last, as in the usual C++ library's hash map.
    """

    def __init__(self, n_draft: int) -> None:
        self._n_draft = n_draft
        self.reset()

    def draft(self, history: Tokens, limit: int) -> Draft:
        """Draft token after token, each from what is drafted before it."""
        self._count(history)
        drafted = self._tokens[-4:]
        first = len(drafted)
        while len(drafted) - first < self._n_draft:
            token = self._likeliest(drafted)
            if token is None:
                break
            drafted.append(token)
        return sure(np.array(drafted[first:], np.int32) if drafted[first:] else NOTHING, limit)

    def reset(self) -> None:
        """Count anew."""
        self._tokens: list[int] = []
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}

    def _count(self, history: Tokens) -> None:
        start = len(self._tokens)
        self._tokens.extend(history[start:].tolist())
        for end in range(start, len(self._tokens)):
            token = self._tokens[end]
            for size in range(1, min(4, end) + 1):
                counts = self._counts.setdefault(tuple(self._tokens[end - size : end]), {})
                counts[token] = counts.get(token, 0) + 1

    def _likeliest(self, tokens: list[int]) -> int | None:
        for size in range(min(4, len(tokens)), 0, -1):
            counts = self._counts.get(tuple(tokens[-size:]))
            if counts is None:
                continue
            most = max(counts.values())
            n_seen = sum(counts.values())
            least, share = _ENOUGH[size - 1]
            if n_seen >= least and 100 * most >= share * n_seen:
                return [token for token, count in counts.items() if count == most][-1]
        return None
