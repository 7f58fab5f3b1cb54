"""What may come next, how sure that is, and how much of it is worth verifying.

It knows tokens and costs; it does not know models, engines or text. The kernels are compiled with
Numba, which nothing outside this room imports.
"""

from __future__ import annotations

from copyspec_edge.drafting.acceptance import AcceptanceModel
from copyspec_edge.drafting.compiled import compiled
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.draft_length import Costs, trim
from copyspec_edge.drafting.drafter import MAX_DRAFT, NO_DRAFT, Draft, Drafter, NoDrafter
from copyspec_edge.drafting.warming import warm_up

__all__ = [
    "MAX_DRAFT",
    "NO_DRAFT",
    "AcceptanceModel",
    "CopyDrafter",
    "Costs",
    "Draft",
    "Drafter",
    "NoDrafter",
    "compiled",
    "trim",
    "warm_up",
]
