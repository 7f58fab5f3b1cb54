"""The copy oracle: the least time any copying could take, known only in hindsight.

At every position the longest copy among *all* earlier occurrences of the last `gamma` tokens is
known, and the best length of every draft is found by dynamic programming over what follows. No
copying with so much in common before the copy can be faster, apart from what a draft with wrong
tokens at its end can gain where a larger batch costs less than a smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from copyspec_edge.arrays import FloatArray, Tokens
from copyspec_edge.drafting import MAX_DRAFT, compiled
from copyspec_edge.evaluation.replay import answer_tokens
from copyspec_edge.evaluation.traces import TokenTrace
from copyspec_edge.tuning import CostCurve


@compiled
def longest_copies(tokens: Tokens, start: int, gamma: int, longest: int) -> Tokens:
    """How many tokens from each position on can be copied from before it, shape (n - start,).

    Entry i is the greatest number, up to `longest`, of tokens from start + i on that equal those
    after an earlier occurrence of the `gamma` tokens before it; a copy may run into what it copies.
    """
    end = len(tokens)
    copies = np.zeros(end - start, np.int32)
    # common[j]: how many tokens from j on equal those from `position` on.
    common = np.zeros(end + 1, np.int32)
    for position in range(end - 1, start - 1, -1):
        for j in range(position):
            common[j] = common[j + 1] + 1 if tokens[j] == tokens[position] else 0
            if common[j] > copies[position - start] and j >= gamma:
                same = True
                for back in range(1, gamma + 1):
                    if tokens[j - back] != tokens[position - back]:
                        same = False
                        break
                if same:
                    copies[position - start] = min(common[j], longest)
    return copies


@compiled
def least_time(copies: Tokens, cost: FloatArray) -> float:
    """Time to get through all positions when every draft is a prefix of the best copy there.

    A draft of k tokens takes cost[k + 1] and yields k + 1 tokens. `copies[i]` reaches to the end at
    most.
    """
    n = len(copies)
    least = np.zeros(n + 2, np.float64)
    for i in range(n - 1, -1, -1):
        least[i] = np.inf
        for k in range(min(copies[i], len(cost) - 2) + 1):
            least[i] = min(least[i], cost[k + 1] + least[i + k + 1])
    return float(least[0])


def oracle_time(trace: TokenTrace, curve: CostCurve, *, gamma: int = 1) -> float:
    """The least time for what `replay` replays of a trace.

    Args:
        gamma: how many tokens before a copy must agree with those before its source.
    """
    tokens, first = answer_tokens(trace)
    return float(least_time(longest_copies(tokens, first, gamma, MAX_DRAFT), curve.table))


def oracle_speedups(
    traces: Sequence[TokenTrace], curve: CostCurve, *, gamma: int = 1
) -> dict[str, float]:
    """By task: the time of a single row for each token, over the oracle's time."""
    plain: dict[str, float] = {}
    best: dict[str, float] = {}
    for trace in traces:
        tokens, first = answer_tokens(trace)
        plain[trace.task] = plain.get(trace.task, 0) + (len(tokens) - first) * curve.table[1]
        best[trace.task] = best.get(trace.task, 0) + oracle_time(trace, curve, gamma=gamma)
    return {task: float(plain[task] / best[task]) for task in plain}
