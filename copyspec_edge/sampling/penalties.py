"""Penalties: lower the logits of recent tokens, as llama.cpp's sampler of that name does.

Here since llama.cpp looks every token of the vocabulary up among the recent ones, for each row.
"""

from __future__ import annotations

import numpy as np

from copyspec_edge.arrays import Row, Tokens
from copyspec_edge.sampling.params import SamplingParams


class Penalties:
    """The repeat, frequency and presence penalty on the last tokens.

    Args:
        params: how strong they are.
        prompt: the tokens before the answer, shape (n,).
        n_vocab: tokens of the vocabulary.
        last_n: how many tokens are recent, at least 1.
    """

    def __init__(self, params: SamplingParams, prompt: Tokens, n_vocab: int, last_n: int) -> None:
        self._repeat = np.float32(params.repeat_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._recent = np.zeros(last_n, np.int32)
        self._counts = np.zeros(n_vocab, np.float32)
        self._n_seen = 0
        for token in prompt[-last_n:].tolist():
            self.accept(token)

    def accept(self, token: int) -> None:
        """`token` was committed; the oldest of the recent ones is none any more."""
        at = self._n_seen % len(self._recent)
        if self._n_seen >= len(self._recent):
            self._counts[self._recent[at]] -= 1
        self._recent[at] = token
        self._counts[token] += 1
        self._n_seen += 1

    def lower(self, row: Row) -> Row:
        """A copy of a row of logits, shape (n_vocab,), with those of recent tokens changed."""
        recent = self._recent[: self._n_seen]
        logits = row[recent]
        scaled = np.where(logits <= 0, logits * self._repeat, logits / self._repeat)
        lowered: Row = row.copy()
        lowered[recent] = scaled - (self._counts[recent] * self._frequency + self._presence)
        return lowered
