"""Does this machine's llama.cpp build decode without crashing? Asked in a child process.

A build can use instructions that the processor advertises and the virtual machine traps on (AMX).
Such a crash takes the whole process down, so it is provoked once, in a child, on a tiny quantized
model, and the outcome is remembered for this build on this machine. What passes is not remembered:
a child that was killed, ran out of memory or of time says nothing about the build.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from copyspec_edge.errors import NativeBuildError
from copyspec_edge.host import machine, read_json, write_json
from copyspec_edge.llama import build
from copyspec_edge.llama.compatibility import require_compatible
from copyspec_edge.llama.presets import rebuild_command
from copyspec_edge.llama.tiny_model import write_tiny_model

Status = Literal["works", "crashes", "unknown"]

CHILD = Path(__file__).with_name("native_child.py")
TIMEOUT_SECONDS = 60.0
_CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGTRAP", "SIGSYS")
# Windows: access violation, illegal and privileged instruction, breakpoint, division, stack.
_EXCEPTIONS = (0xC0000005, 0xC000001D, 0xC0000096, 0x80000003, 0xC0000094, 0xC00000FD)
_FAST_FAIL = 0xC0000409  # how abort() ends a process there
_logger = logging.getLogger("copyspec_edge")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a probe showed. `detail` says how it ended."""

    status: Status
    detail: str = ""


def choose_extra_bufts() -> bool:
    """Whether models may be loaded with repacked weights and AMX kernels on this machine.

    The first call for a build and machine runs some child processes; warns where the build is bad,
    or where nothing could be found out.

    Raises:
        NativeBuildError: llama.cpp crashes either way, or is another than this package knows.
    """
    require_compatible()
    outcome = remembered_probe(extra_bufts=True)
    if outcome.status == "works":
        return True
    if outcome.status == "unknown":
        _logger.warning(
            "could not check whether this llama.cpp build works here (%s); "
            "using its slower kernels, asking again next time",
            outcome.detail,
        )
        return False
    fallback = remembered_probe(extra_bufts=False)
    if fallback.status == "crashes":
        raise NativeBuildError(
            f"the installed llama.cpp crashes on this machine ({fallback.detail}). "
            f"Rebuild it: {rebuild_command()}"
        )
    _logger.warning(
        "the installed llama.cpp crashes on this machine (%s); going on without its repacked "
        "kernels, which is slower. Better rebuild it: %s",
        outcome.detail,
        rebuild_command(),
    )
    return False


def remembered_probe(*, extra_bufts: bool) -> Outcome:
    """The outcome for this build and machine: from the cache folder, else from a new probe."""
    path = machine.cache_folder() / "native" / f"{build.build_key()}.json"
    name = "extra_bufts" if extra_bufts else "plain"
    known = read_json(path, _outcomes) or {}
    if name in known:
        return known[name]
    outcome = probe(extra_bufts=extra_bufts)
    if outcome.status != "unknown":
        _write(path, {**known, name: outcome})
    return outcome


def probe(*, extra_bufts: bool) -> Outcome:
    """Decode a tiny model in a child process, with one thread. A crash is believed when repeated.

    Killed, out of memory, out of time, never started: all of these are "unknown".
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        return Outcome("unknown", "no Python interpreter to run the check in")
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "tiny.gguf"
            write_tiny_model(path)
            first = _run_child(path, extra_bufts)
            if first.status != "crashes":
                return first
            second = _run_child(path, extra_bufts)
    except OSError as error:
        return Outcome("unknown", f"the check could not be started: {error}")
    if second.status == "works":
        return Outcome("unknown", f"it crashed once ({first.detail}) and then worked")
    return second


def _run_child(path: Path, extra_bufts: bool) -> Outcome:
    # By path and not by module name: importing the package would take seconds.
    code = f"import runpy; runpy.run_path({str(CHILD)!r}, run_name='__main__')"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(int(extra_bufts)), str(path)],
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Outcome("unknown", f"the check took longer than {TIMEOUT_SECONDS:g} s")
    return judge(done.returncode, done.stdout, done.stderr)


def judge(code: int, stdout: bytes, stderr: bytes) -> Outcome:
    """What the end of a child says about the build.

    Args:
        code: exit code; below 0 a signal, above 255 an exception of Windows.
    """
    if code == 0 and b"decoded" in stdout:
        return Outcome("works")
    errors = stderr.decode("utf-8", "replace").strip()
    last_line = errors.rpartition("\n")[2]
    if code < 0:
        name = _signal_name(-code)
        is_crash = name in _CRASHES or (name == "SIGABRT" and not _tells_of_memory(errors))
        detail = f"signal {-code}" if is_crash else f"ended by {name}; {last_line}".rstrip("; ")
        return Outcome("crashes" if is_crash else "unknown", detail)
    if code in _EXCEPTIONS or (code == _FAST_FAIL and not _tells_of_memory(errors)):
        return Outcome("crashes", f"exception {code:#x}")
    return Outcome("unknown", last_line or f"exit code {code}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tells_of_memory(errors: str) -> bool:
    """Whether a process that aborted itself did so because it got no memory."""
    return any(sign in errors.lower() for sign in ("alloc", "memory"))


def _outcomes(raw: dict[str, dict[str, Any]]) -> dict[str, Outcome]:
    return {
        name: Outcome(entry["status"], entry["detail"])
        for name, entry in raw.items()
        if entry["status"] in ("works", "crashes")
    }


def _write(path: Path, outcomes: dict[str, Outcome]) -> None:
    write_json(path, {name: asdict(outcome) for name, outcome in outcomes.items()})
