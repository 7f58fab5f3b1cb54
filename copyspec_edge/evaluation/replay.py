"""Recorded answers decoded again without a model: what a drafter would gain on a cost curve.

At each step a drafter drafts, the recording says how much of it would have been accepted, and the
cost curve what the batch would have taken. No drafter knows where a recording ends: its room is
what is left of MAX_TOKENS and of the context. The first token of an answer comes from the prompt's
batch and is not counted. This module knows neither text nor where traces come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import MAX_ROWS, Tokens, common_prefix
from copyspec_edge.drafting import MAX_DRAFT, Drafter, trim
from copyspec_edge.evaluation.traces import N_CTX, TokenTrace
from copyspec_edge.tuning import CostCurve

MAX_TOKENS = 1024


@dataclass
class Tally:
    """What replaying one or more traces came to. `batches[r]` counts the steps of r rows."""

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    batches: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(MAX_ROWS + 1, np.int64))

    def add(self, other: Tally) -> None:
        """Count another's steps too."""
        self.tokens += other.tokens
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.batches += other.batches

    @property
    def steps(self) -> int:
        """How many batches were computed."""
        return int(self.batches.sum())

    def speedup(self, curve: CostCurve) -> float:
        """Time of a single row for each token, over the time of the steps."""
        return float(self.tokens * curve.table[1] / (self.batches @ curve.table))


def answer_tokens(trace: TokenTrace) -> tuple[Tokens, int]:
    """(tokens, first): prompt and answer up to the token limit, and the first position replayed."""
    most = min(len(trace.prompt) + MAX_TOKENS, N_CTX)
    return np.concatenate([trace.prompt, trace.output])[:most], len(trace.prompt) + 1


def replay(drafter: Drafter, trace: TokenTrace, curve: CostCurve | None) -> Tally:
    """Decode one recorded answer with a drafter.

    Args:
        curve: what the policy trims the drafts by; None: they are verified as they are.
    """
    tokens, first = answer_tokens(trace)
    room_end = min(len(trace.prompt) + MAX_TOKENS, N_CTX)
    tally, position = Tally(tokens=len(tokens) - first), first
    while position < len(tokens):
        limit = min(MAX_DRAFT, room_end - position - 1)
        draft = drafter.draft(tokens[:position], limit)
        if curve is not None:
            draft = trim(draft, curve)
        accepted = common_prefix(draft.tokens, tokens[position : position + MAX_ROWS])
        tally.batches[len(draft) + 1] += 1
        tally.drafted += len(draft)
        tally.accepted += accepted
        position += accepted + 1
    return tally


def replay_all(
    make: Callable[[], Drafter],
    traces: Sequence[TokenTrace],
    curve: CostCurve | None,
    *,
    carried: bool,
) -> dict[str, Tally]:
    """Tallies by task. `carried` keeps one drafter, reset for each trace, in their order."""
    tallies: dict[str, Tally] = {}
    drafter: Drafter | None = None
    for trace in traces:
        if carried and drafter is not None:
            drafter.reset()
        else:
            drafter = make()
        tallies.setdefault(trace.task, Tally()).add(replay(drafter, trace, curve))
    return tallies


def geometric_mean(values: Iterable[float]) -> float:
    """Of at least one value, all of them positive."""
    return math.exp(math.fsum(logs := [math.log(value) for value in values]) / len(logs))
