"""Parts that the baseline drafters share: where n-grams occur, and drafts without doubts."""

from __future__ import annotations

import numpy as np

from copyspec_edge.arrays import Tokens, common_prefix
from copyspec_edge.drafting import NO_DRAFT, Draft

NOTHING = NO_DRAFT.tokens


def sure(tokens: Tokens, limit: int) -> Draft:
    """A draft of at most `limit` of these tokens that claims to be right."""
    kept = tokens[: max(limit, 0)]
    return Draft(kept, np.ones(len(kept), np.float32), "baseline") if len(kept) else NO_DRAFT


class NgramPositions:
    """Where the n-grams of a growing history begin: the oldest place of each, or the latest."""

    def __init__(self, size: int, *, oldest: bool) -> None:
        self.size = size
        self._oldest = oldest
        self._start_of: dict[bytes, int] = {}
        self._n_entered = 0

    def extend(self, history: Tokens, end: int) -> None:
        """Enter the n-grams that lie in `history[:end]` and were not entered yet."""
        first, n_new = self._n_entered, end - self.size + 1 - self._n_entered
        if n_new <= 0:
            return
        raw = history[first:end].tobytes()
        width = self.size * history.itemsize
        for i in range(n_new):
            key = raw[i * history.itemsize : i * history.itemsize + width]
            if self._oldest:
                self._start_of.setdefault(key, first + i)
            else:
                self._start_of[key] = first + i
        self._n_entered += n_new

    def find(self, history: Tokens) -> int:
        """Where the last n-gram of `history` was entered to begin, -1 where it was not."""
        if len(history) < self.size:
            return -1
        return self._start_of.get(history[len(history) - self.size :].tobytes(), -1)

    def clear(self) -> None:
        """Forget everything."""
        self._start_of.clear()
        self._n_entered = 0


class LastDraft:
    """Remembers a draft, to tell at the next step how much of it was accepted."""

    def __init__(self) -> None:
        self._tokens, self._at = NOTHING, 0

    def remember(self, draft: Draft, history: Tokens) -> Draft:
        """Keep the draft of this history, and hand it on."""
        self._tokens, self._at = draft.tokens, len(history)
        return draft

    def accepted(self, history: Tokens) -> int | None:
        """How many of its tokens the history went on with; None where nothing was drafted."""
        if not len(self._tokens):
            return None
        return common_prefix(self._tokens, history[self._at :])

    def forget(self) -> None:
        """There is no last draft."""
        self._tokens = NOTHING
