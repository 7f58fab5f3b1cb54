"""The loop: draft, verify in one batch, keep what agrees. It owns no state.

Invariants before and after every step: the engine holds a prefix of the history, at most all of it
but the last token; the history holds committed tokens only.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.decoding.history import History
from copyspec_edge.decoding.stats import Step
from copyspec_edge.drafting import NO_DRAFT, Costs, Draft, Drafter, trim
from copyspec_edge.sampling import Sampler, TokenLogprob, token_logprob, verify


class EngineLike(Protocol):
    """What the decoder needs of an engine; see `engine.Engine`."""

    n_past: int
    min_rows: int
    max_rows: int

    def eval(self, tokens: Tokens, *, rows: int) -> npt.NDArray[np.float32]:
        """Read tokens and give the logits of the last `rows`."""
        ...

    def truncate(self, length: int) -> None:
        """Forget what is behind the first `length` tokens."""
        ...


class StepCosts(Protocol):
    """What forward passes cost, learned from those that were made."""

    def at(self, depth: int) -> Costs:
        """What they cost behind a context of `depth` tokens."""
        ...

    def observe(self, rows: int, seconds: float, *, depth: int) -> None:
        """A forward pass of `rows` rows behind `depth` tokens took this long, and nothing else."""
        ...


def decode(
    engine: EngineLike,
    history: History,
    *,
    drafter: Drafter,
    sampler: Sampler,
    cost: StepCosts,
    eog: Container[int],
    max_tokens: int,
    logprobs: int | None = None,
) -> Iterator[Step]:
    """Continue `history`, one forward pass a step, and commit each step before yielding it.

    Ends behind an end-of-generation token, `max_tokens` tokens, or with a full history. Prefill
    and decode are one path: what the engine has not read of the history is read first. A draft
    never rides on a prompt, since that would change how its logits are rounded. Where fewer than
    `engine.min_rows` tokens are to be read, copies of the last one are read too and forgotten.

    Args:
        logprobs: look up the log-probability of each token and of so many likeliest ones.

    Raises:
        Whatever engine and sampler raise; the history then ends at the last committed token.
    """
    left = max_tokens
    while left > 0 and len(history) < history.capacity:
        started = time.perf_counter()
        depth = engine.n_past
        evaluated = len(history) - depth
        proposed = draft = NO_DRAFT
        if evaluated == 1:
            room = min(left, history.capacity - len(history), engine.max_rows)
            proposed = drafter.draft(history.tokens, room - 1)
            draft = _worthwhile(proposed, cost.at(depth), sampler)
        least = min(engine.min_rows, engine.max_rows, history.capacity - depth)
        padding = max(0, least - evaluated - len(draft))
        new, likely, forward_seconds = _forward(
            engine, history, draft.tokens, sampler, eog, least, padding, logprobs
        )
        left -= len(new)
        accepted = _count_accepted(draft, new)
        seconds = time.perf_counter() - started
        if evaluated == 1:
            cost.observe(len(draft) + 1 + padding, forward_seconds, depth=depth)
        declined = len(proposed) > len(draft) == 0
        yield Step(new, len(draft), accepted, draft.source, evaluated, seconds, declined, likely)
        if int(new[-1]) in eog:
            return


def _worthwhile(draft: Draft, cost: Costs, sampler: Sampler) -> Draft:
    """What of a draft pays and can be chosen at all."""
    draft = trim(draft, cost)
    possible = sampler.admits(draft.tokens) if len(draft) else 0
    return draft if possible == len(draft) else trim(draft.head(possible), cost)


def _forward(
    engine: EngineLike,
    history: History,
    draft: Tokens,
    sampler: Sampler,
    eog: Container[int],
    least: int,
    padding: int,
    n_top: int | None,
) -> tuple[Tokens, tuple[TokenLogprob, ...], float]:
    """The new tokens, what else was likely, and the seconds until the rows were there."""
    unread = history.tokens[engine.n_past :]
    pad = np.repeat(unread[-1:], padding)
    ahead = len(draft) + padding
    wanted = max(least, ahead + 1)
    tokens = np.concatenate((unread, draft, pad))
    try:
        started = time.perf_counter()
        rows = engine.eval(tokens, rows=wanted)
        seconds = time.perf_counter() - started
        rows = rows[wanted - ahead - 1 :]
        new = verify(draft, rows, sampler, eog)
        likely = () if n_top is None else _look_up(rows, new, n_top)
        history.extend(new)
    finally:
        engine.truncate(len(history) - 1)
    return new, likely, seconds


def _look_up(rows: npt.NDArray[np.float32], new: Tokens, n_top: int) -> tuple[TokenLogprob, ...]:
    tokens = new.tolist()
    return tuple(token_logprob(rows[i], token, n_top) for i, token in enumerate(tokens))


def _count_accepted(draft: Draft, new: Tokens) -> int:
    """How many of the new tokens were drafted: all but the last, and it too if it agrees."""
    last = len(new) - 1
    agrees = last < len(draft) and new[last] == draft.tokens[last]
    return last + int(agrees)
