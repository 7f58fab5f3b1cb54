"""Chooses the number of threads by measurement, and remembers it. It knows an engine and times.

As many threads as cores is not always fastest: some of a laptop's cores are slow ones that the
others wait for, and a model that waits for memory gains nothing from more.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np

from copyspec_edge.host import read_json, write_json
from copyspec_edge.tuning.calibration import MeasurableEngine

_DEPTH = 16
_ROUNDS = 3
_BUDGET_SECONDS = 1.0
# Fewer threads must be this much faster.
_BETTER = 0.95
# No processor is so much slower with all of its cores: something else is using them.
_BUSY = 3.0


def choose_threads(engine: MeasurableEngine, path: Path, token: int) -> None:
    """Set an engine to the number of threads that is fastest, at most those it has.

    Args:
        engine: of 64 tokens or more, with an empty memory, which is left empty.
        path: named after everything the choice depends on; read, else written.
        token: any id of the vocabulary.

    Raises:
        EngineError: llama.cpp failed.
    """
    most = engine.n_threads
    chosen = read_json(path, _thread_count)
    if chosen is None or chosen > most:
        samples = _measure(engine, token)
        chosen, is_busy = _choose(samples)
        if not is_busy:
            write_json(path, {"threads": chosen, "seconds": samples})
    engine.set_threads(chosen)


def _measure(engine: MeasurableEngine, token: int) -> dict[int, list[float]]:
    """Seconds of single-token steps by thread count, in turns, most threads first."""
    most = engine.n_threads
    counts = sorted({max(1, n) for n in (most, most - 1, most * 2 // 3, most // 2, most // 4)})
    samples: dict[int, list[float]] = {count: [] for count in reversed(counts)}
    tokens = np.full(_DEPTH, token, np.int32)
    engine.truncate(0)
    try:
        engine.eval(tokens, rows=1)
        start = time.perf_counter()
        for _ in range(_ROUNDS):
            for count, seconds in samples.items():
                engine.set_threads(count)
                engine.eval(tokens[:1], rows=1)
                begun = time.perf_counter()
                engine.eval(tokens[:1], rows=1)
                seconds.append(time.perf_counter() - begun)
            if time.perf_counter() - start > _BUDGET_SECONDS:
                break
    finally:
        engine.set_threads(most)
        engine.truncate(0)
    return samples


def _choose(samples: dict[int, list[float]]) -> tuple[int, bool]:
    """The best count, and whether the machine is too busy to tell: then it is the largest."""
    most = max(samples)
    typical = {count: median(seconds) for count, seconds in samples.items()}
    best = min(typical, key=lambda count: typical[count])
    spread = max(samples[most]) / min(samples[most])
    if max(spread, typical[most] / typical[best]) > _BUSY:
        return most, True
    return (best if typical[best] < _BETTER * typical[most] else most), False


def _thread_count(raw: dict[str, int]) -> int | None:
    threads = raw["threads"]
    is_count = isinstance(threads, int) and not isinstance(threads, bool) and threads >= 1
    return threads if is_count else None
