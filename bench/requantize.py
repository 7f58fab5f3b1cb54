"""The same model with another type of weights: python -m bench.requantize SOURCE TARGET --type T.

Run it to make the files of a benchmark. llama.cpp does it, so a Q4_K_M or Q6_K is the mixture of
types that people download; of the others all matrices get the one type. Where a row is no multiple
of 256 long, llama.cpp takes a type of smaller blocks instead (Q5_0 for Q4_K, Q8_0 for Q6_K):
prints how many weights got which. The files of the benchmark's table, S being SmolLM2 as shipped:

    python -m bench.requantize S smollm2-q4_0.gguf --type Q4_0
    python -m bench.requantize S smollm2-f16.gguf --type F16
    python -m bench.pad_model S 1b-f16.gguf
    python -m bench.requantize 1b-f16.gguf 1b-q4_0.gguf --type Q4_0
    python -m bench.requantize 1b-f16.gguf 1b-q4_k_m.gguf --type Q4_K_M
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
from pathlib import Path

import gguf
import llama_cpp

MIXTURES = ("Q4_K_M", "Q6_K")
TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *MIXTURES)


def requantize(source: Path, target: Path, kind: str) -> None:
    """Write the model with weights of another type, one of TYPES.

    Raises:
        OSError: llama.cpp could not; its log on stderr says why.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = gguf.LlamaFileType[f"MOSTLY_{kind}"]
    params.allow_requantize = True
    params.pure = kind not in MIXTURES
    failed = llama_cpp.llama_model_quantize(
        os.fsencode(source), os.fsencode(target), ctypes.byref(params)
    )
    if failed:
        raise OSError(f"llama.cpp cannot write {source} as {kind}")


def weights_by_type(path: Path) -> dict[str, int]:
    """How many weights of a file are of which type."""
    counts: collections.Counter[str] = collections.Counter()
    for tensor in gguf.GGUFReader(path).tensors:
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    return dict(counts.most_common())


def main() -> None:
    """Parse the command line, write the file, and print what is in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", choices=TYPES, required=True)
    arguments = parser.parse_args()
    requantize(arguments.source, arguments.target, arguments.type)
    for kind, count in weights_by_type(arguments.target).items():
        print(f"{kind:<6}{count / 1e6:>9.1f} M")


if __name__ == "__main__":
    main()
