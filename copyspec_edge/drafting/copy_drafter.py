"""Drafts by copying what followed an earlier occurrence of the last tokens, and learns from it.

It joins the matcher's candidates, the choice among them and the accept model. It knows tokens,
not costs or text.
"""

from __future__ import annotations

import numpy as np

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting.acceptance import N_FEATURES, AcceptanceModel, learn
from copyspec_edge.drafting.compiled import compiled
from copyspec_edge.drafting.copy_choice import choose_copy, follow_copy
from copyspec_edge.drafting.drafter import MAX_DRAFT, NO_DRAFT, Draft
from copyspec_edge.drafting.matcher import Matcher


@compiled
def _count_agreeing(draft: Tokens, became: Tokens) -> int:
    count = 0
    while count < min(len(draft), len(became)) and draft[count] == became[count]:
        count += 1
    return count


class CopyDrafter:
    """Copies what followed an earlier occurrence of the last tokens.

    Among the occurrences it takes the one whose first token is the likeliest to be accepted. It
    learns from every proposal, also from those that were trimmed or never sent.

    Args:
        capacity: most tokens of a history.
        eog_tokens: a copy ends behind one of these.
        model: accept estimates to go on from; they are learned in place.
    """

    def __init__(
        self, capacity: int, eog_tokens: frozenset[int], model: AcceptanceModel | None = None
    ) -> None:
        self._matcher = Matcher(capacity)
        self._eog = np.array(sorted(eog_tokens), np.int32)
        self._model = model or AcceptanceModel()
        self._tokens = np.empty(MAX_DRAFT, np.int32)
        self._accept = np.empty(MAX_DRAFT, np.float32)
        self._slots = np.empty((MAX_DRAFT, N_FEATURES), np.int32)
        self._answer_at = 0
        self._offset = 0
        self._forget_proposal(0)

    def draft(self, history: Tokens, limit: int) -> Draft:
        """A copy of at most `limit` tokens, with the probability of each to be accepted."""
        self._look_back(history)
        self._forget_proposal(len(history))
        sources, lengths = self._matcher.find(history)
        count = min(limit, MAX_DRAFT)
        if not len(sources) or count <= 0:
            return NO_DRAFT
        written = len(history) - self._answer_at
        weights = self._model.weights
        chosen = choose_copy(
            history, sources, lengths, written, self._offset, weights, self._slots[0]
        )
        n = follow_copy(
            history,
            sources,
            lengths,
            chosen,
            written,
            self._offset,
            self._eog,
            weights,
            self._tokens[:count],
            self._accept,
            self._slots,
        )
        self._n_proposed, self._source = n, int(sources[chosen])
        return Draft(self._tokens[:n].copy(), self._accept[:n].copy(), "copy")

    def reset(self) -> None:
        """Index the history anew at the next draft; what was learned is kept."""
        self._matcher.reset()
        self._forget_proposal(0)

    def _forget_proposal(self, length: int) -> None:
        self._n_proposed = 0
        self._source = 0
        self._proposed_at = length

    def _look_back(self, history: Tokens) -> None:
        """Learn from the last proposal, and notice where an answer begins."""
        became = history[self._proposed_at :]
        agreed = _count_agreeing(self._tokens[: self._n_proposed], became)
        known = min(agreed + 1, self._n_proposed, len(became))
        model = self._model
        learn(self._accept[:known], self._slots, agreed, model.weights, model.squares)
        if len(became) > agreed + 1:
            # More than one step can give: a prompt was read.
            self._answer_at, self._offset = len(history) - 1, 0
        elif agreed:
            self._offset = self._proposed_at - self._source
