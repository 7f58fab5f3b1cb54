"""Where the data files are: inside an installed package, at the top of a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PACKAGE = Path(__file__).parents[1]


def data_file(name: str, *, in_checkout: str | None = None) -> Path:
    """Path of a data file.

    Args:
        name: its name inside the installed package.
        in_checkout: its path from the top of a checkout, if it has another name there.
    """
    installed = _PACKAGE / name
    return installed if installed.exists() else _PACKAGE.parent / (in_checkout or name)


def read_toml(path: Path) -> dict[str, Any]:
    """The contents of a TOML file."""
    with path.open("rb") as file:
        content: dict[str, Any] = tomllib.load(file)
    return content
