"""Under which settings copying changes no bit: the probe, its certificate, and the check of it.

It knows engines, rows and settings; it does not know sessions, templates or commands.
"""

from __future__ import annotations

from copyspec_edge.exactness.certificate import Certificate, CertifiedCosts
from copyspec_edge.exactness.certify import load_certified
from copyspec_edge.exactness.exact_engine import ExactEngine
from copyspec_edge.exactness.outcomes import Comparison, Difference, summarize
from copyspec_edge.exactness.twins import Turn, Twins
from copyspec_edge.exactness.verification import ForcedDrafter, verify_copying
from copyspec_edge.exactness.verify_prompts import built_in_prompts, prompts_of

__all__ = [
    "Certificate",
    "CertifiedCosts",
    "Comparison",
    "Difference",
    "ExactEngine",
    "ForcedDrafter",
    "Turn",
    "Twins",
    "built_in_prompts",
    "load_certified",
    "prompts_of",
    "summarize",
    "verify_copying",
]
