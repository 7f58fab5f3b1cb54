"""The same outputs at the cost of a bigger model: python -m bench.pad_model SOURCE TARGET.

Run it where a benchmark wants a llama of a size that cannot be had, then `bench.requantize`. Zeros
are appended to the matrices, which are computed with like other numbers, and change nothing: the
embedding and the heads get as many that all widths are multiples of 256, as K-quants need them, and
the feed-forward gets the rest. Norms divide by a greater width, which their weights make up for.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]

BLOCK = 256
_OWN_FIELDS = ("GGUF.", "general.architecture", "general.file_type")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a llama."""

    n_embd: int
    n_head: int
    n_head_kv: int
    head: int
    hidden: int
    epsilon: float

    @classmethod
    def of(cls, reader: gguf.GGUFReader) -> Shape:
        """A file's."""
        field = {key: value.contents() for key, value in reader.fields.items()}
        n_embd, n_head = field["llama.embedding_length"], field["llama.attention.head_count"]
        return cls(
            n_embd=n_embd,
            n_head=n_head,
            n_head_kv=field["llama.attention.head_count_kv"],
            head=field.get("llama.attention.key_length", n_embd // n_head),
            hidden=field["llama.feed_forward_length"],
            epsilon=field["llama.attention.layer_norm_rms_epsilon"],
        )

    def padded(self, hidden: int) -> Shape:
        """The next shape of which all widths are multiples of 256."""
        n_embd = -(-self.n_embd // BLOCK) * BLOCK
        group, n_head_kv = self.n_head // self.n_head_kv, self.n_head_kv
        while n_head_kv * group * self.head % BLOCK:
            n_head_kv += 1
        return Shape(
            n_embd=n_embd,
            n_head=group * n_head_kv,
            n_head_kv=n_head_kv,
            head=self.head,
            hidden=hidden,
            epsilon=self.epsilon * self.n_embd / n_embd,
        )

    def of_tensor(self, name: str) -> tuple[int | None, ...]:
        """Rows and columns of a tensor; None: as many as it has."""
        heads, heads_kv = self.n_head * self.head, self.n_head_kv * self.head
        shapes: dict[str, tuple[int | None, ...]] = {
            "token_embd": (None, self.n_embd),
            "output": (None, self.n_embd),
            "attn_q": (heads, self.n_embd),
            "attn_k": (heads_kv, self.n_embd),
            "attn_v": (heads_kv, self.n_embd),
            "attn_output": (self.n_embd, heads),
            "ffn_gate": (self.hidden, self.n_embd),
            "ffn_up": (self.hidden, self.n_embd),
            "ffn_down": (self.n_embd, self.hidden),
            "attn_norm": (self.n_embd,),
            "ffn_norm": (self.n_embd,),
            "output_norm": (self.n_embd,),
        }
        return shapes[name.removesuffix(".weight").split(".")[-1]]

    @property
    def metadata(self) -> Mapping[str, int | float]:
        """What a file says of it."""
        return {
            "llama.embedding_length": self.n_embd,
            "llama.attention.head_count": self.n_head,
            "llama.attention.head_count_kv": self.n_head_kv,
            "llama.attention.key_length": self.head,
            "llama.attention.value_length": self.head,
            "llama.feed_forward_length": self.hidden,
            "llama.attention.layer_norm_rms_epsilon": self.epsilon,
        }


def pad(weights: Weights, shape: tuple[int | None, ...]) -> Weights:
    """Zeros behind the rows and columns."""
    behind = [(0, (n or size) - size) for n, size in zip(shape, weights.shape, strict=True)]
    return np.pad(weights, behind)


def write_padded(source: Path, target: Path, hidden: int) -> None:
    """Copy a llama with feed-forward layers of `hidden` units, in F16."""
    reader = gguf.GGUFReader(source)
    old = Shape.of(reader)
    new = old.padded(hidden)
    writer = gguf.GGUFWriter(str(target), "llama")
    _copy_metadata(reader, writer, new.metadata)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        is_norm = weights.ndim == 1
        weights = pad(weights, new.of_tensor(tensor.name))
        if is_norm:
            weights *= math.sqrt(old.n_embd / new.n_embd)
        writer.add_tensor(tensor.name, weights if is_norm else weights.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(
    reader: gguf.GGUFReader, writer: gguf.GGUFWriter, replaced: Mapping[str, int | float]
) -> None:
    for key, field in reader.fields.items():
        if not key.startswith(_OWN_FIELDS) and key not in replaced:
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub_type)
    for key, value in replaced.items():
        kind = gguf.GGUFValueType.FLOAT32 if key.endswith("epsilon") else gguf.GGUFValueType.UINT32
        writer.add_key_value(key, value, kind)


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a llama, of any type of weights")
    parser.add_argument("target", type=Path)
    parser.add_argument("--hidden", type=int, default=13824, help="default: 13824, for 1 B")
    arguments = parser.parse_args()
    fields = gguf.GGUFReader(arguments.source).fields
    if fields["general.architecture"].contents() != "llama":
        parser.error("only a llama can be padded")
    present = int(fields["llama.feed_forward_length"].contents())
    if arguments.hidden < present or arguments.hidden % BLOCK:
        parser.error(f"--hidden must be a multiple of {BLOCK}, and at least the model's {present}")
    write_padded(arguments.source, arguments.target, arguments.hidden)


if __name__ == "__main__":
    main()
