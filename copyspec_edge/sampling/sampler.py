"""What chooses tokens from rows of logits, made from the parameters of an answer.

A sampler sees one row at a time, in order, and is told each token that is committed. What it draws
depends on the row, its seed and the tokens committed before, never on what was drafted.
"""

from __future__ import annotations

from typing import Protocol

from copyspec_edge.arrays import Row, Tokens
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.llama import Vocab
from copyspec_edge.sampling.constrained import ConstrainedSampler, Constraint
from copyspec_edge.sampling.grammar import Grammar
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.schema_constraint import SchemaConstraint
from copyspec_edge.sampling.selectors import ChainSampler, GreedySampler, is_greedy


class Sampler(Protocol):
    """Chooses one token from each row. `choose` may draw; `accept` commits."""

    def choose(self, row: Row) -> int:
        """The token for a row of logits, shape (n_vocab,)."""
        ...

    def accept(self, token: int) -> None:
        """`token` was committed."""
        ...

    def admits(self, draft: Tokens) -> int:
        """How many tokens of a draft can be chosen one after the other, at most."""
        ...


def make_sampler(params: SamplingParams, vocab: Vocab, prompt: Tokens, n_ctx: int) -> Sampler:
    """The sampler for one answer behind `prompt`, shape (n,), in a context of n_ctx tokens.

    Raises:
        InvalidInputError: a grammar, schema, bias or DRY breaker this model cannot use.
    """
    unknown = [token for token in params.logit_bias if token >= vocab.n_tokens]
    if unknown:
        raise InvalidInputError(
            f"logit_bias: token ids must be from 0 to {vocab.n_tokens - 1}, not {unknown[0]}"
        )
    greedy = is_greedy(params)
    selector = GreedySampler() if greedy else ChainSampler(params, vocab, prompt, n_ctx)
    constraint = _constraint(params, vocab)
    if constraint is None and not (params.logit_bias or params.logits_processors):
        return selector
    return ConstrainedSampler(selector, params, constraint, prompt, n_ctx)


def _constraint(params: SamplingParams, vocab: Vocab) -> Constraint | None:
    if params.grammar is None and params.json_schema is None:
        return None
    if not vocab.exists:
        raise InvalidInputError("this model has no tokenizer, so no grammar can be applied")
    if params.json_schema is not None:
        return SchemaConstraint(params.json_schema, vocab)
    return None if params.grammar is None else Grammar(params.grammar, vocab)
