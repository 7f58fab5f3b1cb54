"""llama.cpp's log, led to Python's `logging`: silent unless the application listens.

Logger "copyspec_edge.llama_cpp". The last lines are kept, since llama.cpp reports why something
failed only there. The log of llama.cpp is one for the whole process, so it is borrowed: whoever had
it gets every line too, and has it back when the last model is freed. The printer that
llama-cpp-python installs by itself gets them only where the level of its logger was set, as
`Llama(verbose=...)` does; until then it would print all of them.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp
from llama_cpp._logger import llama_log_callback as _printer
from llama_cpp._logger import logger as _printer_logger

Callback = Any  # a function pointer of ctypes, whose class has no public name
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_logger = logging.getLogger("copyspec_edge.llama_cpp")
_logger.addHandler(logging.NullHandler())
_problems: deque[str] = deque(maxlen=8)


class _Borrowed:
    """Who uses llama.cpp's log here, and whose it is otherwise."""

    def __init__(self) -> None:
        # Models are freed by the garbage collector too, in the middle of anything.
        self._lock = threading.RLock()
        self._n_users = 0
        self._callback, self._user_data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
        self._thread = threading.local()

    def attach(self) -> None:
        with self._lock:
            self._n_users += 1
            if self._n_users == 1 and not _is_current(_receive):
                self._callback, self._user_data = _current()
                llama_cpp.llama_log_set(_receive, ctypes.c_void_p())

    def detach(self) -> None:
        with self._lock:
            self._n_users -= 1
            if not self._n_users and _is_current(_receive):
                llama_cpp.llama_log_set(self._callback, self._user_data)

    def forward(self, level: int, text: bytes | None) -> None:
        is_silent = _address(self._callback) == _address(_printer) and not _printer_logger.level
        # Whoever takes the log after us may forward to us what we forward to him.
        if not self._callback or is_silent or getattr(self._thread, "is_forwarding", False):
            return
        self._thread.is_forwarding = True
        try:
            self._callback(level, text, self._user_data)
        finally:
            self._thread.is_forwarding = False


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _receive(level: int, text: bytes | None, _user_data: object) -> None:
    line = (text or b"").decode("utf-8", errors="replace").rstrip()
    if line.strip(". "):
        python_level = _LEVELS.get(level, logging.DEBUG)
        if python_level >= logging.WARNING:
            _problems.append(line)
        _logger.log(python_level, "%s", line)
    _borrowed.forward(level, text)


def _current() -> tuple[Callback, ctypes.c_void_p]:
    callback, user_data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(callback), ctypes.byref(user_data))
    return callback, user_data


def _address(callback: Callback) -> int | None:
    return ctypes.cast(callback, ctypes.c_void_p).value


def _is_current(callback: Callback) -> bool:
    return _address(_current()[0]) == _address(callback)


_borrowed = _Borrowed()


def attach() -> None:
    """Hear llama.cpp's log until a `detach` for each of these."""
    _borrowed.attach()


def detach() -> None:
    """Hear it no longer; the last one gives it back."""
    _borrowed.detach()


@contextmanager
def attached() -> Iterator[None]:
    """Hear llama.cpp's log meanwhile."""
    attach()
    try:
        yield
    finally:
        detach()


def clear_problems() -> None:
    """Forget earlier warnings and errors, before an operation that may fail."""
    _problems.clear()


def last_problems(count: int = 3) -> str:
    """The last warnings and errors of llama.cpp, for the message of an exception."""
    return "; ".join(list(_problems)[-count:])


def _leave() -> None:
    # A library destructor that logs after the interpreter is gone must not call into Python.
    # llama.cpp's own default prints as llama-cpp-python's printer does.
    if _is_current(_receive) or _is_current(_printer):
        llama_cpp.llama_log_set(llama_cpp.llama_log_callback(), ctypes.c_void_p())


# Finalizers run newest first at exit: after those that free contexts and weights, which log too.
weakref.finalize(_logger, _leave)
