"""Weights: a GGUF file loaded by llama.cpp, with the reasons why one cannot be."""

from __future__ import annotations

import ctypes
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import llama_cpp

from copyspec_edge.errors import (
    InvalidInputError,
    ModelLoadError,
    SessionBusyError,
    SessionClosedError,
)
from copyspec_edge.host import machine
from copyspec_edge.llama import log as native_log
from copyspec_edge.llama.recurrent_state import State, probe_state
from copyspec_edge.settings import Settings

_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_NO_WEIGHTS = "weights are missing: a vocabulary-only file, or one made for another program"
# Part of llama.cpp's log -> what it means to the user.
_REASONS = (
    ("unknown model architecture", "this llama.cpp does not know the model's architecture; "
     "a newer llama-cpp-python may: pip install --upgrade llama-cpp-python"),
    ("missing tensor", _NO_WEIGHTS),
    ("check_tensor_dims", _NO_WEIGHTS),
    ("not within the file bounds", "the file is truncated; download it again"),
    ("failed to read", "the file is truncated or damaged; download it again"),
    ("unable to allocate", "not enough memory; choose a smaller model or fewer GPU layers"),
    ("out of memory", "not enough memory; choose a smaller model or fewer GPU layers"),
    ("invalid split file", "pass the first part of a split model, …-00001-of-….gguf"),
)  # fmt: skip


class Weights:
    """A loaded model file. Freed by `close`, with its last reference, or at exit.

    Raises:
        ModelLoadError: not a file llama.cpp can decode with; the message says why.
    """

    def __init__(self, path: Path, settings: Settings, *, use_extra_bufts: bool) -> None:
        _check_file(path)
        native_log.install()
        native_log.clear_problems()
        llama_cpp.llama_backend_init()
        pointer = llama_cpp.llama_model_load_from_file(
            str(path).encode(), _params(settings, use_extra_bufts)
        )
        if not pointer:
            raise ModelLoadError(_explain(path, native_log.last_problems()))
        self.path = path
        self._n_threads = settings.n_threads or machine.physical_cores()
        self.use_extra_bufts = use_extra_bufts
        self._pointer = pointer
        self._lock = threading.Lock()
        self._n_users = 0
        self._free = weakref.finalize(self, llama_cpp.llama_model_free, pointer)
        _refuse_unsupported(self)

    @property
    def pointer(self) -> object:
        """The native model.

        Raises:
            SessionClosedError: it was freed.
        """
        if not self._free.alive:
            raise SessionClosedError("this model was closed; load it again")
        return self._pointer

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let nobody free them meanwhile.

        Raises:
            SessionClosedError: they were freed.
        """
        with self._lock:
            self.pointer  # noqa: B018 - raises if they were freed
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1

    def close(self) -> None:
        """Free the weights. No context may be using them any more. Idempotent.

        Raises:
            SessionBusyError: another thread is using them.
        """
        with self._lock:
            if self._n_users:
                raise SessionBusyError("another thread is using this model; close it afterwards")
            self._free()

    def meta(self, key: str) -> str | None:
        """A metadata value of the file as text, or None."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode("utf-8", "replace")
            size = length + 1

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return self.meta("general.architecture") or "unknown"

    @property
    def description(self) -> str:
        """Architecture, size and quantization in a few words."""
        buffer = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.pointer, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def n_ctx_train(self) -> int:
        """The context length the model was trained for."""
        return int(llama_cpp.llama_model_n_ctx_train(self.pointer))

    @property
    def n_swa(self) -> int:
        """Width of its sliding window in tokens, 0 without one."""
        return int(llama_cpp.llama_model_n_swa(self.pointer))

    @property
    def chat_template(self) -> str | None:
        """Source of the chat template, or None."""
        template = llama_cpp.llama_model_chat_template(self.pointer, None)
        return template.decode("utf-8", "replace") if template else None

    @cached_property
    def state(self) -> State | None:
        """Its recurrent state, found out about once; None: it keeps attention alone."""
        pointer = self.pointer
        if llama_cpp.llama_model_is_recurrent(pointer) or llama_cpp.llama_model_is_hybrid(pointer):
            return probe_state(pointer, self._n_threads)
        return None

    @property
    def attention_shape(self) -> tuple[int, int, int]:
        """(query heads, KV heads, width of a head)."""
        heads = int(llama_cpp.llama_model_n_head(self.pointer)) or 1
        kv_heads = int(llama_cpp.llama_model_n_head_kv(self.pointer)) or heads
        width = self.meta(f"{self.architecture}.attention.key_length")
        n_embd = int(llama_cpp.llama_model_n_embd(self.pointer))
        return heads, kv_heads, int(width) if width else n_embd // heads

    def kv_bytes_per_token(self) -> int:
        """Bytes of a 16-bit KV cache per token of context, at most."""
        _, kv_heads, width = self.attention_shape
        return 4 * kv_heads * width * int(llama_cpp.llama_model_n_layer(self.pointer))


def _params(settings: Settings, use_extra_bufts: bool) -> llama_cpp.llama_model_params:
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    params.main_gpu = settings.main_gpu
    params.use_extra_bufts = use_extra_bufts
    params.load_mode = {
        (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
        (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
        (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
        (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
    }[settings.use_mmap, settings.use_mlock]
    if settings.tensor_split is not None:
        most = llama_cpp.llama_max_devices()
        if len(settings.tensor_split) > most:
            raise InvalidInputError(f"tensor_split has more than the {most} possible devices")
        params.tensor_split = (ctypes.c_float * most)(*settings.tensor_split)
    return params


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ModelLoadError(f"{path} is a folder; pass the .gguf file in it")
    if not path.exists():
        raise ModelLoadError(f"{path} does not exist")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelLoadError(f"{path} is not a GGUF file; convert or download the model as GGUF")
    split = _SPLIT_NAME.fullmatch(path.name)
    if split:
        stem, _, count = split.groups()
        names = (f"{stem}-{part:05d}-of-{count}.gguf" for part in range(1, int(count) + 1))
        missing = [name for name in names if not path.with_name(name).exists()]
        if missing:
            raise ModelLoadError(f"{path} is a part of a split model; missing: {missing[0]}")


def _explain(path: Path, log: str) -> str:
    meaning = next((text for sign, text in _REASONS if sign in log), "llama.cpp cannot load it")
    return f"{path}: {meaning}" + (f" (llama.cpp: {log})" if log else "")


def _refuse_unsupported(weights: Weights) -> None:
    pointer = weights.pointer
    reason = None
    if llama_cpp.llama_model_has_encoder(pointer) or not llama_cpp.llama_model_has_decoder(pointer):
        reason = "it has an encoder; only decoders can write text token by token"
    elif llama_cpp.llama_model_is_diffusion(pointer):
        reason = "it is a diffusion model, which does not write token by token"
    elif weights.meta(f"{weights.architecture}.attention.causal") == "false":
        reason = "it is an embedding model, which does not write text"
    elif weights.architecture in ("rwkv7", "arwkv7") and _wkv_head_size(weights) % 64:
        reason = "llama.cpp's kernels write past heads whose size is no multiple of 64"
    if reason:
        weights.close()
        raise ModelLoadError(f"{weights.path}: {reason}")


def _wkv_head_size(weights: Weights) -> int:
    return int(weights.meta(f"{weights.architecture}.wkv.head_size") or 0)
