"""Models and processes that several tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from tiny_gguf import write_f16_copy, write_spelling_model, write_tiny_model

from copyspec_edge import Model, Settings
from copyspec_edge.llama.native_check import choose_extra_bufts
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.llama.weights import Weights
from copyspec_edge.registry import locate

_TIMEOUT_SECONDS = 300


class RunPython(Protocol):
    """Runs a Python child process to its end."""

    def __call__(
        self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]: ...


def _run_python(
    *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        timeout=_TIMEOUT_SECONDS,
        env={**os.environ, **(env or {})},
    )
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run a Python child process with these arguments."""
    return _run_python


@pytest.fixture(scope="session")
def cli() -> RunPython:
    """Run `copyspec-edge` with these arguments in a child process."""

    def run(
        *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return _run_python("-m", "copyspec_edge", *arguments, stdin=stdin, env=env)

    return run


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer random llama without a tokenizer."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(path)
    return path


@pytest.fixture(scope="session")
def spelling_path(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with a tokenizer that puts a BOS in front, and a chat template."""
    path = tmp_path_factory.mktemp("spelling") / "spelling.gguf"
    write_spelling_model(tiny_path, path)
    return path


@pytest.fixture(scope="session")
def extra_bufts() -> bool:
    """Whether this machine's llama.cpp may use repacked weights."""
    return choose_extra_bufts()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2 135M, Q4_1, fetched through the registry."""
    return locate("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Iterator[Model]:
    """SmolLM2 as shipped, one thread."""
    with Model.load(smollm2_path, Settings(n_threads=1, calibrate=False, n_ctx=2048)) as model:
        yield model


@pytest.fixture(scope="session")
def real_vocab(smollm2_path: Path) -> Iterator[Vocab]:
    """The vocabulary of SmolLM2, to be used with fake engines too."""
    weights = Weights(smollm2_path, Settings(n_threads=1), use_extra_bufts=False)
    yield Vocab(weights)
    weights.close()


@pytest.fixture(scope="session")
def smollm2_f16_path(
    smollm2_path: Path, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """SmolLM2 with F16 weights, made once and kept in pytest's cache folder if it has one."""
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    folder = cache.mkdir("gguf") if cache else tmp_path_factory.mktemp("gguf")
    path = folder / f"{smollm2_path.stem}.F16.gguf"
    if not path.exists():
        write_f16_copy(smollm2_path, path)
    return path


@pytest.fixture(scope="session")
def smollm2_f16(smollm2_f16_path: Path) -> Iterator[Model]:
    """F16 weights and flash attention off: rows round alike in every batch of 2 or more."""
    with Model.load(
        smollm2_f16_path, Settings(n_threads=1, calibrate=False, n_ctx=1024, flash_attn="off")
    ) as model:
        yield model
