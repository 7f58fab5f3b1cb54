"""Measures what a long context adds to the cost of a batch. It knows an engine and times."""

from __future__ import annotations

import time
from dataclasses import replace

from copyspec_edge.tuning.cost import CostCurve
from copyspec_edge.tuning.measuring import MeasurableEngine, VariedTokens, time_batch

# The long context: what can be read in this time, or the least that is not lost in noise, if that
# takes no more than a few times as long.
_READING_SECONDS = 1.0
_LONGEST_READING_SECONDS = 3.0
_LONG = (256, 1024)
_READ_AT_ONCE = 128
_LONG_ROUNDS = 4
_LONG_ROWS = 16
# No context of this length makes a step so much slower: something else does.
_MOST_GROWTH = 10.0


def with_growth(
    curve: CostCurve,
    engine: MeasurableEngine,
    tokens: VariedTokens,
    samples: dict[int, list[float]],
    *,
    short: int,
) -> CostCurve:
    """The curve with what a long context adds, if one is read in time: linear in depth and rows.

    The difference is small, so it is taken between the fastest batches of each.

    Args:
        samples: seconds of batches behind a context of `short` tokens, by rows.
    """
    depth = _read_long_context(engine, tokens, float(curve.table[-1]) / curve.rows[-1])
    many = min(_LONG_ROWS, engine.max_rows)
    deep: dict[int, list[float]] = {1: [], many: []}
    for _ in range(_LONG_ROUNDS if depth else 0):
        plain = time_batch(engine, tokens, 1)
        deep[1].append(plain)
        if many > 1:
            seconds = time_batch(engine, tokens, many)
            deep[many].append(seconds + max(0.0, time_batch(engine, tokens, 1) - plain))
    if not depth or engine.n_past < depth or max(deep[1]) > _MOST_GROWTH * curve.seconds[0]:
        return curve
    growth = {}
    for rows, seconds_of_rows in deep.items():
        near = min(samples.get(rows, [float(curve.table[rows])]))
        growth[rows] = max(0.0, min(seconds_of_rows) - near) / (depth - short)
    slope = max(0.0, growth[many] - growth[1]) / max(1, many - 1)
    return replace(curve, growth=tuple(growth[1] + slope * (rows - 1) for rows in curve.rows))


def _read_long_context(engine: MeasurableEngine, tokens: VariedTokens, per_token: float) -> int:
    """Read what can be read in time, and return how much; 0: it would take too long.

    Args:
        per_token: seconds of a token in the longest draft; a prompt's take less.
    """
    room = engine.n_ctx - _LONG_ROUNDS * (_LONG_ROWS + 2)
    if room < _LONG[0] or _LONG[0] * per_token > _LONGEST_READING_SECONDS:
        return 0
    engine.truncate(0)
    start = time.perf_counter()
    while (depth := engine.n_past) < min(_LONG[1], room):
        if depth >= _LONG[0] and time.perf_counter() - start > _READING_SECONDS:
            break
        engine.eval(tokens.take(min(_READ_AT_ONCE, room - depth)), rows=1)
    time_batch(engine, tokens, 1)
    return depth
