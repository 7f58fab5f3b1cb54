"""Weights: a GGUF file loaded by llama.cpp, with the reasons why one cannot be."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Protocol

import llama_cpp

from copyspec_edge.errors import (
    InvalidInputError,
    ModelLoadError,
    SessionBusyError,
    SessionClosedError,
)
from copyspec_edge.host import machine, printable
from copyspec_edge.llama import log as native_log
from copyspec_edge.llama.compatibility import complete, require_compatible
from copyspec_edge.llama.home import Home
from copyspec_edge.llama.model_file import check_file, explain
from copyspec_edge.llama.recurrent_state import State, probe_state
from copyspec_edge.settings import Settings


class Closable(Protocol):
    """What can be freed."""

    def close(self) -> None:
        """Free it."""
        ...


class Weights:
    """A loaded model file. Freed by `close`, with its last reference, or at exit.

    Raises:
        ModelLoadError: not a file llama.cpp can decode with; the message says why.
        NativeBuildError: the installed llama-cpp-python is another than this package knows.
    """

    def __init__(self, path: Path, settings: Settings, *, use_extra_bufts: bool) -> None:
        require_compatible()
        check_file(path)
        params = _params(settings, use_extra_bufts)
        pointer = _load(path, params)
        self.path = path
        self._n_threads = settings.n_threads or machine.physical_cores()
        self.use_extra_bufts = use_extra_bufts
        self._pointer = pointer
        self._lock = threading.Lock()
        self._n_users = 0
        self._is_retired = False
        self.home = Home()
        # The native model may point to arrays of the parameters as long as it lives.
        self._free = self.home.free_with(self, _free_model, pointer, params)
        _refuse_unsupported(self)

    @property
    def is_open(self) -> bool:
        """Whether they were not freed, and not loaded before this process was forked."""
        return self._free.alive and self.home.is_here

    @contextmanager
    def retired(self) -> Iterator[None]:
        """Let nothing new begin with them meanwhile, as before a close."""
        self._is_retired = True
        try:
            yield
        finally:
            self._is_retired = False

    def admit(self) -> None:
        """Raise SessionClosedError, which says why, unless something new may begin."""
        self.home.require()
        if self._is_retired or not self._free.alive:
            raise SessionClosedError("this model was closed; load it again")

    @property
    def pointer(self) -> object:
        """The native model.

        Raises:
            SessionClosedError: it was freed, or loaded before this process was forked.
        """
        self.home.require()
        if not self._free.alive:
            raise SessionClosedError("this model was closed; load it again")
        return self._pointer

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let nobody free them meanwhile.

        Raises:
            SessionClosedError: they are freed, or were loaded before this process was forked.
        """
        self.home.require()
        with self._lock:
            self.admit()
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1

    def close(self, *, contexts: Iterable[Closable] = ()) -> None:
        """Free the contexts over them and then the weights, while nobody uses them. Idempotent.

        Raises:
            SessionBusyError: another thread is using them; nothing was freed.
        """
        with self._lock:
            if self._n_users:
                raise SessionBusyError("another thread is using this model; close it afterwards")
            for context in contexts:
                context.close()
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
    return complete(params)


def _load(path: Path, params: llama_cpp.llama_model_params) -> object:
    """The native model, and llama.cpp's log as long as it lives."""
    native_log.attach()
    try:
        native_log.clear_problems()
        llama_cpp.llama_backend_init()
        # The file system's bytes, whether they are UTF-8 or not; on Windows they are.
        pointer = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not pointer:
            raise ModelLoadError(explain(path, native_log.last_problems()))
    except BaseException:
        native_log.detach()
        raise
    return pointer


def _free_model(pointer: object, _params: object) -> None:
    llama_cpp.llama_model_free(pointer)
    native_log.detach()


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
        raise ModelLoadError(f"{printable(weights.path)}: {reason}")


def _wkv_head_size(weights: Weights) -> int:
    return int(weights.meta(f"{weights.architecture}.wkv.head_size") or 0)
