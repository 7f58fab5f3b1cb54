"""Trace-driven wall clock: recorded answers decoded with real forward passes.

Drafting, verification and rollback are real; only the choice at each row is the recorded token, so
the time is what it would be if this model wrote that answer. Contenders take turns on every trace
in one context, behind one reading of its prompt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from copyspec_edge.arrays import Row, Tokens
from copyspec_edge.decoding import History, Step, decode
from copyspec_edge.drafting import Costs, Drafter, NoDrafter
from copyspec_edge.evaluation.baselines import Factory
from copyspec_edge.evaluation.traces import TokenTrace
from copyspec_edge.llama import Engine
from copyspec_edge.sampling import GreedySampler
from copyspec_edge.tuning import FREE_ROWS

PLAIN = "plain"
OURS = "copyspec-edge"


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


@dataclass(frozen=True)
class Contender:
    """One way to decode: its drafter is kept from trace to trace and reset at each."""

    name: str
    drafter: Drafter
    cost: Costs


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
    cost: Costs,
    capacity: int,
    eog_tokens: frozenset[int],
) -> list[Contender]:
    """Plain decoding, ours, and others by name."""
    chosen = [Contender(PLAIN, NoDrafter(), FREE_ROWS), Contender(OURS, ours, cost)]
    for name, make in others.items():
        chosen.append(Contender(name, make(capacity, eog_tokens), FREE_ROWS))
    return chosen


def run_traces(
    engine: Engine,
    traces: Sequence[TokenTrace],
    field_: Sequence[Contender],
    *,
    eog_tokens: frozenset[int],
    max_tokens: int,
    repetitions: int,
    free: bool,
) -> Iterator[Run]:
    """Decode every trace with every contender, in turns.

    Args:
        eog_tokens: the model's; one of them is put behind every recording.
        max_tokens: most tokens of one answer.
        free: let the model write its own greedy answers to the traces' prompts.
    """
    end = np.int32(min(eog_tokens, default=0))
    for trace in traces:
        said = np.append(trace.output[:max_tokens], end)
        engine.truncate(0)
        engine.eval(trace.prompt, rows=1)
        runs = [Run(trace.task, contender.name, len(trace.prompt)) for contender in field_]
        for repetition in range(repetitions):
            for turn in range(len(field_)):
                index = (turn + repetition) % len(field_)
                sampler = GreedySampler() if free else RecordedSampler(said)
                steps = decode(
                    engine,
                    _start(engine, trace.prompt, field_[index]),
                    drafter=field_[index].drafter,
                    sampler=sampler,
                    cost=field_[index].cost,
                    eog=eog_tokens | {int(end)},
                    max_tokens=max_tokens if free else engine.n_ctx,
                )
                runs[index].repetitions.append(list(steps))
        yield from runs


def _start(engine: Engine, prompt: Tokens, contender: Contender) -> History:
    """The prompt as a history of which only the last token is unread."""
    history = History(engine.n_ctx)
    history.extend(prompt)
    engine.truncate(len(prompt) - 1)
    contender.drafter.reset()
    return history


def prefill_speed(engine: Engine, token: int, n_tokens: int = 256) -> float:
    """Prompt tokens per second."""
    tokens = np.full(min(n_tokens, engine.n_ctx), token, np.int32)
    engine.truncate(0)
    start = time.perf_counter()
    engine.eval(tokens, rows=1)
    seconds = time.perf_counter() - start
    engine.truncate(0)
    return len(tokens) / seconds
