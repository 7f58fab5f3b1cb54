"""What is measured here, kept, and corrected while decoding: costs, threads, flash attention.

It knows engines and times; it does not know drafts, samplers or text.
"""

from __future__ import annotations

from copyspec_edge.tuning.cost import CostCurve, CostTable, MeasuredCosts
from copyspec_edge.tuning.curves import FREE_ROWS
from copyspec_edge.tuning.model_tuning import ModelTuning, tuned_settings

__all__ = ["FREE_ROWS", "CostCurve", "CostTable", "MeasuredCosts", "ModelTuning", "tuned_settings"]
