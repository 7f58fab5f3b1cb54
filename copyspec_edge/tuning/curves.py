"""The curves that are built in: where nothing is measured, and to replay recordings on."""

from __future__ import annotations

from copyspec_edge.tuning.cost import CostCurve

# The kernels' own steps lie at 4, 8, 16 and 32 rows.
SHAPES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

# All rows cost the same, so that every draft is sent whole.
FREE_ROWS = CostCurve((1, 64), (1.0, 1.0))

# Like the 1 B model's below, without the dips that its kernels have.
CPU_CURVE = CostCurve(
    SHAPES, (1.0, 1.41, 1.64, 1.65, 2.08, 2.22, 3.03, 3.14, 4.6, 5.72, 8.27, 11.0)
)
# A GPU reads the weights once for all rows; what grows is the launch of other kernels.
GPU_CURVE = CostCurve(SHAPES, (1, 1.05, 1.075, 1.1, 1.125, 1.15, 1.2, 1.25, 1.375, 1.5, 1.75, 2))

# Time of a batch against plain decoding at its best, as measured on two x86-64 cores in use, beyond
# 48 rows on a straight line. The first is SmolLM2 padded to 1 B parameters.
_ROWS = (1, 2, 3, 4, 6, 8, 11, 16, 32, 48, 64)
REPLAY_CURVES = {
    "1b": CostCurve(_ROWS, (1.01, 1.41, 1.64, 1.33, 2.08, 2.22, 3.14, 3.03, 5.72, 8.27, 10.82)),
    "f16": CostCurve(_ROWS, (1.09, 1.45, 1.63, 1.79, 2.07, 2.29, 2.81, 3.34, 5.45, 7.76, 10.07)),
    "q4_0": CostCurve(_ROWS, (1.11, 1.46, 1.72, 1.72, 2.43, 2.62, 3.62, 3.90, 7.05, 10.0, 12.95)),
    "flat": GPU_CURVE,
}
