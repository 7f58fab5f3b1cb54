"""llama.cpp's log belongs to the process: it is borrowed, forwarded and given back."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RunPython

SETUP = """
import ctypes, gc, logging, sys
from pathlib import Path
import llama_cpp
heard = []

@llama_cpp.llama_log_callback
def app(level, text, user_data):
    heard.append((text, user_data))

def current():
    callback, data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
    return ctypes.cast(callback, ctypes.c_void_p).value, data.value

def address(callback):
    return ctypes.cast(callback, ctypes.c_void_p).value

from copyspec_edge.errors import ModelLoadError
from copyspec_edge.llama import Weights
from copyspec_edge.settings import Settings

def load():
    return Weights(Path(sys.argv[1]), Settings(n_threads=1), use_extra_bufts=False)
"""
CASES = {
    "importing takes nothing": """
assert current() == (address(llama_cpp._logger.llama_log_callback), None)
""",
    "an application's own hears every line and has it back": """
llama_cpp.llama_log_set(app, ctypes.c_void_p(7))
first, second = load(), load()
assert current()[0] != address(app)
assert any(b"llama_model_loader" in text for text, data in heard)
assert {data for text, data in heard} == {7}
first.close()
assert current()[0] != address(app)
second.close()
assert current() == (address(app), 7)
""",
    "the last model is garbage": """
llama_cpp.llama_log_set(app, ctypes.c_void_p(7))
weights = load()
del weights
gc.collect()
assert current() == (address(app), 7)
""",
    "a model that does not load": """
llama_cpp.llama_log_set(app, ctypes.c_void_p(7))
Path(sys.argv[1]).write_bytes(b"GGUF")
try:
    load()
except ModelLoadError as error:
    assert "truncated" in str(error)
assert heard
assert current() == (address(app), 7)
""",
    "who takes it after us keeps it, and may forward to us": """
llama_cpp.llama_log_set(app, None)
weights = load()
ours = llama_cpp.llama_log_callback()
llama_cpp.llama_log_get(ctypes.byref(ours), ctypes.byref(ctypes.c_void_p()))

@llama_cpp.llama_log_callback
def later(level, text, user_data):
    ours(level, text, user_data)

llama_cpp.llama_log_set(later, None)
weights.close()
assert current()[0] == address(later)
heard.clear()
load().close()
assert current()[0] == address(later)
""",
}


@pytest.fixture
def model(tmp_path: Path, tiny_path: Path) -> Path:
    """A model file that may be spoiled."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_path.read_bytes())
    return path


@pytest.mark.parametrize("case", list(CASES))
def test_the_log_is_borrowed(run_python: RunPython, model: Path, case: str) -> None:
    done = run_python("-c", SETUP + CASES[case], str(model))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("level", "prints"), [(None, False), ("logging.ERROR", False), ("logging.DEBUG", True)]
)
def test_the_printer_of_llama_cpp_python_prints_what_it_was_told_to(
    run_python: RunPython, model: Path, level: str | None, prints: bool
) -> None:
    told = f"logging.getLogger('llama-cpp-python').setLevel({level})\n" if level else ""
    done = run_python("-c", SETUP + told + "load().close()", str(model))
    assert done.returncode == 0, done.stderr
    assert ("llama_model_loader" in done.stderr) == prints


def test_python_is_not_called_by_what_logs_after_its_end(
    run_python: RunPython, model: Path
) -> None:
    """A destructor of a native library, as the GPU backends have, logs at exit."""
    code = "import atexit\natexit.register(lambda: print(current()[0] in ours))\n"
    ours = "ours = {address(llama_cpp._logger.llama_log_callback)}\n"
    done = run_python(
        "-c", code + SETUP + ours + "model = load()\nours.add(current()[0])\n", str(model)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
