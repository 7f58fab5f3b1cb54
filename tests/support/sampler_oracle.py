"""What llama.cpp documents of its samplers, written from that and not from the package's code.

A stage takes logits as numbers of double precision, with -inf for what is out, and gives others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from copyspec_edge.sampling.params import SamplingParams

Logits = npt.NDArray[np.float64]
Stage = Callable[[Logits, SamplingParams, Sequence[int]], Logits]


def softmax(logits: Logits) -> Logits:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def keep(logits: Logits, kept: npt.NDArray[Any] | list[int]) -> Logits:
    """Only the tokens of these ids, or for which it is true."""
    out: Logits = np.full_like(logits, -np.inf)
    out[kept] = logits[kept]
    return out


def by_mass(order: npt.NDArray[np.int64], p: Logits, mass: float) -> npt.NDArray[np.int64]:
    """As few tokens, in this order, as have the mass together."""
    return order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1]


def logit_bias(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    out: Logits = logits.copy()
    for token, bias in params.logit_bias.items():
        out[token] += bias
    return out


def penalties(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    out: Logits = logits.copy()
    window = list(recent)[-params.penalty_last_n :]
    for token in set(window):
        out[token] *= params.repeat_penalty if out[token] <= 0 else 1 / params.repeat_penalty
        out[token] -= window.count(token) * params.frequency_penalty + params.presence_penalty
    return out


def dry(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    """Lowers what would make the end of the text repeat a sequence once more, by its length."""
    if not params.dry_multiplier:
        return logits
    out: Logits = logits.copy()
    text = list(recent)
    longest: dict[int, int] = {}
    for at in range(1, len(text)):
        length = 0
        while length < at and text[at - 1 - length] == text[-1 - length]:
            length += 1
        longest[text[at]] = max(length, longest.get(text[at], 0))
    for token, length in longest.items():
        if length >= max(params.dry_allowed_length, 1):
            beyond = length - params.dry_allowed_length
            out[token] -= params.dry_multiplier * params.dry_base**beyond
    return out


def top_n_sigma(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    if not params.top_n_sigma:
        return logits
    spread = logits[np.isfinite(logits)].std()
    return keep(logits, logits >= logits.max() - params.top_n_sigma * spread)


def top_k(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    return keep(logits, np.argsort(-logits)[: params.top_k or len(logits)])


def typical_p(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    if params.typical_p == 1:
        return logits
    p = softmax(logits)
    surprise = np.full_like(p, np.inf)
    surprise[p > 0] = -np.log(p[p > 0])
    entropy = (p[p > 0] * surprise[p > 0]).sum()
    return keep(logits, by_mass(np.argsort(np.abs(surprise - entropy)), p, params.typical_p))


def top_p(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    if params.top_p == 1:
        return logits
    return keep(logits, by_mass(np.argsort(-logits), softmax(logits), params.top_p))


def min_p(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    p = softmax(logits)
    return keep(logits, p >= params.min_p * p.max())


def xtc(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    """Where it acts: without all of those above the threshold but the least likely of them."""
    p = softmax(logits)
    above = [token for token in np.argsort(-p) if p[token] >= params.xtc_threshold]
    return keep(logits, [token for token in range(len(p)) if token not in above[:-1]])


def temperature(logits: Logits, params: SamplingParams, recent: Sequence[int]) -> Logits:
    return logits / params.temperature


ORDER: tuple[Stage, ...] = (
    logit_bias,
    penalties,
    dry,
    top_n_sigma,
    top_k,
    typical_p,
    top_p,
    min_p,
    xtc,
    temperature,
)


def distribution(
    row: npt.ArrayLike,
    params: SamplingParams,
    recent: Sequence[int],
    order: Sequence[Stage] = ORDER,
) -> Logits:
    """The probability of each token, shape (n_vocab,), over what is random in the stages too."""

    def through(stages: Sequence[Stage]) -> Logits:
        logits = np.asarray(row, np.float64)
        for stage in stages:
            logits = stage(logits, params, recent)
        return softmax(logits)

    without = through([stage for stage in order if stage is not xtc])
    if not params.xtc_probability:
        return without
    return params.xtc_probability * through(order) + (1 - params.xtc_probability) * without
