from __future__ import annotations

import ctypes
import re
from pathlib import Path

import llama_cpp
import pytest

import copyspec_edge
import copyspec_edge.model  # every room that uses llama.cpp
from copyspec_edge import NativeBuildError
from copyspec_edge.llama import compatibility
from copyspec_edge.llama.compatibility import (
    REQUIREMENT,
    TESTED,
    complete,
    require_compatible,
    used_names,
)
from copyspec_edge.llama.native_check import choose_extra_bufts

PACKAGE = Path(copyspec_edge.__file__).parent


def test_every_call_of_llama_cpp_is_looked_for() -> None:
    called = {
        name
        for path in PACKAGE.rglob("*.py")
        if path.name != "native_child.py"
        for name in re.findall(r"(?<!@)llama_cpp\.(l\w+)\(", path.read_text(encoding="utf-8"))
    }
    assert len(called) > 50
    assert called <= used_names()


def test_what_is_installed_has_everything() -> None:
    require_compatible.cache_clear()
    require_compatible()


def test_a_missing_function_is_an_error_that_names_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(llama_cpp, "llama_memory_seq_rm")
    monkeypatch.delattr(llama_cpp, "LLAMA_LOAD_MODE_MLOCK")
    monkeypatch.setattr(llama_cpp, "__version__", "0.3.5")
    require_compatible.cache_clear()
    with pytest.raises(NativeBuildError) as caught:
        choose_extra_bufts()
    message = str(caught.value)
    assert "llama-cpp-python 0.3.5 has no LLAMA_LOAD_MODE_MLOCK, llama_memory_seq_rm" in message
    assert f"tested with {TESTED}: pip install '{REQUIREMENT}'" in message


def test_a_missing_field_of_a_structure_is_an_error() -> None:
    class Params(ctypes.Structure):
        _fields_ = (("n_ctx", ctypes.c_int),)

    params = Params()
    params.n_ctx = 4
    assert complete(params) is params
    params.n_rs_seq = 2
    with pytest.raises(NativeBuildError, match=r"has no Params\.n_rs_seq"):
        complete(params)


def test_what_is_tested_is_what_is_installed_with_the_package() -> None:
    pyproject = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{REQUIREMENT}"' in pyproject
    assert compatibility.TESTED in REQUIREMENT
