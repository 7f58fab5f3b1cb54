"""Measures what verifying costs on this machine, in a time box, and remembers it.

It knows an engine and times, not drafts. What is measured is what decoding does: batches of one
row with longer ones in between, since a change of shape makes llama.cpp rebuild its graph; of
tokens that differ, since equal ones take the same experts; and behind a short and a long context.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median, median_low

import numpy as np

from copyspec_edge.decoding import EngineLike
from copyspec_edge.host import read_json, write_json
from copyspec_edge.tuning.cost import CostCurve
from copyspec_edge.tuning.curves import SHAPES
from copyspec_edge.tuning.long_context import with_growth
from copyspec_edge.tuning.measuring import MeasurableEngine, VariedTokens, time_batch

_BUDGET_SECONDS = 2.0
# Three more are what reading the context takes.
_BUDGET_STEPS = 17
_DEPTH = 16
_DEEPEST = 2 * _DEPTH
LEAST_CONTEXT = _DEEPEST + SHAPES[-1]
_PLAIN_STEPS = 3
# The shapes that decide most come first; those the time box does not reach are extrapolated.
_ORDER = (2, 4, 16, 8, 3, 6, 32, 12, 24, 48, 64)
_BUSY_SPREAD = 3.0
_logger = logging.getLogger("copyspec_edge")


def calibrated(engine: MeasurableEngine, path: Path) -> CostCurve | None:
    """The cost curve of an engine: from the file `path`, else measured and written there.

    Args:
        engine: of LEAST_CONTEXT tokens or more, with an empty memory, which is left empty.
        path: named after everything the curve depends on.

    Returns:
        None where the machine is too busy to measure.

    Raises:
        EngineError: llama.cpp failed.
    """
    curve = read_json(path, _parse)
    if curve is not None:
        return curve
    curve, spread = measure(engine)
    if spread > _BUSY_SPREAD:
        _logger.info("this machine is too busy to measure the cost of verifying")
        return None
    write_json(path, {**asdict(curve), "spread": spread})
    return curve


def measure(engine: MeasurableEngine) -> tuple[CostCurve, float]:
    """Measure t(rows), behind a short context and, where it is soon read, behind a long one.

    Returns:
        The curve in seconds, and the spread: the slowest plain step over the fastest, which on a
        busy machine is one with half the threads.
    """
    tokens = VariedTokens(engine.n_vocab)
    engine.truncate(0)
    try:
        # Not counted: it may read the weights from the disk.
        engine.eval(tokens.take(_DEPTH), rows=1)
        start = time.perf_counter()
        fastest = _time_half_threads(engine, tokens)
        samples = {1: [_time(engine, tokens, 1) for _ in range(_PLAIN_STEPS)]}
        fastest = min(fastest, *samples[1])
        curve = _curve(samples)
        if max(samples[1]) <= _BUSY_SPREAD * fastest:
            budget = max(_BUDGET_SECONDS, _BUDGET_STEPS * median(samples[1]))
            _measure_shapes(engine, tokens, samples, start + budget)
            _time(engine, tokens, 1)
            samples[1].append(_time(engine, tokens, 1))
            curve = with_growth(_curve(samples), engine, tokens, samples, short=_DEPTH)
    finally:
        engine.truncate(0)
    return curve, max(samples[1]) / min(fastest, *samples[1])


def _time_half_threads(engine: MeasurableEngine, tokens: VariedTokens) -> float:
    """Time a step with half the threads, and leave the engine warm with all of them."""
    one, several = engine.n_threads, engine.n_threads_batch
    engine.set_threads(max(1, one // 2), max(1, several // 2))
    try:
        seconds = _time(engine, tokens, 1)
    finally:
        engine.set_threads(one, several)
    _time(engine, tokens, 1)
    return seconds


def _measure_shapes(
    engine: MeasurableEngine, tokens: VariedTokens, samples: dict[int, list[float]], deadline: float
) -> None:
    """Add samples of longer batches, each with what it adds to the plain step after it."""
    plain = median(samples[1])
    for rows in _schedule(engine.max_rows):
        expected = float(_curve(samples).table[rows]) + 3 * plain
        if len(samples) > 1 and time.perf_counter() + expected > deadline:
            continue
        seconds = _time(engine, tokens, rows)
        after = _time(engine, tokens, 1) - plain
        samples.setdefault(rows, []).append(seconds + max(0.0, after))


def _schedule(max_rows: int) -> Iterator[int]:
    """Shapes to measure, round after round; the big ones are measured once or twice."""
    for turn in range(8):
        for rows in _ORDER:
            if rows <= max_rows and (rows <= 16 or turn < 2):
                yield rows


def _time(engine: EngineLike, tokens: VariedTokens, rows: int) -> float:
    """Time a batch behind the short context."""
    if engine.n_past >= _DEEPEST:
        engine.truncate(_DEPTH)
        if engine.n_past < _DEPTH:
            engine.eval(tokens.take(_DEPTH - engine.n_past), rows=1)
    return time_batch(engine, tokens, rows)


def _curve(samples: dict[int, list[float]]) -> CostCurve:
    """Medians; linear between measured shapes, and beyond them along the mean slope."""
    rows = sorted(samples)
    seconds = [median_low(samples[r]) for r in rows]
    rise = seconds[-1] - seconds[0]
    slope = max(0.0, rise / (rows[-1] - rows[0])) if len(rows) > 1 else seconds[0]
    known = np.interp(SHAPES, rows, seconds)
    beyond = [max(0, shape - rows[-1]) * slope for shape in SHAPES]
    return CostCurve(SHAPES, tuple(float(k + b) for k, b in zip(known, beyond, strict=True)))


def _parse(raw: dict[str, list[float]]) -> CostCurve | None:
    rows = tuple(raw["rows"])
    seconds, growth = (tuple(map(float, raw[name])) for name in ("seconds", "growth"))
    finite = all(map(math.isfinite, (*seconds, *growth)))
    sound = finite and min(seconds) > 0 and min(growth, default=0) >= 0
    fits = rows == SHAPES and len(seconds) == len(SHAPES) and len(growth) in (0, len(SHAPES))
    return CostCurve(SHAPES, seconds, growth) if sound and fits else None
