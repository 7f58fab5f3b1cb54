"""Does copying change what a model says? Greedy answers with and without it, compared row by row.

A small model's own copies are short and few. So each answer is also decoded with forced drafts: the
plain answer with some of its tokens exchanged, which verifies and rolls back all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from copyspec_edge.arrays import Row, Tokens, common_prefix
from copyspec_edge.decoding import History, decode
from copyspec_edge.drafting import NO_DRAFT, Costs, Draft, Drafter, NoDrafter
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.exactness.certificate import Certificate, CertifiedCosts
from copyspec_edge.llama import Engine
from copyspec_edge.sampling import GreedySampler
from copyspec_edge.tuning import FREE_ROWS, MeasuredCosts

_EXCHANGED = 0.08


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer with copying first has another token.

    Attributes:
        prompt: its number, from 0.
        drafts: "copied" or "forced".
        position: of the token in the answer, from 0.
        plain, other: the two tokens, and `plain_text`, `other_text` what they spell.
        margin: how much likelier the model found the plain one, in logits of the plain row.
        rounding: the largest difference between the two rows, in logits.
    """

    prompt: int
    drafts: str
    position: int
    plain: int
    other: int
    plain_text: str
    other_text: str
    margin: float
    rounding: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One answer decoded twice.

    Attributes:
        prompt: its number, from 0.
        drafts: "copied" or "forced".
        tokens_compared: tokens, with the rows they were chosen from, up to the first difference.
        drafted, accepted: tokens proposed and verified, and how many of them were emitted.
        rows_differing: rows that are not bit for bit the same.
        max_logit_difference: the largest difference between two rows.
        difference: the first other token, or None.
    """

    prompt: int
    drafts: str
    tokens_compared: int
    drafted: int
    accepted: int
    rows_differing: int
    max_logit_difference: float
    difference: Difference | None


@dataclass
class _Answer:
    tokens: Tokens
    rows: list[Row]
    drafted: int
    accepted: int


class VerifiableSession(Protocol):
    """What of a `Session` is needed here."""

    engine: Engine
    drafter: Drafter
    cost: MeasuredCosts
    min_rows: int

    @property
    def n_ctx(self) -> int: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class VerifiableModel(Protocol):
    """What of a `Model` is needed here."""

    certificate: Certificate | None

    @property
    def eog_tokens(self) -> frozenset[int]: ...  # noqa: D102

    def session(self) -> VerifiableSession: ...  # noqa: D102

    def detokenize(self, token_ids: Sequence[int]) -> str: ...  # noqa: D102


class RecordingSampler(GreedySampler):
    """Takes the likeliest token and keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def choose(self, row: Row) -> int:
        """The token with the largest logit."""
        self.rows.append(row.copy())
        return super().choose(row)


class ForcedDrafter:
    """Proposes a known continuation of up to all lengths, some of its tokens exchanged.

    Args:
        known: the whole history as it is expected to become.
        n_vocab: what the exchanged tokens are drawn from.
    """

    def __init__(self, known: Tokens, n_vocab: int, seed: int = 0) -> None:
        self._known = known
        self._n_vocab = n_vocab
        self._random = np.random.default_rng(seed)

    def draft(self, history: Tokens, limit: int) -> Draft:
        """A continuation that is right for the most part."""
        if limit < 1:
            return NO_DRAFT
        length = int(self._random.integers(1, limit + 1))
        tokens = self._random.integers(0, self._n_vocab, length).astype(np.int32)
        known = self._known[len(history) : len(history) + length]
        keeps = self._random.random(len(known)) >= _EXCHANGED
        tokens[: len(known)][keeps] = known[keeps]
        return Draft(tokens, np.ones(length, np.float32), "forced")

    def reset(self) -> None:
        """Nothing is kept."""


def verify_copying(
    model: VerifiableModel, prompts: Iterable[Tokens], *, max_tokens: int
) -> Iterator[Comparison]:
    """Answer each prompt greedily without copying, with it, and with forced drafts.

    With `Settings(exact=True)` half of the prompt is not read again for the forced drafts, so
    that how a prompt is read is compared too.

    Args:
        prompts: token ids of each.
        max_tokens: most tokens of an answer.

    Raises:
        InvalidInputError: a prompt leaves no room for an answer.
        EngineError: llama.cpp failed.
    """
    with closing(model.session()) as session:
        flat: MeasuredCosts = FREE_ROWS
        if model.certificate:
            flat = CertifiedCosts(flat, model.certificate)
        for index, prompt in enumerate(prompts):
            if not 0 < len(prompt) < session.n_ctx:
                raise InvalidInputError(
                    f"prompt {index + 1} has {len(prompt)} tokens and leaves no room for an "
                    f"answer in the context of {session.n_ctx}"
                )
            start = _Start(session, prompt, model.eog_tokens, max_tokens)
            plain = start.answer(NoDrafter(), session.cost)
            copied = start.answer(session.drafter, session.cost)
            yield _compare(model, index, "copied", plain, copied)
            known = np.concatenate((prompt, plain.tokens))
            forced = ForcedDrafter(known, session.engine.n_vocab, seed=index)
            kept = len(prompt) // 2 if model.certificate else 0
            yield _compare(model, index, "forced", plain, start.answer(forced, flat, kept=kept))


@dataclass(frozen=True)
class _Start:
    """A prompt in a session, from which answers are decoded again and again."""

    session: VerifiableSession
    prompt: Tokens
    eog_tokens: frozenset[int]
    max_tokens: int

    def answer(self, drafter: Drafter, cost: Costs, *, kept: int = 0) -> _Answer:
        """Answer greedily; the first `kept` tokens of the prompt are not read again."""
        history = History(self.session.n_ctx)
        history.extend(self.prompt)
        self.session.engine.truncate(kept)
        drafter.reset()
        sampler = RecordingSampler()
        steps = list(
            decode(
                self.session.engine,
                history,
                drafter=drafter,
                sampler=sampler,
                cost=cost,
                eog=self.eog_tokens,
                max_tokens=self.max_tokens,
                min_rows=self.session.min_rows,
            )
        )
        return _Answer(
            history.tokens[len(self.prompt) :],
            sampler.rows,
            sum(step.drafted for step in steps),
            sum(step.accepted for step in steps),
        )


def _compare(
    model: VerifiableModel, prompt: int, drafts: str, plain: _Answer, other: _Answer
) -> Comparison:
    same = common_prefix(plain.tokens, other.tokens)
    compared = min(same + 1, len(plain.tokens), len(other.tokens))
    pairs = list(zip(plain.rows[:compared], other.rows[:compared], strict=True))
    differing = [pair for pair in pairs if pair[0].tobytes() != pair[1].tobytes()]
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
            plain_text=model.detokenize([first]),
            other_text=model.detokenize([second]),
            margin=float(row[first] - row[second]),
            rounding=float(np.abs(row - rounded).max()),
        )
    return Comparison(
        prompt=prompt,
        drafts=drafts,
        tokens_compared=compared,
        drafted=other.drafted,
        accepted=other.accepted,
        rows_differing=len(differing),
        max_logit_difference=max((float(np.abs(a - b).max()) for a, b in differing), default=0.0),
        difference=difference,
    )


def summarize(comparisons: Sequence[Comparison]) -> dict[str, object]:
    """The sums over all answers.

    `identical` is true where all tokens and all rows they were chosen from are the same bits.
    """
    differences = [c.difference for c in comparisons if c.difference]
    return {
        "identical": not any(c.rows_differing or c.difference for c in comparisons),
        "tokens_compared": sum(c.tokens_compared for c in comparisons),
        "rows_differing": sum(c.rows_differing for c in comparisons),
        "max_logit_difference": max((c.max_logit_difference for c in comparisons), default=0.0),
        "first_difference": asdict(differences[0]) if differences else None,
    }
