"""llama.cpp's log, led to Python's `logging`: silent unless the application listens.

Logger "copyspec_edge.llama_cpp". The last lines are kept, since llama.cpp reports why something
failed only there.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections import deque

import llama_cpp

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_logger = logging.getLogger("copyspec_edge.llama_cpp")
_logger.addHandler(logging.NullHandler())
_problems: deque[str] = deque(maxlen=8)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _receive(level: int, text: bytes | None, _user_data: object) -> None:
    line = (text or b"").decode("utf-8", errors="replace").rstrip()
    if line.strip(". "):
        python_level = _LEVELS.get(level, logging.DEBUG)
        if python_level >= logging.WARNING:
            _problems.append(line)
        _logger.log(python_level, "%s", line)


def install() -> None:
    """Take over llama.cpp's log. Idempotent."""
    llama_cpp.llama_log_set(_receive, ctypes.c_void_p(0))


def clear_problems() -> None:
    """Forget earlier warnings and errors, before an operation that may fail."""
    _problems.clear()


def last_problems(count: int = 3) -> str:
    """The last warnings and errors of llama.cpp, for the message of an exception."""
    return "; ".join(list(_problems)[-count:])


def _uninstall() -> None:
    # A library destructor that logs after the interpreter is gone must not call into Python.
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))


# Finalizers run newest first at exit: after those that free contexts and weights, which log too.
weakref.finalize(_logger, _uninstall)
