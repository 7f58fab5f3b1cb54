"""What is measured here, kept, and corrected while decoding: costs, threads, flash attention.

It knows engines and times; it does not know drafts, samplers or text.
"""

from __future__ import annotations

from copyspec_edge.tuning.cost import CPU_CURVE, FREE_ROWS, CostCurve, MeasuredCosts
from copyspec_edge.tuning.measured import cost_model, tuned_settings

__all__ = ["CPU_CURVE", "FREE_ROWS", "CostCurve", "MeasuredCosts", "cost_model", "tuned_settings"]
