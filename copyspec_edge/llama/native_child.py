"""The child process of the native check: decodes a file, crashes, or says what went wrong.

Run by path as a script with "1" or "0", whether to use repacked weights, and a model file. It
imports nothing of this package, which would take seconds.
"""

from __future__ import annotations

import ctypes
import os
import sys

import llama_cpp
import numpy as np

_N_TOKENS = 8


def decode_once(path: str, *, extra_bufts: bool) -> None:
    """Read a few tokens and look at the logits.

    Raises:
        SystemExit: llama.cpp refused something, mostly for want of memory, or gave no numbers.
    """
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = extra_bufts
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise SystemExit("llama.cpp could not load a tiny model")
    context_params = llama_cpp.llama_context_default_params()
    context_params.n_ctx = 64
    context_params.n_threads = context_params.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(model, context_params)
    if not context:
        raise SystemExit("llama.cpp could not make a context for a tiny model")
    tokens = (ctypes.c_int32 * _N_TOKENS)(*range(_N_TOKENS))
    code = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, _N_TOKENS))
    logits = llama_cpp.llama_get_logits(context)
    if code or not logits or not np.isfinite(np.ctypeslib.as_array(logits, (64,))).all():
        raise SystemExit(f"decoding a tiny model went wrong (code {code})")
    sys.stdout.write("decoded")
    sys.stdout.flush()
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


if __name__ == "__main__":
    decode_once(sys.argv[2], extra_bufts=sys.argv[1] == "1")
