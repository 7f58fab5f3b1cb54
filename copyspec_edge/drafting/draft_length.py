"""How much of a draft is worth verifying: a pure function of accept probabilities and costs.

It knows neither tokens nor models. A draft of n tokens costs one batch of n + 1 rows.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from copyspec_edge.arrays import FloatArray
from copyspec_edge.drafting.compiled import compiled
from copyspec_edge.drafting.drafter import Draft


class Costs(Protocol):
    """What verifying costs behind one context."""

    @property
    def table(self) -> FloatArray:
        """Entry n is the cost of a batch of n rows; entry 0 is unused."""
        ...

    @property
    def breaks(self) -> FloatArray:
        """Entry n is what is lost by a draft that breaks behind n accepted tokens."""
        ...


@compiled
def best_length(accept: FloatArray, cost: FloatArray, breaks: FloatArray) -> int:
    """The number of drafted tokens to verify so that the copy is used up in the least time.

    With p the accept probabilities, C[j] is the least expected time from draft position j until
    the copy breaks or ends: one batch of k + 1 rows; if the draft breaks in it, what undoing costs;
    and if the k tokens and the one sampled after them all agree, C[j + k + 1]. How a copy is cut
    into batches does not change how many tokens it yields, so the least time is the greatest speed.

    Args:
        accept: P(token accepted | all before it accepted), shape (n,).
        cost: `cost[r]` is the time of a batch of r rows, shape (at least 2,).
        breaks: `breaks[a]` is the time lost by a draft that breaks behind a accepted tokens, shape
            (at least len(cost) - 2,).

    Returns:
        k between 0 and n, with k + 1 < len(cost); 0 where no copy pays.
    """
    n = len(accept)
    least = np.zeros(n + 2, np.float32)
    least[n] = cost[1]
    best = 0
    for j in range(n - 1, -1, -1):
        least[j] = np.inf
        reach = np.float32(1.0)
        breaking = broken = np.float32(0.0)
        for k in range(min(n - j, len(cost) - 2) + 1):
            if k > 0:
                broken += breaking * breaks[k - 1]
            expected = cost[k + 1] + broken
            if j + k < n:
                breaking = reach * (np.float32(1.0) - accept[j + k])
                reach *= accept[j + k]
                expected += reach * least[j + k + 1]
            if expected < least[j]:
                least[j] = expected
                best = k
    return best


def trim(draft: Draft, cost: Costs) -> Draft:
    """The part of `draft` that is worth verifying, possibly none of it."""
    if not len(draft):
        return draft
    return draft.head(best_length(draft.accept, cost.table, cost.breaks))
