"""Copy-accelerated text generation for any GGUF model: CopySpec on llama.cpp.

CopySpec (arXiv 2502.08923): what a model has already seen is drafted as a copy, and verified by the
model in one batch. See the README for the contract.

The public names are imported when they are first used: loading llama.cpp takes a moment, and what
its libraries read from the environment has to be set before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from copyspec_edge.answer import Answer
    from copyspec_edge.chat import Chunk, Reply
    from copyspec_edge.decoding import Stats, Step
    from copyspec_edge.errors import (
        CancelledError,
        ChatTemplateError,
        ContextFullError,
        CopySpecError,
        EngineError,
        ExactnessError,
        InvalidInputError,
        ModelLoadError,
        NativeBuildError,
        RegistryError,
        SessionBusyError,
        SessionClosedError,
    )
    from copyspec_edge.model import Model
    from copyspec_edge.sampling import SamplingParams, TokenLogprob
    from copyspec_edge.session import Session
    from copyspec_edge.settings import Settings

_HOMES = {
    "Answer": "answer",
    "CancelledError": "errors",
    "ChatTemplateError": "errors",
    "Chunk": "chat",
    "ContextFullError": "errors",
    "CopySpecError": "errors",
    "EngineError": "errors",
    "ExactnessError": "errors",
    "InvalidInputError": "errors",
    "Model": "model",
    "ModelLoadError": "errors",
    "NativeBuildError": "errors",
    "RegistryError": "errors",
    "Reply": "chat",
    "SamplingParams": "sampling",
    "Session": "session",
    "SessionBusyError": "errors",
    "SessionClosedError": "errors",
    "Settings": "settings",
    "Stats": "decoding",
    "Step": "decoding",
    "TokenLogprob": "sampling",
}

__all__ = [
    "Answer",
    "CancelledError",
    "ChatTemplateError",
    "Chunk",
    "ContextFullError",
    "CopySpecError",
    "EngineError",
    "ExactnessError",
    "InvalidInputError",
    "Model",
    "ModelLoadError",
    "NativeBuildError",
    "RegistryError",
    "Reply",
    "SamplingParams",
    "Session",
    "SessionBusyError",
    "SessionClosedError",
    "Settings",
    "Stats",
    "Step",
    "TokenLogprob",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
