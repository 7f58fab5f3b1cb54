"""Tiny random models of many architectures, for llama.cpp to run.

llama.cpp itself says which tensors an architecture has and of what shape: a model is first made
from metadata alone, and the tensors it asks for are written down. Weights are F32 and follow from
the seed; activations neither die out nor explode, so that greedy tokens vary.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp.llama_cpp import _lib as native

Value = str | bool | int | float | list[int] | list[float] | list[str]
Weights = dict[str, npt.NDArray[np.float32]]

N_VOCAB = 64
N_CTX_TRAIN = 1024
WINDOW = 32
_N_EMBD, _N_HEAD, _N_LAYER = 64, 2, 2
_N_EMBD_HEAD = _N_EMBD // _N_HEAD


def _per_layer(*values: int) -> list[int]:
    return list(values)


_MOE: dict[str, Value] = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "leading_dense_block_count": 0,
}
_SSM: dict[str, Value] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
_DELTA_NET: dict[str, Value] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
    "rope.dimension_sections": [4, 4, 4, 4],
}
_RECURRENT_FIRST: dict[str, Value] = {
    "attention.head_count_kv": _per_layer(0, _N_HEAD),
}
_WKV: dict[str, Value] = {
    "wkv.head_size": 32,
    "time_mix_extra_dim": 8,
    "time_decay_extra_dim": 8,
    "token_shift_count": 2,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.decay_lora_rank": 8,
    "attention.iclr_lora_rank": 8,
    "attention.value_residual_mix_lora_rank": 8,
    "attention.gate_lora_rank": 8,
    "attention.layer_norm_rms_epsilon": 1e-8,
    "rescale_every_n_layers": 0,
}
# As real ones have: with 32, llama.cpp's AVX-512 kernel reads and writes past its heads.
_WKV7: dict[str, Value] = {**_WKV, "wkv.head_size": 64}
_WINDOWS: dict[str, Value] = {
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": 2,
    "attention.key_length": _N_EMBD_HEAD,
    "attention.value_length": _N_EMBD_HEAD,
}
_NEMOTRON: dict[str, Value] = {
    **_SSM,
    "block_count": 3,
    "attention.head_count_kv": _per_layer(0, _N_HEAD, 0),
    "feed_forward_length": _per_layer(0, 0, 96),
}
_MLA: dict[str, Value] = {
    **_MOE,
    "expert_weights_scale": 1.0,
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 16,
}
_KDA: dict[str, Value] = {
    **_MLA,
    "attention.head_count_kv": _per_layer(0, 1),
    "kda.head_dim": 32,
    "ssm.conv_kernel": 4,
}
_MROPE: dict[str, Value] = {"rope.dimension_sections": [6, 5, 5, 0]}

# What each architecture needs beyond `_common`, by llama.cpp's name of it.
ARCHS: dict[str, dict[str, Value]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3moe": _MOE,
    "deepseek2": _MLA,
    "gemma3": _WINDOWS,
    "cohere2": _WINDOWS,
    "gpt-oss": {**_MOE, **_WINDOWS},
    "qwen2vl": _MROPE,
    "qwen3vl": {**_MROPE, "n_deepstack_layers": 0},
    "lfm2": {**_RECURRENT_FIRST, "shortconv.l_cache": 3},
    "lfm2moe": {**_MOE, **_RECURRENT_FIRST, "shortconv.l_cache": 3},
    "qwen35": _DELTA_NET,
    "qwen35moe": {**_MOE, **_DELTA_NET},
    "qwen3next": {**_MOE, **_DELTA_NET},
    "kimi-linear": _KDA,
    "nemotron_h": _NEMOTRON,
    "mamba": _SSM,
    "mamba2": _SSM,
    "granitehybrid": {**_SSM, **_RECURRENT_FIRST},
    "falcon-h1": _SSM,
    "jamba": {**_SSM, **_RECURRENT_FIRST},
    "plamo2": {**_SSM, **_RECURRENT_FIRST, "ssm.group_count": 0},
    "rwkv6": _WKV,
    "rwkv7": _WKV7,
    "arwkv7": {**_WKV7, "token_shift_count": 1},
}


def _common(architecture: str) -> dict[str, Value]:
    return {
        "vocab_size": N_VOCAB,
        "context_length": N_CTX_TRAIN,
        "embedding_length": _N_EMBD,
        "block_count": _N_LAYER,
        "feed_forward_length": 96,
        "attention.head_count": _N_HEAD,
        "attention.head_count_kv": _N_HEAD,
        "attention.layer_norm_rms_epsilon": 1e-8,
        "attention.layer_norm_epsilon": 1e-5,
        "logit_scale": 1.0,
    }


def write_tiny_arch(
    path: Path, architecture: str, *, seed: int = 0, extra: Mapping[str, Value] | None = None
) -> None:
    """Write a random model of an architecture, without a tokenizer.

    Args:
        extra: metadata beyond that in `ARCHS`; the name of the architecture is put in front of all
            but the tokenizer's.

    Raises:
        RuntimeError: llama.cpp makes no such model.
    """
    facts = {**_common(architecture), **ARCHS.get(architecture, {}), **(extra or {})}
    skeleton = path.with_suffix(".skeleton")
    _write(skeleton, architecture, facts, {})
    try:
        shapes = _ask_for_tensors(skeleton)
    finally:
        skeleton.unlink()
    _write(path, architecture, facts, {name: _weights(name, s, seed) for name, s in shapes.items()})


def _write(path: Path, architecture: str, facts: Mapping[str, Value], tensors: Weights) -> None:
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_tokenizer_model("no_vocab")
    for key, value in facts.items():
        _add(writer, key if key.startswith("tokenizer.") else f"{architecture}.{key}", value)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


class _Tensor(ctypes.Structure):
    """The beginning of ggml_tensor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
    )


def _ask_for_tensors(skeleton: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes, the fastest dimension first, of the tensors this metadata asks for."""
    shapes: dict[str, tuple[int, ...]] = {}
    get_name = native.ggml_get_name
    get_name.argtypes, get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
    n_dims = native.ggml_n_dims
    n_dims.argtypes, n_dims.restype = [ctypes.c_void_p], ctypes.c_int

    @llama_cpp.llama_model_set_tensor_data_t  # type: ignore[untyped-decorator]
    def note(tensor: int, _user_data: object) -> None:
        ne = _Tensor.from_address(tensor).ne
        name = get_name(tensor).decode()
        if not name.startswith("rope_") and not name.endswith("scale"):  # optional ones
            shapes[name] = tuple(ne[: n_dims(tensor)])

    read = native.gguf_init_from_file
    read.argtypes, read.restype = [ctypes.c_char_p, _GgufInitParams], ctypes.c_void_p
    native.gguf_free.argtypes = [ctypes.c_void_p]
    llama_cpp.llama_backend_init()
    metadata = read(os.fsencode(skeleton), _GgufInitParams(True, None))
    try:
        model = llama_cpp.llama_model_init_from_user(
            metadata, note, None, llama_cpp.llama_model_default_params()
        )
        if not model:
            raise RuntimeError("llama.cpp makes no such model; its log says why")
        llama_cpp.llama_model_free(model)
    finally:
        native.gguf_free(metadata)
    return shapes


class _GgufInitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def _weights(name: str, shape: tuple[int, ...], seed: int) -> npt.NDArray[np.float32]:
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    data = random.normal(0, 1, shape[::-1])
    if "ssm_a" in name:
        data = -np.abs(data)
    elif "norm" in name and name.endswith("weight"):
        data = 1 + 0.1 * data
    elif name.endswith("bias"):
        data *= 0  # some architectures differ in their use of these alone
    elif len(shape) == 1:
        data *= 0.1
    elif name.startswith("token_embd"):
        data *= 0.05
    else:
        data *= (3.0 if "attn_q." in name or "attn_k." in name else 2.0) / np.sqrt(shape[0])
    return data.astype(np.float32)
