"""One conversation in two sessions, of which one never copies: every row and token compared.

It knows turns as tokens and what answers them, not where prompts come from.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from copyspec_edge.arrays import Row, Tokens, common_prefix
from copyspec_edge.decoding import EngineLike, History, StepCosts, decode
from copyspec_edge.drafting import Drafter, NoDrafter
from copyspec_edge.exactness.outcomes import Comparison, Difference
from copyspec_edge.sampling import Sampler


class ComparedEngine(EngineLike, Protocol):
    """What of an `Engine` is needed here."""

    n_vocab: int
    n_threads: int
    n_threads_batch: int


class ComparedSession(Protocol):
    """What of a `Session` is needed here."""

    drafter: Drafter

    @property
    def engine(self) -> ComparedEngine: ...  # noqa: D102

    @property
    def cost(self) -> StepCosts: ...  # noqa: D102

    @property
    def n_ctx(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Turn:
    """What is asked, and how it is answered.

    Attributes:
        prompt: token ids behind those of the conversation so far.
        sampler: makes a sampler for each of the answers.
        eog: tokens that end an answer.
        max_tokens: most tokens of an answer.
    """

    prompt: Tokens
    sampler: Callable[[], Sampler]
    eog: Container[int]
    max_tokens: int


class RecordingSampler:
    """Chooses as another sampler does, and keeps the rows."""

    def __init__(self, sampler: Sampler) -> None:
        self.rows: list[Row] = []
        self._sampler = sampler

    def choose(self, row: Row) -> int:
        """What the other takes."""
        self.rows.append(row.copy())
        return self._sampler.choose(row)

    def accept(self, token: int) -> None:
        """The other is told."""
        self._sampler.accept(token)

    def admits(self, draft: Tokens) -> int:
        """What the other admits."""
        return self._sampler.admits(draft)


@dataclass(frozen=True)
class _Answer:
    """`history` is the conversation up to its end."""

    history: Tokens
    tokens: Tokens
    rows: list[Row]
    drafted: int
    accepted: int


@dataclass(frozen=True)
class _Asked:
    """A turn behind `start` tokens, with the answer without copying."""

    number: int
    turn: Turn
    start: int
    tokens: Tokens
    plain: _Answer


class Twins:
    """Asks a session that does not copy, and has another one repeat its answers.

    What both have read stays read from turn to turn; the other one goes back for every repetition.

    Args:
        spell: the text of token ids.
    """

    def __init__(
        self,
        plain: ComparedSession,
        other: ComparedSession,
        spell: Callable[[Sequence[int]], str],
    ) -> None:
        self._sessions = plain, other
        self._spell = spell
        self._n_asked = 0
        self._asked: _Asked
        self.begin()

    def begin(self) -> None:
        """Start a new conversation."""
        self.history = self._read = np.empty(0, np.int32)
        for session in self._sessions:
            session.engine.truncate(0)

    def ask(self, turn: Turn) -> Tokens:
        """Answer without copying; returns the conversation up to the answer's end."""
        start, session = len(self.history), self._sessions[0]
        tokens = np.concatenate((self.history, turn.prompt))
        plain = _answer(session, tokens, turn, NoDrafter(), session.cost)
        self._asked = _Asked(self._n_asked, turn, start, tokens, plain)
        self._n_asked += 1
        self.history = plain.history
        return self.history

    def repeat(
        self, drafts: str, drafter: Drafter, cost: StepCosts, *, kept: int = 0
    ) -> Comparison:
        """Answer what was asked last again, with copying, and compare.

        Args:
            kept: how many tokens of the prompt need not be read again.
        """
        asked, session = self._asked, self._sessions[1]
        session.engine.truncate(min(common_prefix(self._read, asked.tokens), asked.start + kept))
        drafter.reset()
        other = _answer(session, asked.tokens, asked.turn, drafter, cost)
        self._read = other.history
        return self._compare(drafts, other, session.engine)

    def _compare(self, drafts: str, other: _Answer, engine: ComparedEngine) -> Comparison:
        plain, prompt = self._asked.plain, self._asked.number
        same = common_prefix(plain.tokens, other.tokens)
        compared = min(same + 1, len(plain.tokens), len(other.tokens))
        pairs = list(zip(plain.rows[:compared], other.rows[:compared], strict=True))
        gaps = [_largest_gap(a, b) for a, b in pairs if a.tobytes() != b.tobytes()]
        difference = None
        if compared > same:
            row, rounded = pairs[same]
            first, second = int(plain.tokens[same]), int(other.tokens[same])
            difference = Difference(
                prompt=prompt,
                drafts=drafts,
                position=same,
                plain=first,
                other=second,
                plain_text=self._spell([first]),
                other_text=self._spell([second]),
                margin=float(row[first] - row[second]),
                rounding=_largest_gap(row, rounded),
            )
        return Comparison(
            prompt=prompt,
            drafts=drafts,
            depth=len(other.history),
            n_threads=engine.n_threads,
            n_threads_batch=engine.n_threads_batch,
            tokens_compared=compared,
            drafted=other.drafted,
            accepted=other.accepted,
            rows_differing=len(gaps),
            max_logit_difference=max(gaps, default=0.0),
            difference=difference,
        )


def _answer(
    session: ComparedSession, asked: Tokens, turn: Turn, drafter: Drafter, cost: StepCosts
) -> _Answer:
    history = History(session.n_ctx)
    history.extend(asked)
    session.engine.truncate(len(asked) - 1)
    sampler = RecordingSampler(turn.sampler())
    steps = list(
        decode(
            session.engine,
            history,
            drafter=drafter,
            sampler=sampler,
            cost=cost,
            eog=turn.eog,
            max_tokens=turn.max_tokens,
        )
    )
    tokens = history.tokens.copy()
    return _Answer(
        tokens,
        tokens[len(asked) :],
        sampler.rows,
        sum(step.drafted for step in steps),
        sum(step.accepted for step in steps),
    )


def _largest_gap(first: Row, second: Row) -> float:
    return float(np.abs(first - second).max())
