"""ConstrainedSampler: logits processors, logit bias and a constraint around a selector."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from copyspec_edge.arrays import Row, Tokens
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.selectors import ChainSampler, GreedySampler


class Constraint(Protocol):
    """Which tokens may come next: a `Grammar` or a `SchemaConstraint`."""

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        ...

    def accept(self, token: int) -> None:
        """Go on behind `token`, which it allows."""
        ...

    def admits(self, draft: Tokens) -> int:
        """How many tokens of a draft may come next, one after the other."""
        ...

    def restrict(self, row: Row, n_decisive: int | None) -> Row:
        """The row with -inf for all tokens it does not allow; see `Grammar.restrict`."""
        ...


class ConstrainedSampler:
    """A selector on rows that processors and biases have changed, within a constraint.

    Asking about a whole vocabulary is slow: the selector chooses first, and once more among the
    allowed tokens where its choice is not one of them, as in llama.cpp.
    """

    def __init__(
        self,
        selector: GreedySampler | ChainSampler,
        params: SamplingParams,
        constraint: Constraint | None,
        prompt: Tokens,
        n_ctx: int,
    ) -> None:
        self._selector = selector
        self._constraint = constraint
        self._processors = params.logits_processors
        self._biased = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        self._committed = np.empty(n_ctx, np.int32)
        self._committed[: len(prompt)] = prompt
        self._n_committed = len(prompt)

    def choose(self, row: Row) -> int:
        """The selector's choice, among the allowed tokens."""
        row = self._changed(row)
        token = self._selector.choose(row)
        if self._constraint is None or self._constraint.allows(token):
            return token
        return self._selector.choose(self._constraint.restrict(row, self._selector.n_decisive))

    def accept(self, token: int) -> None:
        """Advance selector, constraint and the processors' view."""
        self._selector.accept(token)
        if self._constraint:
            self._constraint.accept(token)
        self._committed[self._n_committed] = token
        self._n_committed += 1

    def admits(self, draft: Tokens) -> int:
        """How many tokens of a draft the constraint allows one after the other."""
        return self._constraint.admits(draft) if self._constraint else len(draft)

    def _changed(self, row: Row) -> Row:
        if not (self._processors or len(self._biased)):
            return row
        row = row.copy()
        tokens = self._committed[: self._n_committed]
        tokens.flags.writeable = False
        for process in self._processors:
            changed = process(tokens, row)
            if changed is not None and changed is not row:
                row = _as_row(changed, len(row))
        row[self._biased] += self._bias
        return row


def _as_row(changed: object, n_vocab: int) -> Row:
    """A copy of what a processor returned, since it may keep that."""
    try:
        row = np.array(changed, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"a logits processor returned no row: {error}") from error
    if row.shape != (n_vocab,):
        raise InvalidInputError(
            f"a logits processor must return None or shape ({n_vocab},), not {row.shape}"
        )
    return row
