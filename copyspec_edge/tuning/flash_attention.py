"""Is flash attention faster on this machine? Measured on a tiny model with the same heads.

With a context behind it, llama.cpp's flash attention is faster on some processors and slower on
others. One layer of random weights has the same attention to compute, and is read in no time.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from copyspec_edge.errors import CopySpecError
from copyspec_edge.host import read_json, write_json
from copyspec_edge.llama import Engine, Weights, write_tiny_model
from copyspec_edge.settings import Settings
from copyspec_edge.tuning.measuring import VariedTokens

_DEPTH = 1024
_ROWS = (1, 8)
_ROUNDS = 5
_BUSY_SPREAD = 3.0


def flash_is_faster(shape: tuple[int, int, int], settings: Settings, path: Path) -> bool:
    """Whether to use flash attention: from the file `path`, else measured and written there.

    Args:
        shape: (query heads, KV heads, width of a head).
        path: named after everything the answer depends on.

    Returns:
        True, llama.cpp's own choice, where it cannot be measured.
    """
    known = read_json(path, lambda raw: bool(raw["faster"]))
    if known is not None:
        return known
    try:
        seconds = _measure(shape, settings)
    except (CopySpecError, ValueError):
        return True
    on, off = median(seconds["on"]), median(seconds["off"])
    if all(max(times) <= _BUSY_SPREAD * min(times) for times in seconds.values()):
        write_json(path, {"faster": on < off, "on": on, "off": off})
    return on < off


def _measure(shape: tuple[int, int, int], settings: Settings) -> dict[str, list[float]]:
    """Seconds of a short and a long batch together, with flash attention "on" and "off"."""
    heads, kv_heads, width = shape
    n_ctx = _DEPTH + max(_ROWS)
    samples: dict[str, list[float]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "attention.gguf"
        write_tiny_model(path, heads=heads, kv_heads=kv_heads, head_width=width, context=n_ctx)
        weights = Weights(path, Settings(n_gpu_layers=0, use_mmap=False), use_extra_bufts=False)
        engines = {
            "on": Engine(weights, replace(settings, flash_attn="on"), n_ctx=n_ctx),
            "off": Engine(weights, replace(settings, flash_attn="off"), n_ctx=n_ctx),
        }
        tokens = VariedTokens(engines["on"].n_vocab)
        for engine in engines.values():
            engine.eval(tokens.take(_DEPTH), rows=1)
        for _ in range(_ROUNDS):
            for name, engine in engines.items():
                samples[name].append(sum(_time(engine, tokens, rows) for rows in _ROWS))
        for engine in engines.values():
            engine.close()
        weights.close()
    return samples


def _time(engine: Engine, tokens: VariedTokens, rows: int) -> float:
    batch = tokens.take(rows)
    start = time.perf_counter()
    engine.eval(batch, rows=rows)
    seconds = time.perf_counter() - start
    engine.truncate(_DEPTH)
    return seconds
