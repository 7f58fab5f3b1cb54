"""GGUF files for tests: tiny models, broken ones, and other weight types of a real one."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np

from copyspec_edge.llama.tiny_model import write_tiny_model

TINY_VOCABULARY = 64
TINY_CONTEXT = 64

SPELLING_SPECIAL = ("<unk>", "<s>", "</s>", "<user>", "<bot>")
_SPELLING_WORDS = (
    *"▁abcdefghijklmnopqrstuvwxyz.,",
    "ab",
    "cd",
    "▁the",
    "é",
    "한",
    "국",
    "어",
    "😀",
)
_SPELLING_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ ('<bot>' if m.role == 'assistant' else '<user>') + m.content + eos_token }}"
    "{% endfor %}<bot>"
)

__all__ = [
    "SPELLING_SPECIAL",
    "TINY_CONTEXT",
    "TINY_VOCABULARY",
    "write_f16_copy",
    "write_spelling_model",
    "write_tiny_model",
    "write_unknown_architecture",
    "write_vocabulary_only",
]


def write_unknown_architecture(path: Path) -> None:
    """A well-formed file of an architecture that no llama.cpp knows."""
    writer = gguf.GGUFWriter(str(path), "unheard-of")
    writer.add_context_length(64)
    _finish(writer)


def write_vocabulary_only(path: Path) -> None:
    """All the metadata of a llama, with a tokenizer and without weights."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", "a", "b", "\u2581"])
    writer.add_token_scores([0.0] * 6)
    writer.add_token_types([2, 3, 3, 1, 1, 1])
    _finish(writer)


def write_spelling_model(source: Path, path: Path, *, has_bytes: bool = True) -> None:
    """The tiny model in `source` with a SentencePiece tokenizer and a chat template.

    Args:
        has_bytes: whether there are tokens for all bytes, as there should be.
    """
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(path), "llama")
    _copy_metadata(reader, writer, ("tokenizer.", "llama.vocab_size"))
    byte = "<0x{:02X}>" if has_bytes else "<no {}>"
    pieces = [*SPELLING_SPECIAL, *map(byte.format, range(256)), *_SPELLING_WORDS]
    n_special, n_words = len(SPELLING_SPECIAL), len(_SPELLING_WORDS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([float(-n) for n in range(len(pieces))])
    byte_type = 6 if has_bytes else 1
    writer.add_token_types([2, *[3] * (n_special - 1), *[byte_type] * 256, *[1] * n_words])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(_SPELLING_TEMPLATE)
    random = np.random.default_rng(1)
    for tensor in reader.tensors:
        if tensor.name in ("token_embd.weight", "output.weight"):
            width = int(tensor.shape[0])
            weights = random.standard_normal((len(pieces), width), dtype=np.float32) / 16
            writer.add_tensor(tensor.name, weights)
        else:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    _finish(writer)


def write_f16_copy(source: Path, path: Path) -> None:
    """The model in `source` with F16 weights instead of quantized ones, whole or not at all."""
    reader = gguf.GGUFReader(str(source))
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    writer = gguf.GGUFWriter(str(temporary), "llama")
    _copy_metadata(reader, writer)
    for tensor in reader.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        else:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, values.astype(np.float16))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _finish(writer)
    os.replace(temporary, path)


def _copy_metadata(
    reader: gguf.GGUFReader, writer: gguf.GGUFWriter, left_out: tuple[str, ...] = ()
) -> None:
    left_out = ("GGUF.", "general.architecture", "general.file_type", *left_out)
    for field in reader.fields.values():
        if not field.name.startswith(left_out):
            kind, *inner = field.types
            writer.add_key_value(
                field.name, field.contents(), kind, sub_type=inner[-1] if inner else None
            )


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
