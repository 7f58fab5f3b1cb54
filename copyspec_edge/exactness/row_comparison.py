"""Compares batches of all counts with the least rows at a time, on one engine, row by row.

A sequence is read the least number of rows at a time, and a digest of each logits row is kept.
Then it is read again and again in batches of all other counts, some with wrong tokens at their ends
that are rolled back, as decoding with copying does. A count is out at its first row that differs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from copyspec_edge.arrays import Row, Rows, Tokens
from copyspec_edge.decoding import EngineLike
from copyspec_edge.exactness.certificate import fitting


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


class _SpoiledError(Exception):
    """What is in the memory is not what was compared with."""


class Walk:
    """Reads tokens again and again on one engine, and drops the counts that make a difference.

    Args:
        engine: its memory is overwritten.
        tokens: varied token ids that fill its context, shape (n,).
        min_rows: 1 or 2, what the others are compared with.
        counts: the row counts to compare.
    """

    def __init__(
        self, engine: EngineLike, tokens: Tokens, min_rows: int, counts: Iterable[int]
    ) -> None:
        self._engine = engine
        self._tokens = tokens
        self._least = min_rows
        self._alive = set(counts)
        self._digests: dict[int, bytes] = {}
        self._random = np.random.default_rng(0)
        self._ranges: list[tuple[int, int]] = []
        self._n_compared = 0
        self._excluded: list[str] = []
        self._before = min_rows

    def finding(self) -> Finding:
        """What was seen so far."""
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

    def _read_least(self, first: int) -> Rows:
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

    def _exclude(self, position: int, count: int, at: int, row: Row) -> None:
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


def _digest(row: Row) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()
