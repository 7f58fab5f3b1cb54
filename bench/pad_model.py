"""The same outputs at the cost of a bigger model: python -m bench.pad_model.

Rows are appended to the feed-forward's gate and up matrices, and zero columns to its down matrix:
the new hidden units are computed and multiplied by nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

from bench.gguf_copy import Change, Weights, copy_gguf
from bench.requantize import TYPES


def padding(hidden: int) -> Change:
    """A change that pads the feed-forward layers of a llama to `hidden` units."""
    random = np.random.default_rng(0)

    def change(name: str, weights: Weights) -> Weights:
        if name.endswith(("ffn_gate.weight", "ffn_up.weight")):
            extra = hidden - weights.shape[0]
            rows = random.standard_normal((extra, weights.shape[1]), dtype=np.float32) / 32
            return np.concatenate((weights, rows))
        if name.endswith("ffn_down.weight"):
            zeros = np.zeros((weights.shape[0], hidden - weights.shape[1]), np.float32)
            return np.concatenate((weights, zeros), axis=1)
        return weights

    return change


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--hidden", type=int, default=18432, help="default: 18432, for 1 B")
    parser.add_argument("--type", choices=TYPES, default="Q4_0")
    arguments = parser.parse_args()
    fields = gguf.GGUFReader(arguments.source).fields
    key = f"{fields['general.architecture'].contents()}.feed_forward_length"
    present = int(fields[key].contents())
    if arguments.hidden <= present or arguments.hidden % 32:
        parser.error(f"--hidden must be a multiple of 32 above the model's {present}")
    copy_gguf(
        arguments.source,
        arguments.target,
        change=padding(arguments.hidden),
        quantization=arguments.type,
        metadata={key: arguments.hidden},
    )


if __name__ == "__main__":
    main()
