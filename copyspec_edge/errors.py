"""Everything this package raises on purpose. Each message says what to do next."""

from __future__ import annotations


class CopySpecError(Exception):
    """Base of all errors of this package."""


class InvalidInputError(CopySpecError, ValueError):
    """An argument is out of its range or empty; nothing was started."""


class ModelLoadError(CopySpecError):
    """The model file cannot be loaded; the message carries llama.cpp's reason."""


class NativeBuildError(CopySpecError):
    """The installed llama.cpp crashes on this machine, or is another than this package knows.

    The message says how to rebuild it, or which one to install.
    """


class RegistryError(CopySpecError):
    """A model name is unknown, or its file could not be fetched intact."""


class ChatTemplateError(CopySpecError):
    """The model has no chat template, or its template failed on these messages."""


class ContextFullError(CopySpecError):
    """The prompt does not fit into the context. The session is unchanged."""


class EngineError(CopySpecError):
    """llama.cpp refused or failed an operation. The session is at its last committed token."""


class ExactnessError(CopySpecError):
    """`exact=True` cannot be kept with this model here; the message says what was seen."""


class CancelledError(CopySpecError):
    """A native call was stopped by a cancel. Sessions turn this into a finish reason."""


class SessionBusyError(CopySpecError):
    """Another answer of this session is still being generated or was left unfinished."""


class SessionClosedError(CopySpecError):
    """The session or its model was closed, or loaded before this process was forked."""
