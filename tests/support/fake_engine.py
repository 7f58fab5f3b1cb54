"""An engine without llama.cpp: a tiny language whose next token depends on the last few tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.errors import (
    CancelledError,
    ContextFullError,
    EngineError,
    InvalidInputError,
    SessionClosedError,
)

Row = npt.NDArray[np.float32]
# "partly": the chunks before the last are read. "after": all of them are, and their logits lost.
Fault = Literal["before", "partly", "after", "nan"]


class Language(Protocol):
    n_vocab: int

    def row(self, tokens: Sequence[int]) -> Row: ...


class TinyLanguage:
    """Random logits behind each different tail of `order` tokens."""

    def __init__(
        self,
        n_vocab: int,
        *,
        order: int = 2,
        seed: int = 0,
        unlikely: frozenset[int] = frozenset(),
        never: frozenset[int] = frozenset(),
    ) -> None:
        self.n_vocab = n_vocab
        self._order = order
        self._seed = seed
        self._bias = np.zeros(n_vocab, np.float32)
        self._bias[sorted(unlikely)] = -3.0
        self._bias[sorted(never)] = -100.0
        self._rows: dict[tuple[int, ...], Row] = {}

    def row(self, tokens: Sequence[int]) -> Row:
        tail = tuple(tokens[-self._order :])
        if tail not in self._rows:
            random = np.random.default_rng([self._seed, *tail])
            self._rows[tail] = random.normal(0, 3, self.n_vocab).astype(np.float32) + self._bias
        return self._rows[tail]


class RecitingLanguage:
    """Says `script[n]` at position n, whatever came before."""

    def __init__(self, n_vocab: int, script: Sequence[int]) -> None:
        self.n_vocab = n_vocab
        self._script = list(script)

    def row(self, tokens: Sequence[int]) -> Row:
        row = np.zeros(self.n_vocab, np.float32)
        row[self._script[min(len(tokens), len(self._script) - 1)]] = 20.0
        return row


class FakeEngine:
    """Keeps the contract of `engine.Engine`, and the books for the tests.

    Args:
        can_truncate: whether any tail can be forgotten; else all is.
        checkpoints: whether it goes back to before the last batch of several rows instead.

    Attributes:
        tokens: what it has read and not forgotten.
        evaluations: how often each position was read.
        batch_sizes: the length of each batch it was asked to read.
        faults: what goes wrong at the k-th `eval`.
        is_cancelled: whether it stops at the next chunk.
        on_chunk: called with the number of each chunk before it is read.
    """

    def __init__(
        self,
        language: Language,
        *,
        n_ctx: int = 64,
        min_rows: int = 1,
        max_rows: int = 16,
        n_batch: int = 32,
        can_truncate: bool = True,
        checkpoints: bool = False,
    ) -> None:
        assert max_rows <= n_batch
        self.n_ctx = n_ctx
        self.n_vocab = language.n_vocab
        self.n_past = 0
        self.min_rows, self.max_rows = min_rows, max_rows
        self.tokens: list[int] = []
        self.evaluations: Counter[int] = Counter()
        self.batch_sizes: list[int] = []
        self.faults: dict[int, Fault] = {}
        self.on_chunk: Callable[[int], None] | None = None
        self.closed = False
        self.n_threads = self.n_threads_batch = 1
        self.rollback = "checkpoint" if checkpoints else "attention"
        self._language = language
        self._n_batch = n_batch
        self._can_truncate = can_truncate
        self._checkpoints = checkpoints
        self._saved = 0
        self.is_cancelled = False
        self._n_chunks = 0
        self._buffer = np.full((max_rows, self.n_vocab), np.nan, np.float32)

    def eval(self, tokens: Tokens, *, rows: int) -> Row:
        self._check(tokens, rows)
        fault = self.faults.get(len(self.batch_sizes))
        self.batch_sizes.append(len(tokens))
        self._buffer.fill(np.nan)
        if fault == "before":
            self._fail()
        while (left := len(tokens)) > self._n_batch:
            size = min(self._n_batch, left - rows)
            self._read(tokens[:size])
            tokens = tokens[size:]
        if fault == "partly":
            self._fail()
        if rows > 1:
            self._saved = self.n_past
        self._read(tokens)
        if fault == "after":
            raise EngineError("injected: no logits")
        self._fill(rows)
        if fault == "nan":
            self._buffer[rows // 2] = np.nan
        return self._buffer[:rows]

    def truncate(self, length: int) -> None:
        assert length >= 0
        if length < self.n_past:
            self.require_open()
            self._keep(self._kept(length))

    def cancel(self) -> None:
        self.is_cancelled = True

    def clear_cancel(self) -> None:
        self.is_cancelled = False

    def close(self) -> None:
        self.closed = True

    def _check(self, tokens: Tokens, rows: int) -> None:
        self.require_open()
        assert self.n_past == len(self.tokens)
        if not 1 <= rows <= min(len(tokens), self.max_rows):
            raise InvalidInputError(f"cannot give {rows} rows of {len(tokens)} tokens")
        if self.n_past + len(tokens) > self.n_ctx:
            raise ContextFullError(f"{self.n_past + len(tokens)} tokens do not fit")
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.n_vocab:
            raise InvalidInputError("token ids out of range")

    @property
    def is_open(self) -> bool:
        return not self.closed

    def admit(self) -> None:
        self.require_open()

    def require_open(self) -> None:
        if self.closed:
            raise SessionClosedError("closed")

    def _read(self, chunk: Tokens) -> None:
        if self.on_chunk:
            self.on_chunk(self._n_chunks)
        self._n_chunks += 1
        if self.is_cancelled:
            self._keep_on_failure()
            raise CancelledError("cancelled")
        self.evaluations.update(range(self.n_past, self.n_past + len(chunk)))
        self.tokens.extend(map(int, chunk))
        self.n_past = len(self.tokens)

    def _fill(self, rows: int) -> None:
        for index in range(rows):
            end = len(self.tokens) - rows + index + 1
            self._buffer[index] = self._language.row(self.tokens[:end])

    def _fail(self) -> None:
        self._keep_on_failure()
        raise EngineError("injected: decode failed")

    def _keep_on_failure(self) -> None:
        self._keep(self._kept(self.n_past))

    def _kept(self, length: int) -> int:
        """Where a cut to `length` lands."""
        if self._checkpoints:
            return self._saved if self._saved <= length else 0
        return length if self._can_truncate else 0

    def _keep(self, length: int) -> None:
        del self.tokens[length:]
        self.n_past = length
        self._saved = min(self._saved, length)
