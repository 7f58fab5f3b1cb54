"""A model that takes no time: one layer of random Q4_0 weights, the kind whose kernels crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_WIDTH, _HIDDEN, _VOCABULARY = 256, 512, 64


def write_tiny_model(
    path: Path,
    *,
    heads: int = 4,
    kv_heads: int = 4,
    head_width: int = 64,
    context: int = 64,
) -> None:
    """Write a one-layer llama of half a megabyte and 64 tokens, without a tokenizer."""
    import gguf  # takes 40 ms, and is needed seldom

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(_VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    random, kind = np.random.default_rng(0), gguf.GGMLQuantizationType.Q4_0
    for name, shape in _matrices(heads * head_width, kv_heads * head_width).items():
        weights = random.standard_normal(shape, dtype=np.float32) / 16
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weights, kind), raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _matrices(query_width: int, kv_width: int) -> dict[str, tuple[int, int]]:
    """Names and shapes (rows, columns) of the quantized weights."""
    return {
        "token_embd": (_VOCABULARY, _WIDTH),
        "output": (_VOCABULARY, _WIDTH),
        "blk.0.attn_q": (query_width, _WIDTH),
        "blk.0.attn_k": (kv_width, _WIDTH),
        "blk.0.attn_v": (kv_width, _WIDTH),
        "blk.0.attn_output": (_WIDTH, query_width),
        "blk.0.ffn_gate": (_HIDDEN, _WIDTH),
        "blk.0.ffn_up": (_HIDDEN, _WIDTH),
        "blk.0.ffn_down": (_WIDTH, _HIDDEN),
    }
