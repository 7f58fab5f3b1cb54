"""What decoding corrects of a measured cost curve, kept for the next sessions and processes.

It knows times, neither tokens nor models.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from copyspec_edge.host import read_json, write_json
from copyspec_edge.tuning.cost import CostCurve, StepTime

# A step further off says something of the machine at that moment, or of another load on it.
_BOUND = 1.5
_MOST = math.log(_BOUND)
# A deeper step says more about the context than about the rows.
_DEEPEST = 2048
# Steps after which the average of a shape forgets, and those that count as much as doubt.
_MEMORY = 64
_DOUBT = 8
_CHECK_STEPS = 64
_WORTH_WRITING = 1.05


class LearnedCosts:
    """The average share by which steps differ from a curve, by shape. Any thread may use it.

    A shape that was seen little differs like all of them together. No share is more than half.

    Args:
        measured: in seconds.
        path: read at first if it is about this curve; written when the shares have changed.
    """

    def __init__(self, measured: CostCurve, path: Path) -> None:
        self._measured = measured
        self._path = path
        self._lock = threading.Lock()
        known = read_json(path, self._parse)
        # Logarithms: what was known at first, and what the steps since then add to it.
        self._known = np.zeros(len(measured.rows)) if known is None else known
        self._mean = np.zeros(len(measured.rows))
        self._count = np.zeros(len(measured.rows))
        self._written = self._known
        self._seen = 0
        counts = np.arange(len(measured.table))
        self._nearest = np.abs(np.subtract.outer(counts, measured.rows)).argmin(axis=1).tolist()
        growth = measured.growth or (0.0,) * len(measured.rows)
        self._seconds, self._growth = measured.table, np.interp(counts, measured.rows, growth)

    @property
    def curve(self) -> CostCurve:
        """The measured curve as corrected."""
        with self._lock:
            factors = np.exp(self._shares())
        measured = self._measured
        return replace(
            measured,
            seconds=tuple(map(float, measured.seconds * factors)),
            growth=tuple(map(float, measured.growth * factors)) if measured.growth else (),
        )

    def observe(self, step: StepTime) -> None:
        """Learn from a step that was made at full speed; one far from expected teaches nothing."""
        rows, depth = step.rows, step.depth
        ratio = step.seconds / float(self._seconds[rows] + depth * self._growth[rows])
        if depth > _DEEPEST or not 1 / _BOUND <= ratio <= _BOUND:
            return
        shape = self._nearest[rows]
        with self._lock:
            self._count[shape] += 1
            share = max(1 / self._count[shape], 1 / _MEMORY)
            added = math.log(ratio) - self._known[shape]
            self._mean[shape] += share * (added - self._mean[shape])
            self._seen += 1
            if self._seen % _CHECK_STEPS == 0:
                self._write_if_changed()

    def _shares(self) -> npt.NDArray[np.float64]:
        """Logarithms of the corrections; a shape seen little adds what all of them add."""
        weight = self._count / (self._count.sum() + _DOUBT)
        overall = float(weight @ self._mean)
        certain = self._count / (self._count + _DOUBT)
        added = certain * self._mean + (1 - certain) * overall
        shares: npt.NDArray[np.float64] = np.clip(self._known + added, -_MOST, _MOST)
        return shares

    def _write_if_changed(self) -> None:
        shares = self._shares()
        if np.abs(shares - self._written).max() < math.log(_WORTH_WRITING):
            return
        self._written = shares
        write_json(
            self._path,
            {"measured": self._measured.seconds, "factors": np.exp(shares).round(4).tolist()},
        )

    def _parse(self, raw: dict[str, list[float]]) -> npt.NDArray[np.float64] | None:
        factors = np.array(raw["factors"], np.float64)
        is_about_this = tuple(raw["measured"]) == self._measured.seconds
        fits = is_about_this and factors.shape == (len(self._measured.rows),)
        sound = bool(((factors >= 1 / _BOUND) & (factors <= _BOUND)).all())
        return np.log(factors) if fits and sound else None
