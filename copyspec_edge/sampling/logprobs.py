"""Log-probabilities of a chosen token and its alternatives, from the model's own row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was to the model, before any sampler.

    Attributes:
        token_id: the emitted token.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens with theirs, likeliest first; the emitted one is not always
            among them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(row: npt.NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """Look up `token` and the `n_top` likeliest tokens in a row of logits, shape (n_vocab,)."""
    peak = row.max()
    total = float(peak) + math.log(np.exp(row - peak).sum(dtype=np.float64))
    n_top = min(n_top, len(row))
    likeliest = np.argpartition(row, -n_top)[-n_top:] if n_top else np.empty(0, np.intp)
    likeliest = likeliest[np.lexsort((likeliest, -row[likeliest]))]
    top = tuple((int(t), float(row[t]) - total) for t in likeliest)
    return TokenLogprob(token, float(row[token]) - total, top)
