"""Everything that touches llama.cpp: weights, contexts, batches, rollback, vocabulary, log, build.

It knows tokens, positions and rows of logits; it does not know drafts, conversations or policies.
Nothing outside this room imports `llama_cpp`.
"""

from __future__ import annotations

from copyspec_edge.llama import log, samplers
from copyspec_edge.llama.build import build_key, features, library_folder, supports_gpu
from copyspec_edge.llama.candidates import Candidates, selected
from copyspec_edge.llama.compatibility import require_compatible
from copyspec_edge.llama.context import default_n_ctx
from copyspec_edge.llama.engine import Engine
from copyspec_edge.llama.gbnf import gbnf
from copyspec_edge.llama.native_check import Outcome, choose_extra_bufts, probe
from copyspec_edge.llama.presets import gpu_presets, rebuild_command
from copyspec_edge.llama.samplers import NativeSampler
from copyspec_edge.llama.tiny_model import write_tiny_model
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.llama.weights import Weights

__all__ = [
    "Candidates",
    "Engine",
    "NativeSampler",
    "Outcome",
    "Vocab",
    "Weights",
    "build_key",
    "choose_extra_bufts",
    "default_n_ctx",
    "features",
    "gbnf",
    "gpu_presets",
    "library_folder",
    "log",
    "probe",
    "rebuild_command",
    "require_compatible",
    "samplers",
    "selected",
    "supports_gpu",
    "write_tiny_model",
]
