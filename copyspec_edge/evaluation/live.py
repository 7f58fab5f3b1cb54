"""Trace-driven wall clock: recorded answers decoded with real forward passes.

Drafting, verification and rollback are real; only the choice at each row is the recorded token, so
the time is what it would be if this model wrote that answer. Contenders take turns on every trace
in one context, behind one reading of its prompt, and all repetitions of a trace start from what was
learned before it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import numpy as np

from copyspec_edge.arrays import Row, Tokens
from copyspec_edge.decoding import EngineLike, History, Step, decode
from copyspec_edge.drafting import Drafter, NoDrafter
from copyspec_edge.evaluation.baselines import Factory
from copyspec_edge.evaluation.traces import TokenTrace
from copyspec_edge.sampling import GreedySampler
from copyspec_edge.tuning import FREE_ROWS, MeasuredCosts

PLAIN = "plain"
OURS = "copyspec-edge"
PREFILL_TOKENS = 512


class ContextEngine(EngineLike, Protocol):
    """An engine that says how much it can read."""

    @property
    def n_ctx(self) -> int:
        """Most tokens of context."""
        ...


class RecordedSampler:
    """Says what was recorded, after looking at the row as a greedy sampler does."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._said = 0

    def choose(self, row: Row) -> int:
        """The next recorded token."""
        row.argmax()
        self._said += 1
        return int(self._tokens[self._said - 1])

    def accept(self, token: int) -> None:
        """Nothing depends on it."""

    def admits(self, draft: Tokens) -> int:
        """Any draft may be what was recorded."""
        return len(draft)


@dataclass
class Contender:
    """One way to decode, with what it has learned: both parts are kept from trace to trace."""

    name: str
    drafter: Drafter
    cost: MeasuredCosts


@dataclass
class Run:
    """What one contender did on one trace: the steps of each repetition."""

    task: str
    contender: str
    n_prompt: int
    repetitions: list[list[Step]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Median over the repetitions."""
        return median(sum(step.seconds for step in steps) for steps in self.repetitions)

    @property
    def steps(self) -> list[Step]:
        """The last repetition."""
        return self.repetitions[-1]

    @property
    def tokens(self) -> int:
        """Emitted tokens."""
        return sum(len(step.tokens) for step in self.steps)

    @property
    def answer(self) -> Tokens:
        """The emitted tokens, shape (n,)."""
        return np.concatenate([step.tokens for step in self.steps])


def contenders(
    others: Mapping[str, Factory],
    ours: Drafter,
    cost: MeasuredCosts,
    capacity: int,
    eog_tokens: frozenset[int],
) -> list[Contender]:
    """Plain decoding, ours, and others by name."""
    chosen = [Contender(PLAIN, NoDrafter(), FREE_ROWS), Contender(OURS, ours, cost)]
    for name, make in others.items():
        chosen.append(Contender(name, make(capacity, eog_tokens), FREE_ROWS))
    return chosen


def run_traces(
    engine: ContextEngine,
    traces: Sequence[TokenTrace],
    field_: Sequence[Contender],
    *,
    eog_tokens: frozenset[int],
    max_tokens: int,
    repetitions: int,
    free: bool,
) -> Iterator[Run]:
    """Decode every trace with every contender, in turns.

    Every repetition of a trace starts from what the contender had learned before that trace, and
    the next trace from what one repetition of it taught.

    Args:
        field_: the contenders; afterwards they are as the last trace left them.
        eog_tokens: the model's; one of them is put behind every recording.
        max_tokens: most tokens of one answer.
        free: let the model write its own greedy answers to the traces' prompts.
    """
    for trace in traces:
        engine.truncate(0)
        engine.eval(trace.prompt, rows=1)
        runs = [Run(trace.task, contender.name, len(trace.prompt)) for contender in field_]
        for repetition in range(repetitions):
            learners = [copy.deepcopy(contender) for contender in field_]
            for turn in range(len(field_)):
                index = (turn + repetition) % len(field_)
                steps = _answer(engine, trace, learners[index], eog_tokens, max_tokens, free)
                runs[index].repetitions.append(list(steps))
        for contender, learner in zip(field_, learners, strict=True):
            contender.drafter, contender.cost = learner.drafter, learner.cost
        yield from runs


def _answer(
    engine: ContextEngine,
    trace: TokenTrace,
    contender: Contender,
    eog_tokens: frozenset[int],
    max_tokens: int,
    free: bool,
) -> Iterator[Step]:
    """Decode one answer behind a prompt of which only the last token is unread."""
    history = History(engine.n_ctx)
    history.extend(trace.prompt)
    engine.truncate(len(trace.prompt) - 1)
    contender.drafter.reset()
    end = min(eog_tokens, default=0)
    recorded = RecordedSampler(np.append(trace.output[:max_tokens], np.int32(end)))
    return decode(
        engine,
        history,
        drafter=contender.drafter,
        sampler=GreedySampler() if free else recorded,
        cost=contender.cost,
        eog=eog_tokens | {end},
        max_tokens=max_tokens if free else engine.n_ctx,
    )


def prefill_speed(engine: ContextEngine, traces: Sequence[TokenTrace]) -> float:
    """Prompt tokens per second, on at most PREFILL_TOKENS of the traces' prompts."""
    prompts = np.concatenate([trace.prompt for trace in traces])
    tokens = prompts[: min(PREFILL_TOKENS, engine.n_ctx)]
    engine.truncate(0)
    start = time.perf_counter()
    engine.eval(tokens, rows=1)
    seconds = time.perf_counter() - start
    engine.truncate(0)
    return len(tokens) / seconds
