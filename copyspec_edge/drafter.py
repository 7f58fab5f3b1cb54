"""Says what may come next and how sure it is. It knows tokens, not models, costs or text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from copyspec_edge.history import Tokens
from copyspec_edge.kernel import kernel
from copyspec_edge.matcher import GAMMA_MAX, Matcher, copy_from

MAX_DRAFT = 63
_N_LENGTHS = GAMMA_MAX + MAX_DRAFT + 1

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed continuation.

    Attributes:
        tokens: token ids, shape (n,), n may be 0.
        accept: for each token P(accepted | all before it accepted), shape (n,).
        source: which drafter it comes from, for the statistics.
    """

    tokens: Tokens
    accept: Floats
    source: str

    def __len__(self) -> int:
        return len(self.tokens)

    def head(self, length: int) -> Draft:
        """The first `length` tokens of this draft."""
        return Draft(self.tokens[:length], self.accept[:length], self.source)


NO_DRAFT = Draft(np.empty(0, np.int32), np.empty(0, np.float32), "none")


class Drafter(Protocol):
    """Proposes continuations and learns by itself from what the history became."""

    def draft(self, history: Tokens, limit: int) -> Draft:
        """A continuation of `history` of at most `limit` tokens."""
        ...

    def reset(self) -> None:
        """The history was rewritten before its end."""
        ...


class NoDrafter:
    """Plain decoding."""

    def draft(self, history: Tokens, limit: int) -> Draft:
        """Never proposes anything."""
        return NO_DRAFT

    def reset(self) -> None:
        """Nothing is kept."""


def _length_bucket_table() -> npt.NDArray[np.int64]:
    edges = (3, 4, 5, 6, 8, 10, 13, 17, 25, 33, GAMMA_MAX, GAMMA_MAX + 16)
    return np.digitize(np.arange(_N_LENGTHS), edges)


_BUCKETS = _length_bucket_table()
# P(next token agrees) by match length bucket before anything was seen, worth _PRIOR_WEIGHT tokens.
_PRIOR = np.array(
    [0.35, 0.48, 0.58, 0.66, 0.72, 0.78, 0.83, 0.87, 0.90, 0.93, 0.95, 0.97, 0.98], np.float32
)
_PRIOR_WEIGHT = 12.0
_DECAY = 0.995


@kernel
def _learn(
    proposed: Tokens,
    became: Tokens,
    length: int,
    buckets: npt.NDArray[np.int64],
    agreed: Floats,
    seen: Floats,
) -> None:
    """Compare a proposal with the tokens that came, up to and including the first difference."""
    for i in range(min(len(proposed), len(became))):
        bucket = buckets[length + i]
        hit = proposed[i] == became[i]
        agreed[bucket] = agreed[bucket] * _DECAY + (1.0 if hit else 0.0)
        seen[bucket] = seen[bucket] * _DECAY + 1.0
        if not hit:
            break


class CopyDrafter:
    """Copies what followed the longest earlier occurrence of the last tokens.

    P(accepted) is counted per match length, which grows by one with every accepted token, from a
    prior and with slow forgetting. Proposals that were trimmed or never sent are learned from too.
    Method: CopySpec, arXiv 2502.08923; match length as evidence is ours.
    """

    def __init__(self, capacity: int, eog_tokens: frozenset[int]) -> None:
        self._matcher = Matcher(capacity)
        self._eog = np.array(sorted(eog_tokens), np.int32)
        self._agreed = _PRIOR * np.float32(_PRIOR_WEIGHT)
        self._seen = np.full(len(_PRIOR), _PRIOR_WEIGHT, np.float32)
        self._forget_proposal()

    def draft(self, history: Tokens, limit: int) -> Draft:
        """The copy after the longest match, cut after its first end-of-generation token."""
        self._learn_from(history)
        source, length = self._matcher.find(history)
        count = min(limit, MAX_DRAFT)
        if not length or count <= 0:
            return NO_DRAFT
        tokens = self._until_eog(copy_from(history, source, count))
        buckets = _BUCKETS[length : length + len(tokens)]
        accept = self._agreed[buckets] / self._seen[buckets]
        self._proposed, self._proposed_at, self._match_length = tokens, len(history), length
        return Draft(tokens, accept, "copy")

    def reset(self) -> None:
        """Index the history anew at the next draft; what was learned is kept."""
        self._matcher.reset()
        self._forget_proposal()

    def _forget_proposal(self) -> None:
        self._proposed = np.empty(0, np.int32)
        self._proposed_at = 0
        self._match_length = 0

    def _learn_from(self, history: Tokens) -> None:
        if len(self._proposed):
            became = history[self._proposed_at :]
            _learn(self._proposed, became, self._match_length, _BUCKETS, self._agreed, self._seen)
            self._forget_proposal()

    def _until_eog(self, tokens: Tokens) -> Tokens:
        ends = np.flatnonzero(np.isin(tokens, self._eog))
        return tokens[: ends[0] + 1] if len(ends) else tokens
