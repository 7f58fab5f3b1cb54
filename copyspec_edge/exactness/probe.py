"""Finds which row counts give the same logits, bit for bit, on one engine.

A sequence is read the least number of rows at a time, and a digest of each logits row is kept.
Then it is read again and again in batches of all other counts, some with wrong tokens at their ends
that are rolled back, as decoding with copying does. A count is out at its first row that differs.

It knows an engine and tokens, not llama.cpp's settings, text or files.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.decoding import EngineLike
from copyspec_edge.exactness.certificate import fitting

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512)
PROBE_CONTEXT = 3072
_SCREEN_END = 64
_SHALLOW_END = 640
_DEEP_TOKENS = 160
# Tokens to read in batches of each count, in the range of that name.
_SCREEN_READ = 24
_SHALLOW_READ = 96
_DEEP_READ = 40
# What the later ranges take, in steps of the least rows, and what they may take.
_SHALLOW_STEPS = 900
_DEEP_STEPS = 2000
_LIMIT_SECONDS = 300.0

_Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a probe saw.

    Attributes:
        min_rows: rows that were read at a time for comparison.
        rows: the row counts that agree with that, ascending.
        chunks: the lengths of a prompt's batches that do, ascending.
        ranges: the positions (first, end) that were probed.
        n_compared: rows that were compared.
        excluded: for each count that disagrees what was seen.
    """

    min_rows: int
    rows: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    n_compared: int = 0
    excluded: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The most rows that agree; 0 where a prompt of any length cannot be read alike."""
        readable = set(range(self.min_rows, 2 * self.min_rows)) <= set(self.chunks)
        return max(self.rows, default=0) if readable else 0


def probe(
    engine: EngineLike, tokens: Tokens, *, min_rows: int, n_batch: int, thorough: bool = True
) -> Finding:
    """Find the counts that agree with reading `min_rows` rows at a time.

    Args:
        engine: its memory is overwritten, and empty afterwards.
        tokens: varied token ids that fill its context, shape (n,).
        min_rows: 1 or 2.
        n_batch: most tokens of one batch.
        thorough: go on behind the first tokens, as deep as a time limit allows.

    Returns:
        A finding of width 0 where copying is possible and no row count agrees with another.

    Raises:
        EngineError: llama.cpp failed.
    """
    run = _Probe(engine, tokens, min_rows, n_batch)
    least = min(1, engine.max_rows - 1)
    end = len(tokens) - 1
    later = (
        (0, min(_SHALLOW_END, end), _SHALLOW_READ, _SHALLOW_STEPS),
        (max(end - _DEEP_TOKENS, _SHALLOW_END), end, _DEEP_READ, _DEEP_STEPS),
    )
    try:
        step_seconds = run.cover(0, min(_SCREEN_END, end), _SCREEN_READ)
        for first, last, wanted, n_steps in later if thorough else ():
            is_affordable = n_steps * step_seconds < _LIMIT_SECONDS
            if run.finding().width > least and is_affordable and last - first >= _SCREEN_END:
                run.cover(first, last, wanted)
    finally:
        engine.truncate(0)
    finding = run.finding()
    return finding if finding.width > least else replace(finding, rows=(), chunks=())


class _SpoiledError(Exception):
    """What is in the memory is not what was compared with."""


class _Probe:
    def __init__(self, engine: EngineLike, tokens: Tokens, min_rows: int, n_batch: int) -> None:
        self._engine = engine
        self._tokens = tokens
        self._least = min_rows
        self._alive = {n for n in COUNTS if min_rows <= n <= min(n_batch, len(tokens) - 1)}
        self._digests: dict[int, bytes] = {}
        self._random = np.random.default_rng(0)
        self._ranges: list[tuple[int, int]] = []
        self._n_compared = 0
        self._excluded: list[str] = []
        self._before = min_rows

    def finding(self) -> Finding:
        chunks = tuple(sorted(self._alive))
        return Finding(
            min_rows=self._least,
            rows=tuple(n for n in chunks if n <= self._engine.max_rows),
            chunks=chunks,
            ranges=tuple(self._ranges),
            n_compared=self._n_compared,
            excluded=tuple(self._excluded),
        )

    def cover(self, start: int, end: int, wanted: int) -> float:
        """Compare between two positions; returns the seconds of a step of the least rows."""
        seconds = 0.0
        while self._least in self._alive:
            self._engine.truncate(0)
            try:
                self._read_to(start, mixed=True)
                began = time.perf_counter()
                self._read_reference(start, end)
                seconds = (time.perf_counter() - began) * self._least / (end - start)
                self._engine.truncate(0)
                self._walk(start, end, wanted)
            except _SpoiledError:
                continue
            self._ranges.append((start, end))
            break
        return seconds

    def _read_reference(self, start: int, end: int) -> None:
        for first in range(start, end, self._least):
            rows = self._read_least(first)
            self._digests.update({first + i: _digest(row) for i, row in enumerate(rows)})

    def _read_least(self, first: int) -> _Rows:
        return self._engine.eval(self._tokens[first : first + self._least], rows=self._least)

    def _read_to(self, position: int, *, mixed: bool) -> None:
        """Read or forget up to a position, in batches of any counts or of the greatest.

        Raises:
            _SpoiledError: there is no way to get there.
        """
        self._engine.truncate(position)
        sizes = [self._least]
        has_restarted = False
        while left := position - self._engine.n_past:
            past = self._engine.n_past
            fits = fitting(left, sorted(self._alive), self._least) or [self._least]
            sizes.append(int(self._random.choice(fits)) if mixed else max(fits))
            self._engine.eval(self._tokens[past : past + sizes[-1]], rows=self._least)
            self._engine.truncate(position)
            if self._engine.n_past <= past:
                if has_restarted:
                    self._drop(self._least, f"no batches end behind {position} tokens")
                    raise _SpoiledError
                has_restarted = True
                self._engine.truncate(0)
        if len(sizes) > 1:
            self._before = max(sizes)

    def _walk(self, start: int, end: int, wanted: int) -> None:
        """Read the tokens again, in batches of all counts, until each has read enough."""
        read = dict.fromkeys((n for n in sorted(self._alive) if n <= end - start), 0)
        position = end
        while pending := [n for n in read if n in self._alive and read[n] < wanted]:
            fits = [n for n in pending if position + n <= end]
            if not fits:
                position = start
                self._read_to(position, mixed=False)
                continue
            count = int(self._random.choice(fits))
            kept = self._compare(position, count)
            if not kept:
                position = end
                continue
            read[count] += kept
            position += kept
            self._engine.truncate(position)
            # Where a cut goes back to before the batch, decoding reads the next token with it.
            position += self._engine.n_past < position
            self._read_to(position, mixed=False)
            self._before = count

    def _compare(self, position: int, count: int) -> int:
        """Read a batch and compare its rows; returns the tokens kept, 0 if a row differs."""
        kept, rows = self._shape(count)
        wrong = self._random.choice(self._tokens, count - kept)
        batch = np.concatenate((self._tokens[position : position + kept], wrong))
        got = self._engine.eval(batch, rows=rows)
        first = position + count - rows
        for at in range(first, position + kept):
            self._n_compared += 1
            if _digest(got[at - first]) != self._digests[at]:
                self._exclude(position, count, at, got[at - first].copy())
                return 0
        return kept

    def _shape(self, count: int) -> tuple[int, int]:
        """(tokens kept, rows wanted): as a prompt is read, or as a draft is verified."""
        most = min(count, self._engine.max_rows)
        if count > most or self._random.random() < 0.25:
            return count, most if self._random.random() < 0.5 else min(self._least, most)
        some = int(self._random.integers(1, count + 1))
        return count if self._random.random() < 0.5 else some, count

    def _exclude(self, position: int, count: int, at: int, row: _Rows) -> None:
        """Find out whether this batch or the one before made the difference.

        Raises:
            _SpoiledError: not this one, so that the digests may be wrong too.
        """
        self._read_to(position, mixed=False)
        for first in range(position, at + 1, self._least):
            rows = self._read_least(first)
        again = rows[at - first]
        if _digest(again) == self._digests[at]:
            largest = np.abs(row - again).max()
            self._drop(count, f"{count} rows differ by {largest:.3g} behind {at} tokens")
        else:
            self._drop(self._before, f"{self._before} rows change what is behind {at} tokens")
            raise _SpoiledError

    def _drop(self, count: int, seen: str) -> None:
        self._alive.discard(count)
        self._excluded.append(seen)


def _digest(row: _Rows) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()
