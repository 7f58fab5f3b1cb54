"""What verifying costs: time of a batch against its rows and depth, corrected while decoding.

It knows times, neither tokens nor models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from copyspec_edge.arrays import FloatArray
from copyspec_edge.decoding import StepCosts

# Shares of a step's surprise that go to all shapes and to its own.
_DRIFT = 0.1
_LEARN = 0.05
_OUTLIER = 3.0
_PATIENCE = 32
_SHAPE_PATIENCE = 8


@dataclass(frozen=True)
class CostCurve:
    """Time of one batch against its number of rows, at the given `rows` and linear in between.

    The unit does not matter, only the ratios. `rows` ascends from 1.

    Attributes:
        seconds: by `rows`, with nothing in the context.
        growth: seconds more for each token in the context, by `rows`; empty: none.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    growth: tuple[float, ...] = ()

    @cached_property
    def table(self) -> FloatArray:
        """Entry n is the cost of n rows, shape (rows[-1] + 1,); entry 0 is unused."""
        return np.interp(np.arange(self.rows[-1] + 1), self.rows, self.seconds).astype(np.float32)

    @cached_property
    def breaks(self) -> FloatArray:
        """Nothing is lost."""
        return np.zeros(self.rows[-1] + 1, np.float32)

    @property
    def curve(self) -> CostCurve:
        """Itself."""
        return self

    def at(self, depth: int) -> CostCurve:
        """The curve behind a context of `depth` tokens."""
        if not self.growth:
            return self
        deep = (s + depth * g for s, g in zip(self.seconds, self.growth, strict=True))
        return CostCurve(self.rows, tuple(deep))

    def observe(self, rows: int, seconds: float, *, depth: int) -> None:
        """A fixed curve learns nothing."""


class MeasuredCosts(StepCosts, Protocol):
    """Costs that come from a curve."""

    @property
    def curve(self) -> CostCurve:
        """The curve as it is now, at the depth of the last step."""
        ...


class StepTime(NamedTuple):
    """One step as it was observed.

    Attributes:
        slowness: its time over what was expected of it before the machine's pace was followed.
    """

    rows: int
    depth: int
    seconds: float
    slowness: float


@dataclass(frozen=True, slots=True)
class CostTable:
    """What batches cost at one depth; see `drafting.Costs`."""

    table: FloatArray
    breaks: FloatArray


class CostModel:
    """A cost curve that follows the machine: its clock and other load.

    All shapes follow every step, so that a faster or slower machine changes no ratio for long. A
    step far slower than expected teaches nothing, unless all of them are, or all of its shape.

    Args:
        curve: where to start.
        in_seconds: whether its unit is known; else the first step tells, and teaches no more.
        rereads: whether the accepted tokens of a draft that breaks have to be read again, with
            the two before and behind them, instead of a plain step.
        on_step: told of each other step.
    """

    def __init__(
        self,
        curve: CostCurve,
        *,
        in_seconds: bool,
        rereads: bool = False,
        on_step: Callable[[StepTime], None] | None = None,
    ) -> None:
        self._rows = curve.rows
        # Seconds with nothing in the context, and more for each token in it.
        growth = curve.growth or (0.0,) * len(curve.rows)
        self._times = np.array([curve.seconds, growth], np.float64)
        self._has_unit = in_seconds
        self._rereads = rereads
        self._on_step = on_step
        self._depth = 0
        self._pace = 1.0
        self._outliers: list[float] = []
        self._outliers_of_shape: list[list[float]] = [[] for _ in curve.rows]
        self._no_breaks = curve.breaks
        counts = np.arange(len(curve.table))
        self._nearest = np.abs(np.subtract.outer(counts, self._rows)).argmin(axis=1)
        # The tables are linear in the times of the shapes.
        units = np.eye(len(self._rows))
        self._to_table = np.stack([np.interp(counts, self._rows, unit) for unit in units])
        self._tables = self._times @ self._to_table

    @property
    def curve(self) -> CostCurve:
        """The curve as it is now, at the depth of the last step."""
        seconds = self._times[0] + self._depth * self._times[1]
        return CostCurve(self._rows, tuple(map(float, seconds)))

    def at(self, depth: int) -> CostTable:
        """What batches cost behind a context of `depth` tokens."""
        table = (self._tables[0] + depth * self._tables[1]).astype(np.float32)
        if not self._rereads:
            return CostTable(table, self._no_breaks)
        return CostTable(table, (table[2:] - table[1]).clip(min=0))

    def observe(self, rows: int, seconds: float, *, depth: int) -> None:
        """Correct the curve by a step of `rows` rows; rows beyond its end teach nothing."""
        if rows >= len(self._nearest) or seconds <= 0:
            return
        self._depth = depth
        slowness = seconds / float(self._tables[0, rows] + depth * self._tables[1, rows])
        if not self._has_unit:
            self._times *= slowness
            self._has_unit = True
        else:
            step = StepTime(rows, depth, seconds, slowness * self._pace)
            self._learn(int(self._nearest[rows]), slowness)
            if self._on_step:
                self._on_step(step)
        self._tables = self._times @ self._to_table

    def _learn(self, shape: int, slowness: float) -> None:
        if slowness > _OUTLIER:
            self._learn_outlier(shape, slowness)
            return
        self._outliers.clear()
        self._outliers_of_shape[shape].clear()
        if slowness < 1 / _OUTLIER and self._rows[shape] <= 2:
            # No accident makes a step fast: the unit was wrong, or the machine is free again.
            self._times *= slowness
            self._pace = min(self._pace, max(1.0, self._pace * slowness))
            return
        surprise = max(slowness, 1 / _OUTLIER)
        self._follow(surprise**_DRIFT)
        self._times[:, shape] *= surprise**_LEARN

    def _learn_outlier(self, shape: int, slowness: float) -> None:
        of_shape = self._outliers_of_shape[shape]
        self._outliers.append(slowness)
        of_shape.append(slowness)
        if len(self._outliers) == _PATIENCE:
            self._follow(float(np.median(self._outliers)))
            self._outliers.clear()
            for outliers in self._outliers_of_shape:
                outliers.clear()
        elif len(of_shape) >= max(_SHAPE_PATIENCE, 2 * len(self._outliers)):
            # Steps of other shapes came in between, and were as expected.
            self._times[:, shape] *= np.median(of_shape)
            of_shape.clear()

    def _follow(self, factor: float) -> None:
        """All steps take longer, or less long, at the machine's pace now."""
        self._times *= factor
        self._pace *= factor
