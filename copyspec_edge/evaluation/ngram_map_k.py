"""ngram-map-k in llama.cpp's server, written anew from its sources.

Sources, as of llama-cpp-python 0.3.36: llama.cpp, docs/speculative.md, common/ngram-map.cpp and
common/speculative.cpp, which calls it. What these name the prompt of a step is the history without
its last token, the one just sampled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting import NO_DRAFT, Draft, compiled
from copyspec_edge.evaluation.ngrams import LastDraft, sure

_Slots = npt.NDArray[np.int32]

_SLOTS = 1 << 18
_FACTOR = 2654435761


@compiled
def _slot(tokens: Tokens, start: int, n: int) -> int:
    value = np.uint64(0)
    for i in range(start, start + n):
        value = (value * np.uint64(_FACTOR) + np.uint64(tokens[i])) & np.uint64(0xFFFFFFFF)
    return int(value % np.uint64(_SLOTS))


@compiled
def _same(tokens: Tokens, first: int, second: int, n: int) -> bool:
    i = 0
    while i < n and tokens[first + i] == tokens[second + i]:
        i += 1
    return i == n


@compiled
def _find(history: Tokens, n: int, n_begin: int, n_entered: int, last: int, slots: _Slots) -> int:
    """Where the key, the last n tokens, occurred in positions 1 to `last`; 0: nowhere.

    First the slot of its hash, then the positions that are not entered yet, newest first: those
    of the first prompt, of `n_begin` tokens, then those after it. They are entered where their
    slot is free. Positions from which a copy would leave the first prompt are never looked at.
    """
    key = len(history) - n
    candidate = slots[_slot(history, key, n)]
    found = 0
    if 0 < candidate < last and _same(history, candidate, key, n):
        found = candidate
    last_of_prompt = n_begin - (len(history) - 1 - last)
    for newest, oldest in ((last_of_prompt, n_entered), (last, max(n_begin, n_entered))):
        for position in range(newest, oldest, -1):
            if found == 0 and _same(history, position, key, n):
                found = position
            slot = _slot(history, position, n)
            if slots[slot] == 0:
                slots[slot] = position
    return found


class NgramMapK:
    """ngram-map-k: what followed an earlier occurrence of the key, the last `n` tokens.

    Drafts up to `m` tokens; for a key used before at most as many as were accepted the last time,
    so a key that failed at once is never used again.
    """

    def __init__(self, n: int, m: int) -> None:
        self._n, self._m = n, m
        self._slots = np.zeros(_SLOTS, np.int32)
        self._last_draft = LastDraft()
        self.reset()

    def reset(self) -> None:
        """Index anew; the next history is the first prompt and one token."""
        self._slots.fill(0)
        self._last_draft.forget()
        self._most_of: dict[bytes, int] = {}
        self._last_key = b""
        self._n_begin = -1
        self._n_entered = 0

    def draft(self, history: Tokens, limit: int) -> Draft:
        """Copy from behind the occurrence found, as far as it was right the last time."""
        n, m, length = self._n, self._m, len(history) - 1
        accepted = self._last_draft.accepted(history)
        if accepted is not None:
            self._most_of[self._last_key] = accepted
            self._last_draft.forget()
        if self._n_begin < 0:
            self._n_begin = length
        if length < 2 * n + m:
            return NO_DRAFT
        last = length - n - m - 1
        found = _find(history, n, self._n_begin, self._n_entered, last, self._slots)
        self._n_entered = max(self._n_entered, last)
        if not found:
            return NO_DRAFT
        self._last_key = history[-n:].tobytes()
        most = self._most_of.setdefault(self._last_key, m)
        copied = sure(history[found + n : found + n + most], limit)
        return self._last_draft.remember(copied, history)
