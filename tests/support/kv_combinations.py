"""Run as a script: decode with every type of KV cache, and print one JSON object per attempt.

A child process, so that a native crash fails one test and names the combination it tried last.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np

from copyspec_edge import CopySpecError, Settings
from copyspec_edge.llama.engine import Engine
from copyspec_edge.llama.weights import Weights
from copyspec_edge.settings import FlashAttention, KvType


def attempt(weights: Weights, flash: FlashAttention, type_k: KvType, type_v: KvType) -> str:
    try:
        settings = Settings(n_threads=1, flash_attn=flash, type_k=type_k, type_v=type_v)
        engine = Engine(weights, settings, n_ctx=32)
        rows = engine.eval(np.arange(4, dtype=np.int32), rows=2)
        outcome = "works" if np.isfinite(rows).all() else "not numbers"
        engine.close()
    except CopySpecError as error:
        return f"{type(error).__name__}: {error}"
    return outcome


def main(path: str, extra_bufts: str) -> None:
    weights = Weights(Path(path), Settings(n_threads=1), use_extra_bufts=extra_bufts == "1")
    for combination in product(get_args(FlashAttention), get_args(KvType), get_args(KvType)):
        print(json.dumps({"trying": combination}), flush=True)
        outcome = attempt(weights, *combination)
        print(json.dumps({"combination": combination, "outcome": outcome}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
