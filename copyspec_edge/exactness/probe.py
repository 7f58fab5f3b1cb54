"""Finds which row counts give the same logits, bit for bit: at which depths, and how thoroughly.

It knows an engine and tokens, not llama.cpp's settings, text or files.
"""

from __future__ import annotations

from dataclasses import replace

from copyspec_edge.arrays import Tokens
from copyspec_edge.decoding import EngineLike
from copyspec_edge.exactness.row_comparison import Finding, Walk

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512)
PROBE_CONTEXT = 3072
_BEYOND_WINDOW = 512
_SCREEN_END = 64
# llama.cpp's flash attention splits from 512 cells on.
_SHALLOW_END = 640
_DEEP_TOKENS = 160
# What the later ranges take, in steps of the least rows.
_SHALLOW_STEPS = 900
_DEEP_STEPS = 2000


def probed_context(n_ctx: int, n_swa: int) -> int:
    """How many tokens of a context of `n_ctx` are probed: some past the sliding window's end.

    Args:
        n_swa: width of the model's sliding window, 0 without one.
    """
    return min(n_ctx, max(PROBE_CONTEXT, n_swa + _BEYOND_WINDOW))


def probe(
    engine: EngineLike,
    tokens: Tokens,
    *,
    min_rows: int,
    n_batch: int,
    thorough: bool = True,
    n_read: int = 96,
    limit_seconds: float = 600.0,
) -> Finding:
    """Find the counts that agree with reading `min_rows` rows at a time.

    Args:
        engine: its memory is overwritten, and empty afterwards.
        tokens: varied token ids that fill its context, shape (n,).
        min_rows: 1 or 2.
        n_batch: most tokens of one batch.
        thorough: go on behind the first tokens, as deep as can be.
        n_read: tokens to read in batches of each count there.
        limit_seconds: a range that would take longer is left out.

    Returns:
        A finding of width 0 where copying is possible and no row count agrees with another.

    Raises:
        EngineError: llama.cpp failed.
    """
    end = len(tokens) - 1
    walk = Walk(engine, tokens, min_rows, (n for n in COUNTS if min_rows <= n <= min(n_batch, end)))
    least = min(1, engine.max_rows - 1)
    later = (
        (0, min(_SHALLOW_END, end), n_read, _SHALLOW_STEPS),
        (max(end - _DEEP_TOKENS, _SHALLOW_END), end, n_read // 2, _DEEP_STEPS),
    )
    try:
        step_seconds = walk.cover(0, min(_SCREEN_END, end), n_read // 4)
        for first, last, wanted, n_steps in later if thorough else ():
            is_affordable = n_steps * step_seconds < limit_seconds
            if walk.finding().width > least and is_affordable and last - first >= _SCREEN_END:
                walk.cover(first, last, wanted)
    finally:
        engine.truncate(0)
    finding = walk.finding()
    return finding if finding.width > least else replace(finding, rows=(), chunks=())
