"""Copy-accelerated text generation for any GGUF model: CopySpec on llama.cpp.

CopySpec (arXiv 2502.08923): what a model has already seen is drafted as a copy, and verified by the
model in one batch. See the README for the contract.
"""

from copyspec_edge.answer import Answer
from copyspec_edge.errors import (
    CancelledError,
    ChatTemplateError,
    ContextFullError,
    CopySpecError,
    EngineError,
    InvalidInputError,
    ModelLoadError,
    NativeBuildError,
    RegistryError,
    SessionBusyError,
    SessionClosedError,
)
from copyspec_edge.model import Model
from copyspec_edge.reply import Chunk, Reply
from copyspec_edge.sampling import SamplingParams
from copyspec_edge.session import Session
from copyspec_edge.settings import Settings
from copyspec_edge.stats import Stats, Step

__all__ = [
    "Answer",
    "CancelledError",
    "ChatTemplateError",
    "Chunk",
    "ContextFullError",
    "CopySpecError",
    "EngineError",
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
]
