"""What verifying costs: time of a batch against its number of rows, corrected while decoding.

It knows times, neither tokens nor models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from copyspec_edge.arrays import FloatArray
from copyspec_edge.drafting import Costs

# The kernels' own steps lie at 4, 8, 16 and 32 rows.
SHAPES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

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
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

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

    def observe(self, rows: int, seconds: float) -> None:
        """A fixed curve learns nothing."""


class MeasuredCosts(Costs, Protocol):
    """Costs that come from a curve."""

    @property
    def curve(self) -> CostCurve:
        """The curve as it is now."""
        ...


# Measured on a two-core x86-64 machine with a model of one billion parameters, Q4_0.
CPU_CURVE = CostCurve(
    SHAPES, (1.0, 1.41, 1.64, 1.65, 2.08, 2.22, 3.03, 3.14, 4.6, 5.72, 8.27, 11.0)
)
# A GPU reads the weights once for all rows; what grows is the launch of other kernels.
GPU_CURVE = CostCurve(SHAPES, (1.0, 1.1, 1.12, 1.15, 1.2, 1.3, 1.4, 1.5, 1.65, 1.8, 2.1, 2.4))

# All rows cost the same, so that every draft is sent whole.
FREE_ROWS = CostCurve((1, 64), (1.0, 1.0))


class CostModel:
    """A cost curve that follows the machine: its clock, the depth of the context, other load.

    All shapes follow every step, so that a faster or slower machine changes no ratio for long. A
    step far slower than expected teaches nothing, unless all of them are, or all of its shape.

    Args:
        curve: where to start.
        in_seconds: whether its unit is known; else the first step tells, and teaches no more.
        rereads: whether the accepted tokens of a draft that breaks have to be read again, with
            the two before and behind them, instead of a plain step.
        on_step: told of each other step its duration over the expected one, and its duration.
    """

    def __init__(
        self,
        curve: CostCurve,
        *,
        in_seconds: bool,
        rereads: bool = False,
        on_step: Callable[[float, float], None] | None = None,
    ) -> None:
        self._rows = curve.rows
        self._seconds = np.array(curve.seconds, np.float64)
        self._has_unit = in_seconds
        self._rereads = rereads
        self._on_step = on_step
        self._outliers: list[float] = []
        self._outliers_of_shape: list[list[float]] = [[] for _ in curve.rows]
        self.table = curve.table
        self._no_breaks = curve.breaks
        counts = np.arange(len(self.table))
        self._nearest = np.abs(np.subtract.outer(counts, self._rows)).argmin(axis=1)
        # The table is linear in the times of the shapes.
        units = np.eye(len(self._rows))
        self._to_table = np.stack([np.interp(counts, self._rows, unit) for unit in units], axis=1)

    @property
    def curve(self) -> CostCurve:
        """The curve as it is now."""
        return CostCurve(self._rows, tuple(map(float, self._seconds)))

    @property
    def breaks(self) -> FloatArray:
        """Entry n is what is lost by a draft that breaks behind n accepted tokens."""
        if not self._rereads:
            return self._no_breaks
        breaks: FloatArray = self.table[2:] - self.table[1]
        return breaks.clip(min=0)

    def observe(self, rows: int, seconds: float) -> None:
        """Correct the curve by a step of `rows` rows; rows beyond its end teach nothing."""
        if rows >= len(self.table) or seconds <= 0:
            return
        slowness = seconds / float(self.table[rows])
        if not self._has_unit:
            self._seconds *= slowness
            self._has_unit = True
        else:
            self._learn(int(self._nearest[rows]), slowness)
            if self._on_step:
                self._on_step(slowness, seconds)
        self.table = (self._to_table @ self._seconds).astype(np.float32)

    def _learn(self, shape: int, slowness: float) -> None:
        if slowness > _OUTLIER:
            self._learn_outlier(shape, slowness)
            return
        self._outliers.clear()
        self._outliers_of_shape[shape].clear()
        if slowness < 1 / _OUTLIER and self._rows[shape] <= 2:
            # No accident makes a step fast: the unit was wrong.
            self._seconds *= slowness
            return
        surprise = max(slowness, 1 / _OUTLIER)
        self._seconds *= surprise**_DRIFT
        self._seconds[shape] *= surprise**_LEARN

    def _learn_outlier(self, shape: int, slowness: float) -> None:
        of_shape = self._outliers_of_shape[shape]
        self._outliers.append(slowness)
        of_shape.append(slowness)
        if len(self._outliers) == _PATIENCE:
            self._seconds *= np.median(self._outliers)
            self._outliers.clear()
            for outliers in self._outliers_of_shape:
                outliers.clear()
        elif len(of_shape) >= max(_SHAPE_PATIENCE, 2 * len(self._outliers)):
            # Steps of other shapes came in between, and were as expected.
            self._seconds[shape] *= np.median(of_shape)
            of_shape.clear()
