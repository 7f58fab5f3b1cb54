from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import CRASHING_BUILD, RunPython

from copyspec_edge import Model, NativeBuildError, SamplingParams, Settings
from copyspec_edge import model as model_module
from copyspec_edge.llama import build, native_check
from copyspec_edge.llama.build import key_of
from copyspec_edge.llama.native_check import choose_extra_bufts, judge, probe, remembered_probe
from copyspec_edge.llama.weights import Weights

CRASH = "import ctypes; ctypes.string_at(0)"
FINE = "print('decoded')"
CRASHES_WITH_EXTRA_BUFFERS = f"import sys\nif sys.argv[1] == '1':\n    {CRASH}\n{FINE}\n"

Child = Callable[[str], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    """Make the probe run other code."""
    script = tmp_path / "child.py"
    monkeypatch.setattr(native_check, "CHILD", script)

    def use(code: str) -> None:
        script.write_text(code, encoding="utf-8")

    return use


def forbid_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("started a child process")

    monkeypatch.setattr(subprocess, "run", refuse)


def remembered_files(cache: Path) -> list[Path]:
    return list(cache.rglob("*.json"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_real_probe_tells_whether_this_build_decodes() -> None:
    assert probe(extra_bufts=False).status == "works"
    assert probe(extra_bufts=True).status in ("works", "crashes")


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_a_crashing_build_can_be_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `--native-check=fails` does to all tests."""
    monkeypatch.setenv("PYTHONPATH", str(CRASHING_BUILD), prepend=os.pathsep)
    assert probe(extra_bufts=True).status == "crashes"
    assert probe(extra_bufts=False).status == "works"


def test_the_real_child_needs_nothing_of_the_package(tiny_path: Path) -> None:
    code = (
        f"import runpy, sys; sys.argv[1:] = ['0', {str(tiny_path)!r}]\n"
        f"runpy.run_path({str(native_check.CHILD)!r}, run_name='__main__')\n"
        "assert 'copyspec_edge' not in sys.modules and 'numba' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "decoded"


@pytest.mark.parametrize(
    ("code", "status", "detail"),
    [
        (FINE, "works", ""),
        ("pass", "unknown", "exit code 0"),
        ("raise SystemExit('no good')", "unknown", "no good"),
        ("raise ImportError('gguf')", "unknown", "ImportError: gguf"),
    ],
)
def test_the_end_of_the_child_is_judged(child: Child, code: str, status: str, detail: str) -> None:
    child(code)
    outcome = probe(extra_bufts=True)
    assert (outcome.status, outcome.detail) == (status, detail)


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_a_crash_is_told_with_its_signal(child: Child) -> None:
    child(CRASH)
    outcome = probe(extra_bufts=True)
    assert (outcome.status, outcome.detail) == ("crashes", "signal 11")


@pytest.mark.parametrize(
    ("code", "stderr", "status"),
    [
        (0xC0000005, b"", "crashes"),
        (0xC000001D, b"", "crashes"),
        (0xC0000409, b"", "crashes"),
        (0xC0000409, b"std::bad_alloc", "unknown"),
        (0xC0000017, b"", "unknown"),  # no memory
        (0xC000013A, b"", "unknown"),  # Ctrl-C
        (0xC0000135, b"", "unknown"),  # a library was not found
    ],
)
def test_of_windows_exceptions_only_faults_are_crashes(
    code: int, stderr: bytes, status: str
) -> None:
    outcome = judge(code, b"", stderr)
    assert outcome.status == status
    assert (outcome.detail == f"exception {code:#x}") == (status == "crashes")


ABORT = "import os, sys; sys.stderr.write({!r}); sys.stderr.flush(); os.abort()"
PASSING = {
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "told to end": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "C++ memory": ABORT.format("terminate called after throwing an instance of 'std::bad_alloc'"),
    "native memory": ABORT.format("ggml_aligned_malloc: insufficient memory"),
    "Python memory": "raise MemoryError",
    "no model": "raise SystemExit('llama.cpp could not load a tiny model')",
}


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
@pytest.mark.parametrize("reason", list(PASSING))
def test_what_passes_is_no_crash_and_not_remembered(
    child: Child, cache: Path, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    child(PASSING[reason])
    assert choose_extra_bufts() is False
    (warning,) = warnings(caplog)
    assert "could not check" in warning
    assert remembered_files(cache) == []
    child(FINE)
    assert choose_extra_bufts() is True


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_an_assertion_of_llama_cpp_is_a_crash(child: Child) -> None:
    child(ABORT.format("GGML_ASSERT(n > 0) failed"))
    assert probe(extra_bufts=True).status == "crashes"


def test_a_crash_that_does_not_happen_again_is_not_believed(
    child: Child, cache: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "was here"
    child(
        f"from pathlib import Path\nmark = Path({str(mark)!r})\n"
        f"if not mark.exists():\n    mark.touch()\n    {CRASH}\n{FINE}\n"
    )
    outcome = remembered_probe(extra_bufts=True)
    assert outcome.status == "unknown"
    assert "crashed once" in outcome.detail
    assert remembered_files(cache) == []


NO_MEMORY = """
import runpy, sys
import llama_cpp
llama_cpp.{} = lambda *arguments: None
runpy.run_path({!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    "refused", ["llama_model_load_from_file", "llama_init_from_model", "llama_get_logits"]
)
def test_what_llama_cpp_refuses_for_want_of_memory_is_no_crash(
    request: pytest.FixtureRequest, refused: str
) -> None:
    real = native_check.CHILD
    child: Child = request.getfixturevalue("child")
    child(NO_MEMORY.format(refused, str(real)))
    outcome = probe(extra_bufts=False)
    assert outcome.status == "unknown"
    assert "tiny model" in outcome.detail


def test_a_child_that_cannot_be_started_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert probe(extra_bufts=True).status == "unknown"
    monkeypatch.setattr(sys, "executable", "")
    assert "no Python" in probe(extra_bufts=True).detail
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert probe(extra_bufts=True).status == "unknown"


def test_a_build_that_works_is_used_in_silence_and_remembered(
    child: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    child(FINE)
    assert choose_extra_bufts()
    forbid_children(monkeypatch)
    assert choose_extra_bufts()
    assert warnings(caplog) == []


def test_a_build_that_crashes_with_repacking_is_used_without_it_and_warned_of_once(
    child: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    child(CRASHES_WITH_EXTRA_BUFFERS)
    assert choose_extra_bufts() is False
    (warning,) = warnings(caplog)
    assert "crashes on this machine" in warning
    assert "CMAKE_ARGS" in warning
    assert "pip install" in warning
    forbid_children(monkeypatch)
    assert choose_extra_bufts() is False


def test_a_build_that_crashes_either_way_is_refused_and_that_is_remembered(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(CRASH)
    with pytest.raises(NativeBuildError, match=r"crashes on this machine.*CMAKE_ARGS"):
        choose_extra_bufts()
    forbid_children(monkeypatch)
    with pytest.raises(NativeBuildError):
        choose_extra_bufts()


def test_a_child_that_hangs_is_ended_and_asked_again_next_time(
    child: Child,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(native_check, "TIMEOUT_SECONDS", 0.5)
    child("import time; time.sleep(60)")
    assert choose_extra_bufts() is False
    (warning,) = warnings(caplog)
    assert "longer than 0.5 s" in warning
    assert remembered_files(cache) == []
    monkeypatch.setattr(native_check, "TIMEOUT_SECONDS", 60.0)
    child(FINE)
    assert choose_extra_bufts() is True


DAMAGED = [
    "",
    "no JSON",
    "[]",
    "null",
    "7",
    '{"extra_bufts": 1}',
    '{"extra_bufts": {}}',
    '{"extra_bufts": {"status": "maybe", "detail": ""}}',
    '{"extra_bufts": {"status": "unknown", "detail": ""}}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_cache_file_is_asked_again_and_replaced(
    child: Child, cache: Path, content: str
) -> None:
    child(FINE)
    assert choose_extra_bufts()
    (file,) = remembered_files(cache)
    file.write_text(content, encoding="utf-8")
    child(CRASHES_WITH_EXTRA_BUFFERS)
    assert not choose_extra_bufts()
    assert json.loads(file.read_text(encoding="utf-8"))["extra_bufts"]["status"] == "crashes"


def test_both_questions_of_a_build_are_remembered_in_one_file(child: Child, cache: Path) -> None:
    child(CRASHES_WITH_EXTRA_BUFFERS)
    remembered_probe(extra_bufts=False)
    remembered_probe(extra_bufts=True)
    (file,) = remembered_files(cache)
    raw = json.loads(file.read_text(encoding="utf-8"))
    assert {name: entry["status"] for name, entry in raw.items()} == {
        "plain": "works",
        "extra_bufts": "crashes",
    }


def test_a_cache_folder_that_cannot_be_written_does_no_harm(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "file"))
    child(FINE)
    assert choose_extra_bufts()
    assert choose_extra_bufts()


def test_another_build_is_asked_again(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    child(FINE)
    assert choose_extra_bufts()
    child(CRASHES_WITH_EXTRA_BUFFERS)
    assert choose_extra_bufts()
    monkeypatch.setattr(build, "build_key", lambda: "another-build")
    assert not choose_extra_bufts()


def test_another_version_processor_or_library_is_another_build(tmp_path: Path) -> None:
    def key(version: str = "1", processor: str = "a") -> str:
        assert key_of(version, processor, tmp_path) == key_of(version, processor, tmp_path)
        return key_of(version, processor, tmp_path)

    keys = [key(), key(version="2"), key(processor="b")]
    for content in (b"", b"rebuilt"):
        (tmp_path / "libllama.so").write_bytes(content)
        keys.append(key())
    assert len(set(keys)) == len(keys)


def test_importing_looks_at_no_build(run_python: RunPython) -> None:
    code = (
        "import copyspec_edge.model\n"
        "from copyspec_edge.llama.build import build_key\n"
        "print(build_key.cache_info().currsize)\n"
        "build_key(), build_key()\n"
        "print(build_key.cache_info().misses)"
    )
    assert run_python("-c", code).stdout.split() == ["0", "1"]


def test_a_model_loads_and_decodes_without_repacking_on_a_build_that_crashes(
    child: Child, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[bool] = []

    def watched(path: Path, settings: Settings, *, use_extra_bufts: bool) -> Weights:
        used.append(use_extra_bufts)
        return Weights(path, settings, use_extra_bufts=use_extra_bufts)

    monkeypatch.setattr(model_module, "Weights", watched)
    child(CRASHES_WITH_EXTRA_BUFFERS)
    with Model.load(tiny_path, Settings(n_threads=1)) as model:
        reply = model.complete([1, 2, 3], params=SamplingParams(temperature=0, max_tokens=4))
    assert used == [False]
    assert len(reply.token_ids) == 4


def test_an_explicit_setting_runs_no_check(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_children(monkeypatch)
    with Model.load(tiny_path, Settings(n_threads=1, use_extra_bufts=False)) as model:
        assert model.n_ctx == 64


def test_a_crashing_build_loads_no_model(child: Child, tiny_path: Path) -> None:
    child(CRASH)
    with pytest.raises(NativeBuildError):
        Model.load(tiny_path, Settings(n_threads=1))
