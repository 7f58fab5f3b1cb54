"""The models of the benchmarks are made as they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bench import pad_model
from bench.pad_model import write_padded
from bench.requantize import requantize, weights_by_type
from copyspec_edge import Settings
from copyspec_edge.arrays import Rows, as_tokens
from copyspec_edge.llama import Engine, Weights

pytestmark = pytest.mark.real


@contextmanager
def engine(path: Path) -> Iterator[Engine]:
    settings = Settings(n_threads=1, flash_attn="off")
    weights = Weights(path, settings, use_extra_bufts=False)
    opened = Engine(weights, settings, n_ctx=64)
    try:
        yield opened
    finally:
        opened.close()
        weights.close()


def logits(path: Path) -> Rows:
    with engine(path) as opened:
        rows: Rows = opened.eval(as_tokens([5, 9, 30, 7, 41, 2, 10]), rows=4).copy()
    return rows


def test_a_padded_model_computes_what_the_original_does(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tiny model's own widths are multiples of 256.
    monkeypatch.setattr(pad_model, "BLOCK", 320)
    f16, padded = tmp_path / "f16.gguf", tmp_path / "padded.gguf"
    requantize(tiny_path, f16, "F16")
    write_padded(tiny_path, padded, hidden=640)
    assert sum(weights_by_type(padded).values()) > 1.3 * sum(weights_by_type(f16).values())
    original = logits(f16)
    assert np.abs(logits(padded) - original).max() < 0.01 * original.std()


@pytest.mark.parametrize(
    ("kind", "mostly"),
    [("F16", "F16"), ("Q5_0", "Q5_0"), ("Q4_K_M", "Q4_K"), ("Q6_K", "Q6_K")],
)
def test_weights_get_the_type_that_was_asked_for(
    tiny_path: Path, tmp_path: Path, kind: str, mostly: str
) -> None:
    target = tmp_path / f"{kind}.gguf"
    requantize(tiny_path, target, kind)
    assert next(iter(weights_by_type(target))) == mostly
    assert np.isfinite(logits(target)).all()


def test_a_file_that_is_no_model_cannot_be_requantized(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model")
    with pytest.raises(OSError, match="Q4_0"):
        requantize(tmp_path / "text", tmp_path / "out.gguf", "Q4_0")
