"""Certificate: under which settings copying changes no bit, and how decoding keeps to them.

It knows row counts, costs and a file, not how a certificate is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from copyspec_edge.host import read_json, write_json
from copyspec_edge.settings import FlashAttention, KvType, Settings
from copyspec_edge.tuning import CostCurve, CostTable, MeasuredCosts


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What a probe found on one machine, with one build of llama.cpp and one model file.

    Attributes:
        reason: why there are no such settings; empty where there are.
        min_rows: least rows of a forward pass.
        rows: row counts of a forward pass whose logits agree bit for bit, ascending.
        chunks: lengths in which a prompt may be read, ascending; `rows` are among them.
        flash_attn, type_k, type_v, use_extra_bufts, n_threads, n_threads_batch, n_batch: the
            settings it holds for.
        ranges: the positions (first, end) that were probed.
        n_compared: logits rows that were compared.
        excluded: counts that disagree, each with what was seen.
    """

    reason: str
    min_rows: int
    rows: tuple[int, ...]
    chunks: tuple[int, ...]
    flash_attn: FlashAttention
    type_k: KvType
    type_v: KvType
    use_extra_bufts: bool
    n_threads: int
    n_threads_batch: int
    n_batch: int
    ranges: tuple[tuple[int, int], ...]
    n_compared: int
    excluded: tuple[str, ...]

    @property
    def depth(self) -> int:
        """How many tokens of context it was probed with."""
        return max((end for _, end in self.ranges), default=0)

    def apply(self, settings: Settings) -> Settings:
        """These settings, with the certified ones in their places."""
        return replace(
            settings,
            flash_attn=self.flash_attn,
            n_threads=self.n_threads,
            n_threads_batch=self.n_threads_batch,
            n_batch=self.n_batch,
            n_ubatch=self.n_batch,
        )

    def as_dict(self) -> dict[str, object]:
        """The attributes by name."""
        return asdict(self)


def read_certificate(path: Path, key: str) -> Certificate | None:
    """The certificate in a file, or None where there is none that was written whole for `key`."""

    def parse(raw: dict[str, Any]) -> Certificate | None:
        if raw["digest"] != _digest(key, raw["certificate"]):
            return None
        return Certificate(**{name: _frozen(value) for name, value in raw["certificate"].items()})

    return read_json(path, parse)


def write_certificate(path: Path, key: str, certificate: Certificate) -> None:
    """Keep a certificate under everything that it depends on."""
    content = json.loads(json.dumps(certificate.as_dict()))
    write_json(path, {"digest": _digest(key, content), "certificate": content})


def _digest(key: str, content: object) -> str:
    return hashlib.sha256(f"{key}\n{json.dumps(content, sort_keys=True)}".encode()).hexdigest()


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def split(n_tokens: int, chunks: Iterable[int], least: int) -> list[int]:
    """Lengths out of `chunks` that sum up to `n_tokens`, the longest first.

    Args:
        n_tokens: fewer than `least` stay together.
        chunks: lengths that may be read, those from `least` to 2 * least - 1 among them.
        least: least length of each.
    """
    sizes: list[int] = []
    left = n_tokens
    while left:
        sizes.append(max(fitting(left, chunks, least), default=left))
        left -= sizes[-1]
    return sizes


def fitting(n_tokens: int, chunks: Iterable[int], least: int) -> list[int]:
    """Which of `chunks` can come first of `n_tokens`, so that the rest can be read too."""
    return [c for c in chunks if least <= c <= n_tokens - least or c == n_tokens]


class CertifiedCosts:
    """Costs that forbid batches which are not certified, and charge for the least rows."""

    def __init__(self, costs: MeasuredCosts, certificate: Certificate) -> None:
        n = len(costs.curve.table)
        self._costs = costs
        self._counts = np.clip(np.arange(n), min(certificate.min_rows, n - 1), None)
        self._barred = np.full(n, np.inf, np.float32)
        allowed = (*range(certificate.min_rows), *certificate.rows)
        self._barred[[rows for rows in allowed if rows < n]] = 0

    @property
    def curve(self) -> CostCurve:
        """The curve as it is now, of all batches."""
        return self._costs.curve

    def at(self, depth: int) -> CostTable:
        """Behind `depth` tokens; infinite for a batch that must not be sent."""
        costs = self._costs.at(depth)
        return CostTable(costs.table[self._counts] + self._barred, costs.breaks)

    def observe(self, rows: int, seconds: float, *, depth: int) -> None:
        """A forward pass of `rows` rows behind `depth` tokens took this long."""
        self._costs.observe(rows, seconds, depth=depth)
