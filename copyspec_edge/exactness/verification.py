"""Does copying change what a model says? Greedy answers with and without it, compared row by row.

The prompts are turns of conversations that nearly fill the context, so that answers begin at all
depths, behind other answers, and behind what was rolled back. A small model's own copies are short
and few. So each answer is also decoded with forced drafts: the plain answer with some of its tokens
exchanged, which verifies and rolls back all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Protocol

import numpy as np

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting import NO_DRAFT, Draft
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.exactness.certificate import Certificate, CertifiedCosts
from copyspec_edge.exactness.outcomes import Comparison
from copyspec_edge.exactness.twins import ComparedSession, Turn, Twins
from copyspec_edge.sampling import GreedySampler
from copyspec_edge.tuning import FREE_ROWS, MeasuredCosts

_EXCHANGED = 0.08


class VerifiableSession(ComparedSession, Protocol):
    """What of a `Session` is needed here."""

    def close(self) -> None: ...  # noqa: D102


class VerifiableModel(Protocol):
    """What of a `Model` is needed here."""

    certificate: Certificate | None

    @property
    def eog_tokens(self) -> frozenset[int]: ...  # noqa: D102

    def session(self, *, copy: bool = True) -> VerifiableSession: ...  # noqa: D102

    def detokenize(self, token_ids: Sequence[int]) -> str: ...  # noqa: D102


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

    A prompt comes behind the answer to the one before, unless the context is too full. With
    `Settings(exact=True)` half of it is not read again for the forced drafts, so that how a prompt
    is read is compared too.

    Args:
        prompts: token ids of each.
        max_tokens: most tokens of an answer.

    Raises:
        InvalidInputError: a prompt leaves no room for an answer.
        EngineError: llama.cpp failed.
    """
    free: MeasuredCosts = FREE_ROWS
    if model.certificate:
        free = CertifiedCosts(free, model.certificate)
    with closing(model.session(copy=False)) as plain, closing(model.session()) as other:
        twins = Twins(plain, other, model.detokenize)
        for index, prompt in enumerate(prompts):
            if not 0 < len(prompt) < plain.n_ctx:
                raise InvalidInputError(
                    f"prompt {index + 1} has {len(prompt)} tokens and leaves no room for an "
                    f"answer in the context of {plain.n_ctx}"
                )
            if len(twins.history) + len(prompt) + max_tokens > plain.n_ctx:
                twins.begin()
            said = twins.ask(Turn(prompt, GreedySampler, model.eog_tokens, max_tokens))
            yield twins.repeat("copied", other.drafter, other.cost)
            forced = ForcedDrafter(said, other.engine.n_vocab, seed=index)
            kept = len(prompt) // 2 if model.certificate else 0
            yield twins.repeat("forced", forced, free, kept=kept)
