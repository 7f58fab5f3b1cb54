"""Numba compilation in one place: cached on disk where possible, working where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` with Numba, caching the machine code on disk.

    Numba refuses to cache, when the function is defined, if neither the install folder nor the
    user's cache folder can be written; then each process compiles for itself.
    """
    try:
        return cast(F, numba.njit(cache=True)(function))
    except RuntimeError:
        return cast(F, numba.njit(function))
