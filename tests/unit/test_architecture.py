"""Rooms are entered by their doors; the other contracts are import-linter's, in pyproject.toml."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import copyspec_edge

PACKAGE = Path(copyspec_edge.__file__).parent
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_uses_other_rooms_through_what_they_export(module: str) -> None:
    inside = [name.split(".") for name in imported(PACKAGE / module)]
    own = module.split("/")[0]
    past = [
        ".".join(name)
        for name in inside
        if name[0] == "copyspec_edge" and len(name) > 2 and name[1] in ROOMS and name[1] != own
    ]
    assert not past


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for(room: str) -> None:
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
