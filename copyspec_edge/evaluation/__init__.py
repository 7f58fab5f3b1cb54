"""What copying gains: recorded traces, rival drafters, replay, the oracle and reports.

It knows models and drafters from outside; nothing but commands and maintainers' scripts uses it.
"""

from __future__ import annotations

from copyspec_edge.evaluation import report
from copyspec_edge.evaluation.live import PLAIN, Run, contenders, prefill_speed, run_traces
from copyspec_edge.evaluation.rivals import NAMES, parse_names, rivals
from copyspec_edge.evaluation.sources import Sources
from copyspec_edge.evaluation.traces import TokenTrace, tokenized

__all__ = [
    "NAMES",
    "PLAIN",
    "Run",
    "Sources",
    "TokenTrace",
    "contenders",
    "parse_names",
    "prefill_speed",
    "report",
    "rivals",
    "run_traces",
    "tokenized",
]
