"""The same model with another weight type, for other cost curves: python -m bench.requantize."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.gguf_copy import copy_gguf

TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", choices=TYPES, required=True)
    arguments = parser.parse_args()
    copy_gguf(arguments.source, arguments.target, quantization=arguments.type)


if __name__ == "__main__":
    main()
