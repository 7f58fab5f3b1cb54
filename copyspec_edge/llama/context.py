"""How a llama.cpp context is made: its parameters from our settings, and its size."""

from __future__ import annotations

import llama_cpp

from copyspec_edge.errors import EngineError
from copyspec_edge.host import machine
from copyspec_edge.llama import log as native_log
from copyspec_edge.llama.compatibility import complete
from copyspec_edge.llama.weights import Weights
from copyspec_edge.settings import Settings

_GGML_TYPE_BF16 = 30
_FLASH = {"auto": -1, "on": 1, "off": 0}


def default_n_ctx(weights: Weights, settings: Settings) -> int:
    """The context to use: as asked, else the model's, at most 8192 and half of free memory."""
    if settings.n_ctx is not None:
        return settings.n_ctx
    n_ctx = min(weights.n_ctx_train or 8192, 8192)
    memory = machine.available_memory()
    if memory is not None:
        affordable = memory // 2 // max(1, weights.kv_bytes_per_token())
        n_ctx = min(n_ctx, max(512, affordable))
    return n_ctx


def context_params(
    settings: Settings, *, n_ctx: int, max_rows: int
) -> llama_cpp.llama_context_params:
    """The parameters of a context of `n_ctx` positions that gives up to `max_rows` rows."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = settings.n_batch
    params.n_ubatch = min(settings.n_batch, settings.n_ubatch)
    params.n_seq_max = 1
    params.n_outputs_max = max_rows
    params.n_threads = settings.n_threads or machine.physical_cores()
    params.n_threads_batch = settings.n_threads_batch or params.n_threads
    params.flash_attn_type = _FLASH[settings.flash_attn]
    params.type_k = _ggml_type(settings.type_k)
    params.type_v = _ggml_type(settings.type_v)
    # A window's ring of cells depends, where it wraps, on what was rolled back.
    params.swa_full = settings.exact
    params.no_perf = True
    return params


def make_context(weights: Weights, params: llama_cpp.llama_context_params) -> object:
    """The native context; with fewer saved states of a recurrent model if it fits only then.

    Raises:
        EngineError: llama.cpp could not make it, mostly for lack of memory.
    """
    native_log.clear_problems()
    complete(params)
    context = llama_cpp.llama_init_from_model(weights.pointer, params)
    if not context and params.n_rs_seq:
        # The states may have to fit on a GPU, of whose memory nothing is known.
        params.n_rs_seq = 0
        context = llama_cpp.llama_init_from_model(weights.pointer, params)
    if not context:
        raise EngineError(
            f"llama.cpp could not make a context of {params.n_ctx} tokens: "
            f"{native_log.last_problems() or 'no reason given'}; "
            "if memory is short, choose a smaller n_ctx or fewer GPU layers"
        )
    return context


def _ggml_type(name: str) -> int:
    if name == "bf16":  # llama_cpp has no name for it
        return _GGML_TYPE_BF16
    return int(getattr(llama_cpp, f"GGML_TYPE_{name.upper()}"))
