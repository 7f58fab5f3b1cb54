"""ngram-mod in llama.cpp's server, written anew from its sources.

Sources, as of llama-cpp-python 0.3.36: llama.cpp, docs/speculative.md, common/ngram-mod.cpp and
common/speculative.cpp, which calls it. What these name the prompt of a step is the history without
its last token, the one just sampled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting import NO_DRAFT, Draft, compiled
from copyspec_edge.evaluation.ngrams import LastDraft, sure

_Table = npt.NDArray[np.int32]

_N_SLOTS = 1 << 22
_FACTOR = 6364136223846793005
_CHUNK = 32
_MOST_USED = 0.25
_LOW_SHARE, _LOW_STREAK = 0.25, 5


@compiled
def _slot(tokens: Tokens, start: int, n: int) -> int:
    value = np.uint64(0)
    for i in range(start, start + n):
        value = value * np.uint64(_FACTOR) + np.uint64(tokens[i])
    return int(value % np.uint64(_N_SLOTS))


@compiled
def _enter(history: Tokens, first: int, last: int, n: int, next_of: _Table) -> int:
    """Enter the n-grams that begin from `first` to before `last`; how many took an empty slot."""
    n_new = 0
    for start in range(first, last):
        slot = _slot(history, start, n)
        n_new += next_of[slot] == 0
        next_of[slot] = history[start + n] + 1
    return n_new


@compiled
def _follow(history: Tokens, n: int, n_min: int, n_max: int, next_of: _Table) -> Tokens:
    tokens = np.empty(n + n_max, np.int32)
    tokens[:n] = history[len(history) - n :]
    count = 0
    while count < n_max:
        entry = next_of[_slot(tokens, count, n)]
        if entry == 0:
            break
        tokens[n + count] = entry - 1
        count += 1
    return tokens[n : n + count] if count >= n_min else tokens[:0]


class NgramMod:
    """ngram-mod: from the hash of the last `n` tokens to the token after it, again and again.

    Drafts between `n_min` and `n_max` tokens. The table is kept from one conversation to the next;
    it is emptied when a quarter of it is used, and after five drafts in a row of which less than a
    quarter was accepted. Later n-grams replace earlier ones, and are entered in chunks.
    """

    def __init__(self, n: int, n_min: int, n_max: int) -> None:
        self._n, self._n_min, self._n_max = n, n_min, n_max
        self._last_draft = LastDraft()
        self._clear_table()
        self.reset()

    def draft(self, history: Tokens, limit: int) -> Draft:
        """Follow the table from the end of the history."""
        n, length = self._n, len(history) - 1
        self._judge(self._last_draft.accepted(history))
        if not self._begun:
            self._begin(history, length)
        if length < n:
            return NO_DRAFT
        if self._n_entered + _CHUNK < length:
            self._enter(history, length - n)
        tokens = _follow(history, n, self._n_min, self._n_max, self._next_of)
        self._n_last = len(tokens)
        return self._last_draft.remember(sure(tokens, limit), history)

    def reset(self) -> None:
        """The next history is a new conversation; the table is kept."""
        self._n_entered = 0
        self._begun = False
        self._n_last = 0
        self._last_draft.forget()

    def _begin(self, history: Tokens, length: int) -> None:
        self._begun = True
        if length >= self._n:
            self._enter(history, length - self._n)
        if self._n_used > _MOST_USED * _N_SLOTS:
            self._clear_table()

    def _enter(self, history: Tokens, end: int) -> None:
        self._n_used += _enter(history, self._n_entered, end, self._n, self._next_of)
        self._n_entered = end

    def _clear_table(self) -> None:
        self._next_of = np.zeros(_N_SLOTS, np.int32)  # token + 1, 0 where there is none
        self._n_used = self._n_low = 0

    def _judge(self, accepted: int | None) -> None:
        if accepted is None:
            return
        self._n_low = self._n_low + 1 if accepted < _LOW_SHARE * self._n_last else 0
        if self._n_low == _LOW_STREAK:
            self._clear_table()
            self._n_entered = 0
