"""Measures what verifying costs on this machine, in a time box, and remembers it.

It knows an engine and times, not tokens or drafts. What is measured is what decoding does: batches
of one row with longer ones in between, since a change of shape makes llama.cpp rebuild its graph.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np

from copyspec_edge.cost import SHAPES, CostCurve
from copyspec_edge.decoder import EngineLike
from copyspec_edge.disk import write_atomically

_BUDGET_SECONDS = 2.0
_BUDGET_STEPS = 20
_DEPTH = 32
# The shapes that decide most come first; those the time box does not reach are extrapolated.
_ORDER = (2, 4, 8, 16, 3, 6, 32, 12, 24, 48, 64)
_BUSY_SPREAD = 3.0
_logger = logging.getLogger("copyspec_edge")


class ThreadedEngine(EngineLike, Protocol):
    """An engine whose thread count can be set."""

    def set_threads(self, n_threads: int) -> None:
        """Use this many threads from now on."""
        ...


def calibrated(engine: EngineLike, path: Path, token: int) -> CostCurve | None:
    """The cost curve of an engine: from the file `path`, else measured and written there.

    Args:
        engine: with an empty memory, which is left empty.
        path: named after everything the curve depends on.
        token: any id of the vocabulary.

    Returns:
        None where the machine is too busy to measure.
    """
    curve = _read(path)
    if curve is not None:
        return curve
    curve, spread = measure(engine, token)
    if spread > _BUSY_SPREAD:
        _logger.info("this machine is too busy to measure the cost of verifying")
        return None
    _write(path, curve, spread)
    return curve


def measure(engine: EngineLike, token: int) -> tuple[CostCurve, float]:
    """Measure t(rows), behind a short context.

    Returns:
        The curve in seconds, and the spread of the plain steps: slowest over fastest.
    """
    tokens = np.full(max(_DEPTH, SHAPES[-1]), token, np.int32)
    engine.truncate(0)
    engine.eval(tokens[:_DEPTH], rows=1)
    _time(engine, tokens[:1])
    plain = [_time(engine, tokens[:1]) for _ in range(4)]
    budget = max(_BUDGET_SECONDS, _BUDGET_STEPS * median(plain))
    samples: dict[int, list[float]] = {1: plain}
    deadline = time.perf_counter() + budget
    for rows in _schedule(engine.max_rows):
        expected = rows * median(plain)
        if time.perf_counter() + expected > deadline:
            break
        seconds = _time(engine, tokens[:rows])
        back = _time(engine, tokens[:1]) - median(plain)
        samples.setdefault(rows, []).append(seconds + max(0.0, back))
    engine.truncate(0)
    return _curve(samples), max(plain) / min(plain)


def _schedule(max_rows: int) -> Iterator[int]:
    """Shapes to measure, round after round; the big ones are measured once or twice."""
    for turn in range(8):
        for rows in _ORDER:
            if rows <= max_rows and (rows <= 16 or turn < 2):
                yield rows


def _time(engine: EngineLike, tokens: np.ndarray[tuple[int], np.dtype[np.int32]]) -> float:
    start = time.perf_counter()
    past = engine.n_past
    engine.eval(tokens, rows=len(tokens))
    engine.truncate(past)
    return time.perf_counter() - start


def _curve(samples: dict[int, list[float]]) -> CostCurve:
    """Medians; linear between measured shapes, and beyond them along the last slope."""
    rows = sorted(samples)
    seconds = [median(samples[r]) for r in rows]
    slope = (seconds[-1] - seconds[0]) / (rows[-1] - rows[0]) if len(rows) > 1 else seconds[0]
    known = np.interp(SHAPES, rows, seconds)
    beyond = [max(0.0, shape - rows[-1]) * slope for shape in SHAPES]
    return CostCurve(SHAPES, tuple(float(k + b) for k, b in zip(known, beyond, strict=True)))


def _read(path: Path) -> CostCurve | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        rows, seconds = tuple(raw["rows"]), tuple(map(float, raw["seconds"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    sound = all(math.isfinite(s) and s > 0 for s in seconds)
    return CostCurve(rows, seconds) if sound and rows == SHAPES == rows[: len(seconds)] else None


def _write(path: Path, curve: CostCurve, spread: float) -> None:
    raw = {"rows": curve.rows, "seconds": curve.seconds, "spread": spread}
    write_atomically(path, json.dumps(raw))
