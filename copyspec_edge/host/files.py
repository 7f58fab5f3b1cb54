"""Names of files, and small JSON files in the cache folder: losing one costs time, never more."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")
_DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
_logger = logging.getLogger("copyspec_edge")


def printable(path: Path) -> str:
    """A path as text that can be written anywhere: bytes that are not UTF-8 as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_json(path: Path, parse: Callable[[Any], _T | None]) -> _T | None:
    """What `parse` makes of a file; None where there is none, or a damaged one.

    Args:
        parse: takes what the JSON says; raises ValueError, TypeError or LookupError, or returns
            None, where that is not what it should be.
    """
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except _DAMAGE:
        return None


def write_json(path: Path, content: object) -> None:
    """Write a file whole or not at all; where that is impossible, log it and go on."""
    text = json.dumps(content, indent=1)
    temporary = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        _logger.info("cannot write %s: %s", printable(path), error)
