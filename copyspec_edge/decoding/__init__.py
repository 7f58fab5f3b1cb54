"""The loop: draft, verify in one batch, keep what agrees; the history, the steps and their sum.

It knows drafters, samplers and engines by their interfaces; it does not know text or files.
"""

from __future__ import annotations

from copyspec_edge.decoding.history import History
from copyspec_edge.decoding.loop import EngineLike, StepCosts, decode
from copyspec_edge.decoding.stats import Stats, Step, fold

__all__ = ["EngineLike", "History", "Stats", "Step", "StepCosts", "decode", "fold"]
