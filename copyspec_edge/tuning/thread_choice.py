"""Chooses the numbers of threads by measurement, and remembers them. It knows an engine and times.

As many threads as cores is not always fastest: some of a laptop's cores are slow ones that the
others wait for, and a model that waits for memory gains nothing from more. llama.cpp reads one
token with `n_threads` and several, drafts like prompts, with `n_threads_batch`; one token waits
for memory and several for arithmetic, so each number is chosen by itself.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from statistics import median

from copyspec_edge.host import read_json, write_json
from copyspec_edge.tuning.measuring import MeasurableEngine, VariedTokens

_ROUNDS = 3
_BUDGET_SECONDS = 1.0
# A draft of usual length, and enough for arithmetic to decide, as it does in a prompt.
_SEVERAL = 16
# Fewer threads must be this much faster.
_BETTER = 0.95
# No processor is so much slower with all of its cores: something else is using them.
_BUSY = 3.0
# Fewer threads that are so much slower need no comparison with fewer still.
_HOPELESS = 1.5


def choose_threads(engine: MeasurableEngine, path: Path, *, for_batches: bool = True) -> None:
    """Set an engine to the numbers of threads that are fastest, at most those it has.

    Args:
        engine: of 64 tokens or more, with an empty memory, which is left empty.
        path: named after everything the choice depends on; read, else written.
        for_batches: whether the number for several tokens is open too.

    Raises:
        EngineError: llama.cpp failed.
    """
    most = engine.n_threads, engine.n_threads_batch
    chosen = read_json(path, lambda raw: _counts(raw, most))
    if chosen is None:
        chosen, is_busy = _measure(engine, for_batches=for_batches)
        if not is_busy:
            write_json(path, {"n_threads": chosen[0], "n_threads_batch": chosen[1]})
    engine.set_threads(*chosen)


def _counts(raw: dict[str, int], most: tuple[int, int]) -> tuple[int, int] | None:
    one, several = counts = raw["n_threads"], raw["n_threads_batch"]
    sound = all(type(count) is int and count >= 1 for count in counts)
    return counts if sound and one <= most[0] and several <= most[1] else None


def _measure(engine: MeasurableEngine, *, for_batches: bool) -> tuple[tuple[int, int], bool]:
    """The best numbers, and whether the machine is too busy to tell."""
    one, several = engine.n_threads, engine.n_threads_batch
    tokens = VariedTokens(engine.n_vocab)
    engine.truncate(0)
    try:
        engine.eval(tokens.take(_SEVERAL), rows=1)
        best_one, is_busy = _choose(_time_counts(engine, tokens, 1, one))
        best_several = several
        if for_batches and not is_busy:
            best_several, is_busy = _choose(_time_counts(engine, tokens, _SEVERAL, several))
    finally:
        engine.set_threads(one, several)
        engine.truncate(0)
    return ((one, several) if is_busy else (best_one, best_several)), is_busy


def _time_counts(
    engine: MeasurableEngine, tokens: VariedTokens, n_tokens: int, most: int
) -> dict[int, list[float]]:
    """Seconds of batches by thread count, in turns, most threads first."""
    counts = sorted({max(1, n) for n in (most, most - 1, most * 2 // 3, most // 2, most // 4)})
    samples: dict[int, list[float]] = {count: [] for count in reversed(counts)}
    start = time.perf_counter()
    for _ in range(_ROUNDS):
        fastest = math.inf
        for count in list(samples):
            engine.set_threads(count, count)
            _time(engine, tokens, n_tokens)
            seconds = _time(engine, tokens, n_tokens)
            samples[count].append(seconds)
            fastest = min(fastest, seconds)
            if seconds > _HOPELESS * fastest:
                samples = {n: timed for n, timed in samples.items() if n >= count}
                break
        if time.perf_counter() - start > _BUDGET_SECONDS:
            break
    return samples


def _time(engine: MeasurableEngine, tokens: VariedTokens, n_tokens: int) -> float:
    batch = tokens.take(n_tokens)
    if engine.n_past + n_tokens > engine.n_ctx:
        engine.truncate(0)
    start = time.perf_counter()
    engine.eval(batch, rows=min(n_tokens, engine.max_rows))
    return time.perf_counter() - start


def _choose(samples: dict[int, list[float]]) -> tuple[int, bool]:
    """The best count, and whether the machine is too busy to tell: then it is the largest."""
    most = max(samples)
    typical = {count: median(seconds) for count, seconds in samples.items()}
    best = min(typical, key=lambda count: typical[count])
    spread = max(samples[most]) / min(samples[most])
    if max(spread, typical[most] / typical[best]) > _BUSY:
        return most, True
    return (best if typical[best] < _BETTER * typical[most] else most), False
