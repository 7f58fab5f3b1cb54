"""Small files in the user's cache folder. Losing one costs time, never more."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_logger = logging.getLogger("copyspec_edge")


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all; where that is impossible, log it and go on."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        _logger.info("cannot write %s: %s", path, error)
