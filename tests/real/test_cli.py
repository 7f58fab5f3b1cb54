from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import llama_cpp
import pytest
import tiny_gguf
from conftest import RunPython

from copyspec_edge.cli import main
from copyspec_edge.host import cache_folder
from copyspec_edge.llama.compatibility import require_compatible

if sys.platform != "win32":
    import pty
    import select
    import termios

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("smollm2_path")]
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")

CLI = (sys.executable, "-m", "copyspec_edge")
FAST = ("--threads", "1", "--ctx", "512")
MODEL = ("-m", os.environ["COPYSPEC_TEST_SMOLLM2"], *FAST)
GREEDY = (*MODEL, "--temperature", "0")
FOX = f"Repeat exactly: {'The quick brown fox jumps over the lazy dog. ' * 2}"
COUNT = "Count from 1 to 1000, with commas."
NOT_A_RULE = str(Path(tiny_gguf.__file__))
PATIENCE_SECONDS = 120


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunPython:
    """Run the command line in this process, which is quicker."""

    def run(
        *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        monkeypatch.setattr(logging.getLogger("copyspec_edge.llama_cpp"), "propagate", True)
        try:
            code = main(arguments)
        except SystemExit as leave:
            code = int(leave.code or 0)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *messages: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for message in messages:
        assert message in done.stderr


def generate_json(call: RunPython, *arguments: str, stdin: bytes = b"") -> dict[str, object]:
    done = call("generate", *GREEDY, "--json", *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_no_arguments_shows_the_usage(cli: RunPython) -> None:
    assert_refused(cli(), 2, "usage: copyspec-edge", "COMMAND")


def test_version_is_printed(cli: RunPython) -> None:
    done = cli("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().count(".") == 2


@pytest.mark.parametrize("command", [(), ("generate",), ("chat",), ("pull",), ("doctor",)])
def test_help_names_the_options(call: RunPython, command: tuple[str, ...]) -> None:
    done = call(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: copyspec-edge" in done.stdout


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    "name",
    ["no-such-model", "missing/file.gguf", "x" * 5000, "~no-such-user/a.gguf"],
    ids=("name", "path", "long", "home"),
)
def test_an_unknown_model_is_refused(call: RunPython, command: str, name: str) -> None:
    done = call(command, "-m", name, *FAST, stdin=b"Hello")
    assert_refused(done, 1, "copyspec-edge: no model called", "smollm2-135m")


def test_pulling_an_unknown_model_is_refused(call: RunPython) -> None:
    assert_refused(call("pull", "no-such-model"), 1, "no model called 'no-such-model'")


@pytest.mark.parametrize("kind", ["text", "folder", "truncated", "empty"])
def test_a_file_that_is_no_model_is_refused(
    call: RunPython, tmp_path: Path, smollm2_path: Path, kind: str
) -> None:
    path = tmp_path / "model.gguf"
    if kind == "folder":
        path.mkdir()
    else:
        with smollm2_path.open("rb") as whole:
            content = {"text": b"Hello", "empty": b"", "truncated": whole.read(5_000_000)}
        path.write_bytes(content[kind])
    message = {"folder": "is a folder", "truncated": "truncated"}.get(kind, "is not a GGUF file")
    done = call("generate", "-m", str(path), *FAST, "-p", "Hello")
    assert_refused(done, 1, str(path), message)


INVALID: dict[str, tuple[tuple[str, ...], bytes, str]] = {
    "empty prompt": (("-p", ""), b"", "the prompt is empty"),
    "blank prompt": (("-p", " \n "), b"", "the prompt is empty"),
    "empty stdin": ((), b"", "the prompt is empty"),
    "stdin not UTF-8": ((), b"caf\xe9", "not valid UTF-8"),
    "missing file": (("-f", "no/such/file.txt"), b"", "cannot read no/such/file.txt"),
    "folder as file": (("-f", "."), b"", "cannot read ."),
    "no tokens": (("-p", "a", "--max-tokens", "0"), b"", "max_tokens must be"),
    "tokens not a number": (("-p", "a", "--max-tokens", "ten"), b"", "--max-tokens"),
    "negative temperature": (("-p", "a", "--temperature", "-1"), b"", "temperature must be"),
    "temperature nan": (("-p", "a", "--temperature", "nan"), b"", "temperature must be"),
    "top-p above 1": (("-p", "a", "--top-p", "1.5"), b"", "top_p must be"),
    "negative seed": (("-p", "a", "--seed", "-1"), b"", "seed must be"),
    "empty stop": (("-p", "a", "--stop", ""), b"", "stop strings must be"),
    "tiny context": (("-p", "a", "--ctx", "1"), b"", "n_ctx must be"),
    "no threads": (("-p", "a", "--threads", "0"), b"", "n_threads must be"),
    "no batch threads": (("-p", "a", "--threads-batch", "0"), b"", "n_threads_batch must be"),
    "prompt twice": (("-p", "a", "-f", "b"), b"", "not allowed with"),
    "raw with system": (("-p", "a", "--raw", "--system", "b"), b"", "--system needs"),
    "bias not a pair": (("-p", "a", "--logit-bias", "5"), b"", "--logit-bias takes ID=X"),
    "bias nan": (("-p", "a", "--logit-bias", "5=nan"), b"", "logit_bias must map"),
    "bias for no token": (("-p", "a", "--logit-bias", "99999999=1"), b"", "logit_bias: token ids"),
    "missing grammar": (("-p", "a", "--grammar-file", "no/such"), b"", "cannot read no/such"),
    "file is no grammar": (
        ("-p", "a", "--grammar-file", NOT_A_RULE),
        b"",
        "cannot use this grammar",
    ),
    "schema is no JSON": (("-p", "a", "--json-schema-file", NOT_A_RULE), b"", "JSON Schema"),
    "logprobs without JSON": (("-p", "a", "--logprobs", "2"), b"", "with --json only"),
    "too many logprobs": (("-p", "a", "--json", "--logprobs", "101"), b"", "logprobs must be"),
    "mirostat 3": (("-p", "a", "--mirostat", "3"), b"", "mirostat must be"),
    "no repeat penalty": (("-p", "a", "--repeat-penalty", "0"), b"", "repeat_penalty must be"),
    "unknown option": (("-p", "a", "--speed", "9"), b"", "unrecognized arguments"),
}


@pytest.mark.parametrize("kind", list(INVALID))
def test_invalid_input_is_refused(call: RunPython, kind: str) -> None:
    arguments, stdin, message = INVALID[kind]
    assert_refused(call("generate", *MODEL, *arguments, stdin=stdin), 2, message)


@posix_only
def test_a_prompt_argument_that_is_not_utf8_is_refused() -> None:
    command = [*map(os.fsencode, CLI), b"generate", *map(os.fsencode, MODEL), b"-p", b"caf\xe9"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"not valid Unicode" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_missing_model_option_is_refused(call: RunPython) -> None:
    assert_refused(call("generate", "-p", "Hello"), 2, "-m/--model")


@pytest.mark.parametrize("output", [(), ("--json",)])
def test_a_prompt_longer_than_the_context_is_refused(
    call: RunPython, output: tuple[str, ...]
) -> None:
    done = call("generate", *MODEL, "--ctx", "64", "-p", "word " * 100, *output)
    assert_refused(done, 1, "leaves no room for an answer in the context of 64")


def test_the_answer_goes_to_stdout_and_the_statistics_to_stderr(
    cli: RunPython, extra_bufts: bool
) -> None:
    done = cli("generate", *GREEDY, "-p", FOX)
    assert done.returncode == 0
    assert done.stdout.startswith("The quick brown fox jumps over the lazy dog.")
    assert done.stdout.endswith("\n")
    *warnings, statistics = done.stderr.splitlines()
    assert "copied" in statistics
    assert len(warnings) == (0 if extra_bufts else 1)
    assert all("the installed llama.cpp crashes" in warning for warning in warnings)


def test_json_adds_up(call: RunPython) -> None:
    result = generate_json(call, "-p", FOX)
    stats, token_ids = result["stats"], result["token_ids"]
    assert isinstance(stats, dict)
    assert isinstance(token_ids, list)
    assert len(token_ids) == stats["generated_tokens"]
    assert stats["verify_steps"] + stats["accepted_tokens"] - len(token_ids) in (0, 1)
    assert 0 < stats["accepted_tokens"] <= stats["drafted_tokens"]
    assert stats["verify_steps"] < len(token_ids)
    assert result["finish_reason"] == "stop"
    assert "quick brown fox" in str(result["text"])


def test_no_copy_drafts_nothing(call: RunPython) -> None:
    stats = generate_json(call, "-p", FOX, "--no-copy")["stats"]
    assert isinstance(stats, dict)
    assert stats["accepted_tokens"] == stats["drafted_tokens"] == 0
    assert stats["generated_tokens"] == stats["verify_steps"] > 0


def test_the_prompt_is_the_same_from_an_option_a_file_and_stdin(
    call: RunPython, tmp_path: Path
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Sag hallo, ä 😀", encoding="utf-8")
    sources = (("-p", "Sag hallo, ä 😀"), ("-f", str(path)), ())
    results = [
        generate_json(call, *source, "--max-tokens", "6", stdin=path.read_bytes())
        for source in sources
    ]
    assert [r["token_ids"] for r in results] == [results[0]["token_ids"]] * 3


def test_raw_continues_the_prompt_without_a_template(call: RunPython) -> None:
    raw = generate_json(call, "--raw", "-p", "1, 2, 3, 4, 5,", "--max-tokens", "6")
    assert "6" in str(raw["text"])
    stats = raw["stats"]
    assert isinstance(stats, dict)
    assert stats["prompt_tokens"] < 20
    assert stats["generated_tokens"] == 6
    assert raw["finish_reason"] == "length"


def test_a_stop_string_ends_the_answer(call: RunPython) -> None:
    result = generate_json(call, "-p", FOX, "--stop", "lazy", "--stop", "nothing")
    assert result["finish_reason"] == "stop"
    assert str(result["text"]).endswith("over the ")


def test_a_schema_a_bias_and_penalties_from_the_command_line(
    call: RunPython, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["red", "blue"]}', encoding="utf-8")
    options = ("-p", "Which colour has the sky?", "--json-schema-file", str(schema))
    result = generate_json(call, *options, "--logprobs", "2", "--repeat-penalty", "1.1")
    text, token_ids, logprobs = result["text"], result["token_ids"], result["logprobs"]
    assert text in ('"red"', '"blue"')
    assert isinstance(token_ids, list)
    assert isinstance(logprobs, list)
    assert [logprob["token_id"] for logprob in logprobs] == token_ids
    assert all(len(logprob["top"]) == 2 for logprob in logprobs)
    bias = f"--logit-bias={token_ids[1]}=-inf"
    assert generate_json(call, *options, bias)["text"] not in (text, "")


def test_the_same_seed_gives_the_same_answer(call: RunPython) -> None:
    options = ("--raw", "-p", "Once upon", "--temperature", "1.2", "--max-tokens", "8")
    one, two, other = (generate_json(call, *options, "--seed", seed) for seed in ("5", "5", "6"))
    assert one["token_ids"] == two["token_ids"] != other["token_ids"]


def test_a_model_without_a_tokenizer_is_refused(call: RunPython, tiny_path: Path) -> None:
    done = call("generate", "-m", str(tiny_path), "--threads", "1", "-p", "Hello")
    assert_refused(done, 2, "no tokenizer")
    assert_refused(call("chat", "-m", str(tiny_path), "--threads", "1"), 1, "no chat template")


def test_output_that_cannot_show_a_character_does_not_fail(cli: RunPython) -> None:
    arguments = ("generate", *GREEDY, "--raw", "-p", "안녕 😀\n" * 5, "--max-tokens", "16")
    done = cli(*arguments, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr
    assert "?" in done.stdout
    assert "Traceback" not in done.stderr
    as_json = cli(*arguments, "--json", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert "?" not in as_json.stdout
    assert "안녕" in json.loads(as_json.stdout)["text"]


def test_doctor_tells_of_a_llama_cpp_that_is_not_ours(
    call: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(llama_cpp, "llama_memory_seq_rm")
    require_compatible.cache_clear()
    done = call("doctor")
    assert done.returncode == 1
    assert "has no llama_memory_seq_rm" in done.stdout
    assert "pip install" in done.stdout


def test_verbose_shows_the_log_of_llama_cpp_and_of_no_other_library(
    cli: RunPython, tmp_path: Path
) -> None:
    done = cli("-v", "models")
    assert done.stderr == ""
    arguments = ("-v", "generate", *GREEDY, "-p", "Hello", "--max-tokens", "2")
    done = cli(*arguments, env={"NUMBA_CACHE_DIR": str(tmp_path)})
    assert "copyspec-edge: INFO: llama_model_loader" in done.stderr
    assert "bytecode" not in done.stderr


@contextlib.contextmanager
def started(
    *arguments: str, stdin: bool = False, prepare: Callable[[], object] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*CLI, *arguments],
        preexec_fn=prepare,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


def stream(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def read_until(pipe: IO[bytes], wanted: bytes) -> bytes:
    seen = bytearray()
    while not seen.endswith(wanted):
        byte = pipe.read(1)
        assert byte, f"ended without {wanted!r}: {seen!r}"
        seen += byte
    return bytes(seen)


def rest_of(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


@pytest.mark.parametrize("output", [(), ("--json",)])
def test_an_output_that_is_closed_early_is_no_error(output: tuple[str, ...]) -> None:
    arguments = ("--raw", "-p", "1, 2, 3,", "--max-tokens", "40", *output)
    with started("generate", *GREEDY, *arguments) as process:
        if not output:
            stream(process.stdout).read(10)
        stream(process.stdout).close()
        err = stream(process.stderr).read()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert b"Traceback" not in err
    assert b"Broken" not in err


@posix_only
def test_ctrl_c_during_an_answer_ends_with_1_and_keeps_what_was_shown() -> None:
    with started("generate", *GREEDY, "-p", COUNT) as process:
        first = stream(process.stdout).read(1)
        process.send_signal(signal.SIGINT)
        code, out, err = rest_of(process)
    assert code == 1
    assert (first + out).startswith(b"1")
    assert out.endswith(b"\n")
    assert b"Traceback" not in err
    assert b"tokens in" in err


def ignore_ctrl_c() -> None:
    """What shells do with a command that they start in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@posix_only
def test_ctrl_c_meant_for_others_does_not_end_what_runs_in_the_background() -> None:
    with started("generate", *GREEDY, "-p", FOX, prepare=ignore_ctrl_c) as process:
        stream(process.stdout).read(1)
        process.send_signal(signal.SIGINT)
        code, out, _ = rest_of(process)
    assert code == 0
    assert b"lazy dog." in out


@posix_only
def test_ctrl_c_while_loading_ends_with_1() -> None:
    with started("-v", "generate", *MODEL, "-p", "Hello") as process:
        read_until(stream(process.stderr), b"llama_model_loader")
        process.send_signal(signal.SIGINT)
        code, _, err = rest_of(process)
    assert code == 1
    assert b"Traceback" not in err


Talk = Callable[..., tuple[int, str, str]]


@pytest.fixture
def talk(call: RunPython) -> Talk:
    """Type these lines into a chat; its exit code, stdout and stderr."""

    def chat(*lines: str, arguments: tuple[str, ...] = ()) -> tuple[int, str, str]:
        typed = "".join(f"{line}\n" for line in lines).encode()
        done = call("chat", *GREEDY, "--max-tokens", "24", *arguments, stdin=typed)
        return done.returncode, done.stdout, done.stderr

    return chat


def test_chat_answers_until_quit(talk: Talk) -> None:
    code, out, err = talk(FOX, "", "/quit", "never read")
    assert code == 0
    assert out.startswith("The quick brown fox")
    assert out.count("\n") == 1
    assert "llama 256M" in err


def test_chat_ends_at_the_end_of_input(cli: RunPython, talk: Talk) -> None:
    done = cli("chat", *GREEDY, "--max-tokens", "24", stdin=FOX.encode())
    assert done.returncode == 0
    assert "quick brown fox" in done.stdout
    assert talk()[:2] == (0, "")


def test_a_standard_input_that_was_closed_is_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["generate", *MODEL]) == 2
    assert "the prompt is empty" in capfd.readouterr().err
    assert main(["chat", *MODEL, "--threads", "1"]) == 0


def test_chat_keeps_what_was_said_until_reset(talk: Talk) -> None:
    code, out, err = talk(FOX, "/stats", "Again.", "/stats", "/reset", FOX, "/stats", "/quit")
    assert code == 0
    first, _, after_reset = out.splitlines()
    assert first == after_reset
    cached = [line for line in err.splitlines() if "cached)" in line]
    assert len(cached) == 3
    assert ["(0 cached)" in line for line in cached] == [True, False, True]


def test_chat_explains_its_commands_and_an_empty_history(talk: Talk) -> None:
    code, out, err = talk("/stats", "/nonsense", "/quit")
    assert (code, out) == (0, "")
    assert "nothing has been answered yet" in err
    assert err.count("/reset starts over") == 2


def test_chat_says_when_an_answer_ended_at_a_limit_and_when_the_context_is_full(talk: Talk) -> None:
    code, out, err = talk(COUNT, "word " * 100, "/reset", COUNT, arguments=("--ctx", "96"))
    assert code == 0
    assert len(out.splitlines()) >= 2
    assert err.count("[length]") == 2
    assert "leaves no room" in err
    assert "/reset starts over" in err


def test_chat_goes_on_after_a_line_that_is_not_utf8(cli: RunPython) -> None:
    typed = b"caf\xe9\nHello\n/quit\n"
    done = cli("chat", *GREEDY, "--max-tokens", "4", stdin=typed)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()


@posix_only
def test_ctrl_c_at_the_prompt_of_a_chat_asks_again() -> None:
    with started("chat", *GREEDY, "--max-tokens", "8", stdin=True) as process:
        read_until(stream(process.stderr), b"\n> ")
        # Python sees no signal between its last look for one and the read that then blocks.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        read_until(stream(process.stderr), b"> ")
        stream(process.stdin).write(FOX.encode() + b"\n/quit\n")
        code, out, err = rest_of(process)
    assert code == 0
    assert out.startswith(b"The quick")
    assert b"Traceback" not in err


@posix_only
def test_ctrl_c_during_an_answer_of_a_chat_leads_to_the_next_question() -> None:
    with started("chat", *GREEDY, stdin=True) as process:
        read_until(stream(process.stderr), b"> ")
        stream(process.stdin).write(COUNT.encode() + b"\n")
        stream(process.stdout).read(1)
        process.send_signal(signal.SIGINT)
        read_until(stream(process.stderr), b"[cancelled]")
        read_until(stream(process.stderr), b"> ")
        stream(process.stdin).write(FOX.encode() + b"\n/quit\n")
        code, out, err = rest_of(process)
    assert code == 0
    assert b"quick brown fox" in out
    assert b"Traceback" not in err


@posix_only
def test_ctrl_c_while_a_chat_reads_a_long_message_leads_to_the_next() -> None:
    context = ("--ctx", "8192")
    with started("chat", *GREEDY, *context, stdin=True) as process:
        read_until(stream(process.stderr), b"> ")
        stream(process.stdin).write(b"word " * 7000 + b"\n")
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        read_until(stream(process.stderr), b"[cancelled]")
        stream(process.stdin).write(b"/stats\n/quit\n")
        code, out, err = rest_of(process)
    assert (code, out) == (0, b"\n")
    assert b"> 0 tokens in 0 steps" in err


@posix_only
@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN], ids=["heeded", "ignored"])
def test_chat_on_a_terminal_takes_lines_ctrl_c_and_ctrl_d(inherited: signal.Handlers) -> None:
    """However Ctrl-C was treated where the terminal was opened."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, inherited)
        os.execv(CLI[0], [*CLI, "chat", *GREEDY])
    try:
        _expect(terminal, "> ")
        os.write(terminal, FOX.encode() + b"\n")
        _expect(terminal, "\nThe quick brown fox")
        _expect(terminal, "> ")
        os.write(terminal, COUNT.encode() + b"\n")
        _expect(terminal, "\n1")
        os.write(terminal, b"\x03")
        _expect(terminal, "[cancelled]")
        _expect(terminal, "> ")
        _await_line_editor(terminal)
        os.write(terminal, b"half a line")
        _expect(terminal, "half a line")
        _expect(terminal, "> ", press=b"\x03")
        assert _end_input(terminal, child) == 0
        child = 0
    finally:
        os.close(terminal)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _await_line_editor(terminal: int) -> None:
    """Wait for readline to take the terminal over.

    Keys that it has seen but not read yet when Ctrl-C discards them would leave it in a read that
    no signal ends.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while termios.tcgetattr(terminal)[3] & termios.ICANON:
        assert time.monotonic() < deadline, "no line editor"
        time.sleep(0.01)


def _end_input(terminal: int, child: int) -> int | None:
    """Press Ctrl-D until the child ends: one that comes before the line editor is lost."""
    for _ in range(10 * PATIENCE_SECONDS):
        with contextlib.suppress(OSError):
            os.write(terminal, b"\x04")
        time.sleep(0.1)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
    return None


def _expect(terminal: int, wanted: str, *, press: bytes = b"") -> None:
    """Read what the terminal shows up to and including `wanted`.

    Args:
        press: keys to press meanwhile; those that come before the line editor may be lost.
    """
    seen = bytearray()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not seen.replace(b"\r", b"").endswith(wanted.encode()):
        assert time.monotonic() < deadline, f"no {wanted!r} in {seen!r}"
        os.write(terminal, press)
        while select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 1)
            if seen.replace(b"\r", b"").endswith(wanted.encode()):
                break


def test_doctor_says_what_is_installed_and_that_it_decodes(cli: RunPython) -> None:
    done = cli("doctor")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    for fact in ("python:", "llama-cpp-python:", "processor:", "cache folder:", "decodes:"):
        assert fact in done.stdout


def test_doctor_checks_a_model(cli: RunPython) -> None:
    done = cli("doctor", *MODEL[:2], "--threads", "1")
    assert done.returncode == 0, done.stdout
    assert "has a template" in done.stdout
    assert "continues:" in done.stdout


def test_doctor_fails_where_the_model_does_not_work(call: RunPython, tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("Hello", encoding="utf-8")
    for model in (str(path), "no-such-model"):
        done = call("doctor", "-m", model)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "does not work" in done.stdout + done.stderr or "no model" in done.stderr


def test_models_lists_the_registry(call: RunPython, smollm2_name: str) -> None:
    done = call("models")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert any(line.startswith(f"{smollm2_name}\t") and "pulled" in line for line in lines)
    assert "Apache-2.0" in done.stdout


def test_pulling_a_model_that_is_here_prints_its_path(call: RunPython, smollm2_name: str) -> None:
    done = call("pull", smollm2_name)
    path = cache_folder() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}\n", "")


def test_a_model_of_the_registry_is_loaded_by_its_name(call: RunPython, smollm2_name: str) -> None:
    done = call("generate", "-m", smollm2_name, *FAST, "-p", "Hello", "--max-tokens", "1")
    assert done.returncode == 0
    assert "1 tokens in 1 steps" in done.stderr


SPINNING = """
import os, sys
import copyspec_edge.cli
assert "llama_cpp" not in sys.modules
copyspec_edge.cli.main(["models"])
print(os.environ["GOMP_SPINCOUNT"], file=sys.stderr)
"""


@pytest.mark.parametrize(("own", "used"), [(None, "1000000"), ("7", "7")], ids=["unset", "set"])
def test_threads_spin_less_unless_the_user_says_otherwise(
    own: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if own is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", own)
    done = subprocess.run([sys.executable, "-c", SPINNING], capture_output=True, text=True)
    assert done.stderr.strip() == used
