"""What copying gains: recorded answers, decoded again with a model or replayed on a cost curve.

`traces` says what a recorded answer is, `sources` where they come from; `live` decodes them by the
clock, `replay` without a model, `oracle` as fast as any copying could; `baselines` are the drafters
of others. It knows models and drafters from outside, and nothing but commands and maintainers'
scripts uses it.
"""

from __future__ import annotations

from copyspec_edge.evaluation import report
from copyspec_edge.evaluation.baseline_choice import NAMES, chosen_baselines, parse_names
from copyspec_edge.evaluation.live import (
    OURS,
    PLAIN,
    RecordedSampler,
    Run,
    contenders,
    prefill_speed,
    run_traces,
)
from copyspec_edge.evaluation.replay import replay_all
from copyspec_edge.evaluation.sources import Sources
from copyspec_edge.evaluation.traces import TokenTrace, tokenized

__all__ = [
    "NAMES",
    "OURS",
    "PLAIN",
    "RecordedSampler",
    "Run",
    "Sources",
    "TokenTrace",
    "chosen_baselines",
    "contenders",
    "parse_names",
    "prefill_speed",
    "replay_all",
    "report",
    "run_traces",
    "tokenized",
]
