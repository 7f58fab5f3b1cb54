"""Drafters that know how the answer goes on without copying, and say something about it."""

from __future__ import annotations

from typing import Literal

import numpy as np

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting.drafter import NO_DRAFT, Draft
from copyspec_edge.tuning.curves import FREE_ROWS

Kind = Literal["right", "wrong", "partly", "eog", "random"]
KINDS: tuple[Kind, ...] = ("right", "wrong", "partly", "eog", "random")
# Here every drafted token is worth sending.
FLAT = FREE_ROWS


class ScriptedDrafter:
    """Drafts as many tokens as it may, each with P(accepted) = 1.

    Args:
        expected: the whole history as plain decoding leaves it.
        eog: an end-of-generation token for the middle of an "eog" draft.
    """

    def __init__(
        self, kind: Kind, expected: Tokens, *, n_vocab: int, eog: int, seed: int = 0
    ) -> None:
        self._kind = kind
        self._expected = expected
        self._n_vocab = n_vocab
        self._eog = eog
        self._random = np.random.default_rng(seed)

    def draft(self, history: Tokens, limit: int) -> Draft:
        if limit <= 0:
            return NO_DRAFT
        random = self._random.integers(0, self._n_vocab, limit).astype(np.int32)
        truth = self._expected[len(history) : len(history) + limit]
        tokens = truth.copy() if self._kind == "right" else random
        if self._kind in ("partly", "eog"):
            n_right = int(self._random.integers(0, limit + 1))
            tokens[: len(truth[:n_right])] = truth[:n_right]
        if self._kind == "eog":
            tokens[self._random.integers(0, limit)] = self._eog
        if self._kind == "wrong" and len(truth):
            tokens[0] = (truth[0] + 1) % self._n_vocab
        return Draft(tokens, np.ones(len(tokens), np.float32), "scripted")

    def reset(self) -> None:
        pass
