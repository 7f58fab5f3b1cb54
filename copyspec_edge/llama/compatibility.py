"""Is the installed llama-cpp-python one that this package can use? Asked before anything else is.

llama.cpp's interface changes between releases. What is used of it is read off our own compiled
code, so that no list of names can fall behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import TypeVar

import llama_cpp

from copyspec_edge.errors import NativeBuildError

TESTED = "0.3.36"
REQUIREMENT = f"llama-cpp-python>={TESTED},<0.4"
_PREFIXES = ("llama_", "ggml_", "LLAMA_", "GGML_")

Struct = TypeVar("Struct")


@cache
def require_compatible() -> None:
    """Look for every function and constant of llama.cpp that our code names.

    Raises:
        NativeBuildError: some are missing; the message names both versions and what to do.
    """
    _refuse(sorted(name for name in used_names() if not hasattr(llama_cpp, name)))


def complete(struct: Struct) -> Struct:
    """A ctypes structure that was filled in, if it has all the fields that were.

    Assigning to a field it lacks only makes an attribute, which llama.cpp never sees.

    Raises:
        NativeBuildError: it lacks some.
    """
    kind = type(struct).__name__
    _refuse([f"{kind}.{name}" for name in vars(struct)])
    return struct


def used_names() -> set[str]:
    """Names of llama.cpp's interface in the functions of the rooms that use it."""
    users = [m for name, m in sys.modules.items() if name.startswith("copyspec_edge.")]
    return {
        name
        for module in users
        if getattr(module, "llama_cpp", None) is llama_cpp
        for code in _codes(module)
        for name in code.co_names
        if name.startswith(_PREFIXES) and name != "llama_cpp"
    }


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """The code of a module's functions and methods, and of what is defined inside them."""
    owners: list[object] = [module, *(v for v in vars(module).values() if isinstance(v, type))]
    left = []
    for owner in owners:
        for value in vars(owner).values():
            function = getattr(value, "fget", None) or getattr(value, "func", None) or value
            function = getattr(function, "__func__", function)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                left.append(function.__code__)
    while left:
        code = left.pop()
        yield code
        left += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _refuse(missing: list[str]) -> None:
    if missing:
        raise NativeBuildError(
            f"the installed llama-cpp-python {llama_cpp.__version__} has no {', '.join(missing)}; "
            f"this package is tested with {TESTED}: pip install '{REQUIREMENT}'"
        )
