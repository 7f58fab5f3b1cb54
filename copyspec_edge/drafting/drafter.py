"""Says what may come next and how sure it is. It knows tokens, not models, costs or text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from copyspec_edge.arrays import MAX_ROWS, FloatArray, Tokens

MAX_DRAFT = MAX_ROWS - 1


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed continuation.

    Attributes:
        tokens: token ids, shape (n,), n may be 0.
        accept: for each token P(accepted | all before it accepted), shape (n,).
        source: which drafter it comes from, for the statistics.
    """

    tokens: Tokens
    accept: FloatArray
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
