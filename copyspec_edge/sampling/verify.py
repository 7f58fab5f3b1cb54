"""Checks a draft against what a sampler chooses: the tokens that agree, and the one behind them."""

from __future__ import annotations

from collections.abc import Container

from copyspec_edge.arrays import Rows, Tokens, as_tokens
from copyspec_edge.sampling.sampler import Sampler


def verify(draft: Tokens, rows: Rows, sampler: Sampler, eog: Container[int]) -> Tokens:
    """The tokens one forward pass yields.

    Each row is sampled as if there were no draft; the first choice that differs from the draft
    is the correction and the last one. The output distribution is the model's own, one draw for
    each emitted token. An end-of-generation token ends it too.

    Args:
        draft: proposed tokens, shape (n,).
        rows: logits behind the last committed token and behind each drafted one,
            shape (at least n + 1, n_vocab).
        sampler: asked once per emitted token.
        eog: end-of-generation tokens.

    Returns:
        shape (from 1 to n + 1,).
    """
    chosen: list[int] = []
    for position in range(len(draft) + 1):
        token = sampler.choose(rows[position])
        sampler.accept(token)
        chosen.append(token)
        if token in eog or (position < len(draft) and token != draft[position]):
            break
    return as_tokens(chosen)
