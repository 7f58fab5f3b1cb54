"""What verifying costs: time of a batch against its number of rows, corrected while decoding.

It knows times, neither tokens nor models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# The kernels' own steps lie at 4, 8, 16 and 32 rows; between these shapes nothing is gained.
SHAPES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

_LEARN = 0.1
_DRIFT = 0.02
_OUTLIER = 3.0
_PATIENCE = 32


@dataclass(frozen=True)
class CostCurve:
    """Time of one batch at a dozen numbers of rows.

    Attributes:
        rows: ascending from 1.
        seconds: for each of them. Only the ratios matter where the unit is not known.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    @cached_property
    def table(self) -> Floats:
        """Entry n is the cost of n rows, shape (rows[-1] + 1,); entry 0 is unused.

        Between two shapes it is the cost of the next one up, at which kernels step.
        """
        next_up = np.searchsorted(self.rows, np.arange(self.rows[-1] + 1))
        return np.asarray(self.seconds, np.float32)[next_up]


# Measured on a two-core x86-64 machine with a model of one billion parameters, Q4_0.
CPU_CURVE = CostCurve(
    SHAPES, (1.0, 1.41, 1.64, 1.65, 2.08, 2.22, 3.03, 3.14, 4.6, 5.72, 8.27, 11.0)
)
# A GPU reads the weights once for all rows; what grows is the launch of other kernels.
GPU_CURVE = CostCurve(
    SHAPES, (1.0, 1.1, 1.12, 1.15, 1.2, 1.3, 1.4, 1.5, 1.65, 1.8, 2.1, 2.4)
)


class CostModel:
    """A cost curve that follows the machine: clock, depth of the context, other load.

    Args:
        curve: where to start.
        in_seconds: whether its unit is known; else the first steps tell.
    """

    def __init__(self, curve: CostCurve, *, in_seconds: bool) -> None:
        self._rows = np.array(curve.rows)
        self._seconds = np.array(curve.seconds, np.float32)
        self._next_up = np.searchsorted(self._rows, np.arange(self._rows[-1] + 1))
        self._has_unit = in_seconds
        self._outliers: list[float] = []
        self.table: Floats = self._seconds[self._next_up]

    @property
    def curve(self) -> CostCurve:
        """The curve as it is now."""
        return CostCurve(tuple(map(int, self._rows)), tuple(map(float, self._seconds)))

    def observe(self, rows: int, seconds: float) -> float:
        """Take in a step of `rows` rows, and return its duration over the expected one."""
        shape = self._next_up[min(rows, len(self._next_up) - 1)]
        if not self._has_unit:
            self._seconds *= np.float32(seconds / self._seconds[shape])
            self._has_unit = True
        ratio = float(seconds / self._seconds[shape])
        if ratio > _OUTLIER:
            self._outliers.append(ratio)
            if len(self._outliers) >= _PATIENCE:
                self._seconds *= np.float32(np.median(self._outliers))
                self._outliers.clear()
        else:
            self._outliers.clear()
            self._seconds *= np.float32(1 + _DRIFT * (ratio - 1))
            self._seconds[shape] *= np.float32(1 + _LEARN * (ratio - 1))
        self.table = self._seconds[self._next_up]
        return ratio
