"""What all measurements share: engines that can be measured, tokens to read, and a stopwatch."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from copyspec_edge.arrays import Tokens
from copyspec_edge.decoding import EngineLike


class MeasurableEngine(EngineLike, Protocol):
    """An engine whose thread counts can be set."""

    n_ctx: int
    n_vocab: int
    n_threads: int
    n_threads_batch: int

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Use so many threads for one token, and for several, from now on."""
        ...


class VariedTokens:
    """Any token ids, but always the same ones in the same order."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._random = np.random.default_rng(0)

    def take(self, n_tokens: int) -> Tokens:
        """The next ones, shape (n_tokens,)."""
        return self._random.integers(0, self._n_vocab, n_tokens, np.int32)


def time_batch(engine: EngineLike, tokens: VariedTokens, rows: int) -> float:
    """Time a batch of which the first token stays read: a recurrent state keeps no less."""
    batch, past = tokens.take(rows), engine.n_past
    start = time.perf_counter()
    engine.eval(batch, rows=rows)
    seconds = time.perf_counter() - start
    engine.truncate(past + 1)
    return seconds
