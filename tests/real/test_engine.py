from __future__ import annotations

import ctypes
import gc
import itertools
import json
import logging
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kv_combinations
import llama_cpp
import numpy as np
import pytest
from conftest import RunPython
from tiny_gguf import TINY_VOCABULARY, write_unknown_architecture, write_vocabulary_only

from copyspec_edge import (
    CancelledError,
    ContextFullError,
    EngineError,
    InvalidInputError,
    Model,
    ModelLoadError,
    RegistryError,
    SamplingParams,
    SessionClosedError,
    Settings,
)
from copyspec_edge.arrays import MAX_ROWS, Tokens
from copyspec_edge.llama.abort import ABORT_CALLBACK
from copyspec_edge.llama.engine import Engine
from copyspec_edge.llama.weights import Weights

SETTINGS = Settings(n_threads=1)
N_CTX = 64


def tokens(count: int, *, vocabulary: int = TINY_VOCABULARY, seed: int = 0) -> Tokens:
    random = np.random.default_rng(seed)
    return random.integers(0, vocabulary, count, dtype=np.int32)


@pytest.fixture(scope="module")
def tiny_weights(tiny_path: Path, extra_bufts: bool) -> Iterator[Weights]:
    weights = Weights(tiny_path, SETTINGS, use_extra_bufts=extra_bufts)
    yield weights
    weights.close()


@pytest.fixture
def engine(tiny_weights: Weights) -> Iterator[Engine]:
    engine = Engine(tiny_weights, SETTINGS, n_ctx=N_CTX)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def real_weights(smollm2_path: Path, extra_bufts: bool) -> Iterator[Weights]:
    weights = Weights(smollm2_path, SETTINGS, use_extra_bufts=extra_bufts)
    yield weights
    weights.close()


@pytest.fixture
def real_engine(real_weights: Weights) -> Iterator[Engine]:
    engine = Engine(real_weights, Settings(n_threads=1, n_batch=256, n_ubatch=256), n_ctx=512)
    yield engine
    engine.close()


def rows_of_splits(engine: Engine, text: Tokens, sizes: list[int]) -> list[np.ndarray]:
    """The rows of `text`, read anew in batches of these sizes."""
    engine.truncate(0)
    rows: list[np.ndarray] = []
    for size in sizes:
        start = engine.n_past
        rows.extend(engine.eval(text[start : start + size], rows=size).copy())
    assert engine.n_past == len(text)
    return rows


def test_rows_view_has_one_row_of_the_vocabulary_for_each_row_asked_for(engine: Engine) -> None:
    assert engine.n_vocab == TINY_VOCABULARY
    rows = engine.eval(tokens(9), rows=4)
    assert rows.shape == (4, TINY_VOCABULARY)
    assert rows.dtype == np.float32
    assert engine.n_past == 9


@pytest.mark.real
def test_rows_of_one_batch_equal_the_rows_of_other_splits_within_rounding(
    real_engine: Engine,
) -> None:
    text = tokens(24, vocabulary=real_engine.n_vocab)
    whole = rows_of_splits(real_engine, text, [24])
    spread = max(float(np.ptp(row)) for row in whole)
    for sizes in ([1] * 24, [2] * 12, [7, 1, 16], [20, 4]):
        split = rows_of_splits(real_engine, text, sizes)
        gaps = [float(np.abs(a - b).max()) for a, b in zip(whole, split, strict=True)]
        assert max(gaps) < 0.06 * spread, sizes
    neighbours = [float(np.abs(a - b).max()) for a, b in itertools.pairwise(whole)]
    assert min(neighbours) > 0.06 * spread


@pytest.mark.real
def test_a_prompt_of_several_chunks_gives_the_rows_of_one_chunk_within_rounding(
    real_weights: Weights, real_engine: Engine
) -> None:
    text = tokens(40, vocabulary=real_engine.n_vocab)
    small = Engine(real_weights, Settings(n_threads=1, n_batch=16, n_ubatch=16), n_ctx=512)
    chunked = small.eval(text, rows=3).copy()
    whole = real_engine.eval(text, rows=3).copy()
    small.close()
    assert float(np.abs(chunked - whole).max()) < 0.06 * float(np.ptp(whole))


def test_rows_that_reach_back_over_a_chunk_boundary_are_the_last_ones(
    tiny_weights: Weights, engine: Engine
) -> None:
    """33 tokens in chunks of 32: three rows wanted, and only one is of the last chunk."""
    text = tokens(33)
    small = Engine(tiny_weights, Settings(n_threads=1, n_batch=32, n_ubatch=32), n_ctx=N_CTX)
    try:
        chunked = small.eval(text, rows=3).copy()
    finally:
        small.close()
    whole = engine.eval(text, rows=3).copy()
    assert np.allclose(chunked, whole, atol=0.02 * float(np.ptp(whole)))


def test_truncate_and_eval_again_gives_the_same_logits(engine: Engine) -> None:
    text = tokens(20)
    engine.eval(text[:12], rows=1)
    first = engine.eval(text[12:], rows=8).copy()
    engine.truncate(12)
    assert engine.n_past == 12
    again = engine.eval(text[12:], rows=8)
    assert np.array_equal(first, again)


def test_rejected_tokens_leave_no_trace_after_truncate(engine: Engine) -> None:
    text, other = tokens(20), tokens(8, seed=1)
    engine.eval(text[:12], rows=1)
    first = engine.eval(text[12:], rows=8).copy()
    engine.truncate(12)
    engine.eval(other, rows=8)
    engine.truncate(12)
    assert np.array_equal(first, engine.eval(text[12:], rows=8))


def test_truncate_to_nothing_and_beyond_the_end(engine: Engine) -> None:
    first = engine.eval(tokens(10), rows=2).copy()
    engine.truncate(99)
    assert engine.n_past == 10
    engine.truncate(0)
    assert engine.n_past == 0
    assert np.array_equal(first, engine.eval(tokens(10), rows=2))


BAD_CALLS: list[tuple[Callable[[Engine], object], type[Exception]]] = [
    (lambda e: e.eval(np.array([1, TINY_VOCABULARY], np.int32), rows=1), InvalidInputError),
    (lambda e: e.eval(np.array([-1], np.int32), rows=1), InvalidInputError),
    (lambda e: e.eval(np.empty(0, np.int32), rows=1), InvalidInputError),
    (lambda e: e.eval(tokens(4), rows=0), InvalidInputError),
    (lambda e: e.eval(tokens(4), rows=5), InvalidInputError),
    (lambda e: e.eval(tokens(N_CTX - 9), rows=1), ContextFullError),
]


@pytest.mark.parametrize(("call", "error"), BAD_CALLS)
def test_a_refused_eval_reads_nothing(
    engine: Engine, call: Callable[[Engine], object], error: type[Exception]
) -> None:
    text = tokens(14)
    engine.eval(text[:10], rows=1)
    expected = engine.eval(text[10:], rows=4).copy()
    engine.truncate(10)
    with pytest.raises(error):
        call(engine)
    assert engine.n_past == 10
    assert np.array_equal(expected, engine.eval(text[10:], rows=4))


def test_more_rows_than_the_context_was_made_for_are_refused(tiny_weights: Weights) -> None:
    engine = Engine(tiny_weights, SETTINGS, n_ctx=128)
    assert engine.max_rows == MAX_ROWS
    with pytest.raises(InvalidInputError):
        engine.eval(tokens(MAX_ROWS + 1), rows=MAX_ROWS + 1)
    assert engine.eval(tokens(MAX_ROWS + 1), rows=MAX_ROWS).shape[0] == MAX_ROWS
    engine.close()


def test_a_context_can_be_filled_to_its_last_position_and_no_further(engine: Engine) -> None:
    engine.eval(tokens(N_CTX), rows=1)
    assert engine.n_past == N_CTX
    with pytest.raises(ContextFullError):
        engine.eval(tokens(1), rows=1)


NATIVE_FAILURES = [(1, ContextFullError), (2, CancelledError), (-1, EngineError), (-3, EngineError)]


@pytest.mark.parametrize(("code", "error"), NATIVE_FAILURES)
@pytest.mark.parametrize("n_past", [0, 10])
def test_a_native_failure_raises_and_leaves_n_past_and_later_logits_right(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    error: type[Exception],
    n_past: int,
) -> None:
    text = tokens(n_past + 4)
    expected = rows_of_splits(engine, text, [n_past, 4] if n_past else [4])[-4:]
    engine.truncate(n_past)
    decode = llama_cpp.llama_decode

    def read_and_fail(context: object, batch: object) -> int:
        assert decode(context, batch) == 0
        return code

    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", read_and_fail)
        with pytest.raises(error):
            engine.eval(tokens(6, seed=2), rows=1)
    assert engine.n_past == n_past
    assert np.array_equal(np.array(expected), engine.eval(text[n_past:], rows=4))


@pytest.mark.parametrize("n_past", [0, 10])
def test_ctrl_c_while_a_batch_is_read_leaves_nothing_of_it_in_the_cache(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, n_past: int
) -> None:
    text = tokens(n_past + 4)
    expected = rows_of_splits(engine, text, [n_past, 4] if n_past else [4])[-4:]
    engine.truncate(n_past)
    decode = llama_cpp.llama_decode

    def read_and_interrupt(context: object, batch: object) -> int:
        decode(context, batch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", read_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.eval(tokens(6, seed=2), rows=1)
    assert engine.n_past == n_past
    assert np.array_equal(np.array(expected), engine.eval(text[n_past:], rows=4))


def test_what_was_read_before_a_failing_chunk_stays_read(
    tiny_weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_weights, Settings(n_threads=1, n_batch=8, n_ubatch=8), n_ctx=N_CTX)
    decode, calls = llama_cpp.llama_decode, itertools.count(1)
    monkeypatch.setattr(
        llama_cpp, "llama_decode", lambda *a: -3 if next(calls) == 3 else decode(*a)
    )
    with pytest.raises(EngineError, match="code -3 at token 16"):
        engine.eval(tokens(30), rows=1)
    assert engine.n_past == 16
    after_failure = engine.eval(tokens(30)[16:], rows=2).copy()
    engine.truncate(0)
    assert np.array_equal(after_failure, engine.eval(tokens(30), rows=2))
    engine.close()


@pytest.mark.real
def test_logits_are_kept_for_the_rows_of_one_draft_only(
    real_weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="copyspec_edge.llama_cpp"):
        engine = Engine(real_weights, SETTINGS, n_ctx=512)
        engine.eval(tokens(96, vocabulary=engine.n_vocab), rows=MAX_ROWS)
    engine.close()
    found = re.findall(r"(output|compute) buffer size = +([\d.]+) MiB", caplog.text)
    row_mib = 4 * 49152 / 2**20
    assert {kind for kind, _ in found} == {"output", "compute"}
    assert max(float(mib) for _, mib in found) < 2 * MAX_ROWS * row_mib


@pytest.mark.real
def test_cancel_from_another_thread_stops_a_long_prefill_and_repeating_it_is_exact(
    real_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tokens(256, vocabulary=real_engine.n_vocab)
    decode, inside, codes = llama_cpp.llama_decode, threading.Event(), []

    def watched_decode(context: object, batch: object) -> int:
        inside.set()
        codes.append(decode(context, batch))
        return int(codes[-1])

    def cancel() -> None:
        inside.wait()
        time.sleep(0.05)
        real_engine.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", watched_decode)
        with pytest.raises(CancelledError):
            real_engine.eval(text, rows=1)
    canceller.join()
    assert codes == [2]
    assert real_engine.n_past == 0
    with pytest.raises(CancelledError):
        real_engine.eval(text, rows=1)
    real_engine.clear_cancel()
    repeated = real_engine.eval(text, rows=1).copy()
    real_engine.truncate(0)
    assert np.array_equal(repeated, real_engine.eval(text, rows=1))


def test_a_closed_engine_raises_and_can_be_closed_again(tiny_weights: Weights) -> None:
    engine = Engine(tiny_weights, SETTINGS, n_ctx=N_CTX)
    engine.eval(tokens(4), rows=1)
    engine.close()
    engine.close()
    with pytest.raises(SessionClosedError):
        engine.eval(tokens(4), rows=1)
    with pytest.raises(SessionClosedError):
        engine.truncate(0)
    engine.cancel()


def test_weights_can_be_loaded_twice_and_freed_twice(tiny_path: Path, extra_bufts: bool) -> None:
    first, second = (Weights(tiny_path, SETTINGS, use_extra_bufts=extra_bufts) for _ in range(2))
    first.close()
    first.close()
    with pytest.raises(SessionClosedError):
        first.meta("general.architecture")
    engine = Engine(second, SETTINGS, n_ctx=N_CTX)
    assert np.isfinite(engine.eval(tokens(4), rows=4)).all()
    engine.close()
    second.close()


def test_in_a_reference_cycle_the_context_is_freed_before_its_weights(
    tiny_path: Path, extra_bufts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []

    def watch(name: str) -> None:
        free = getattr(llama_cpp, name)

        def recorded(pointer: object) -> None:
            freed.append(name)
            free(pointer)

        monkeypatch.setattr(llama_cpp, name, recorded)

    watch("llama_free")
    watch("llama_model_free")
    weights = Weights(tiny_path, SETTINGS, use_extra_bufts=extra_bufts)
    holder: list[object] = [weights, Engine(weights, SETTINGS, n_ctx=N_CTX)]
    holder.append(holder)
    del weights, holder
    gc.collect()
    assert freed == ["llama_free", "llama_model_free"]


LEFT_OPEN = """
import gc, sys
import numpy as np
from copyspec_edge import Model, SamplingParams, Settings
settings = Settings(n_threads=1, use_extra_bufts=sys.argv[2] == "1")
model = Model.load(sys.argv[1], settings)
session = model.session()
session.complete([1, 2, 3], params=SamplingParams(temperature=0, max_tokens=4))
answer = session.stream_completion([1, 2, 3, 4])
next(answer)
"""
ENDINGS = {
    "nothing closed": "",
    "model dropped first": "del model\ngc.collect()\ndel session, answer",
    "in a reference cycle": (
        "holder = [model, session, answer]\nholder.append(holder)\n"
        "del model, session, answer, holder\ngc.collect()"
    ),
    "closed twice": "session.close()\nmodel.close()\nmodel.close()\nsession.close()",
    "exit in the middle of an answer": "sys.exit(0)",
}


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_interpreter_exit_frees_everything_in_silence(
    run_python: RunPython, tiny_path: Path, extra_bufts: bool, ending: str
) -> None:
    done = run_python("-c", LEFT_OPEN + ENDINGS[ending], str(tiny_path), str(int(extra_bufts)))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_log_reaches_logging_where_a_handler_listens(
    run_python: RunPython, tiny_path: Path, extra_bufts: bool
) -> None:
    listen = "import logging\nlogging.basicConfig(level=logging.DEBUG)\n"
    done = run_python("-c", listen + LEFT_OPEN, str(tiny_path), str(int(extra_bufts)))
    assert done.returncode == 0
    assert "copyspec_edge.llama_cpp:llama_model_loader" in done.stderr


def write_text_file(path: Path) -> None:
    path.write_text("This is no model.", encoding="utf-8")


def cut_to(size: int) -> Callable[[Path, Path], None]:
    def cut(path: Path, whole: Path) -> None:
        path.write_bytes(whole.read_bytes()[:size])

    return cut


BAD_FILES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "text": (lambda path, _: write_text_file(path), "is not a GGUF file"),
    "folder": (lambda path, _: path.mkdir(), "is a folder"),
    "empty": (lambda path, _: path.touch(), "is not a GGUF file"),
    "magic only": (cut_to(4), "truncated"),
    "cut in the header": (cut_to(200), "truncated"),
    "cut in the weights": (cut_to(200_000), "truncated"),
    "vocabulary only": (lambda path, _: write_vocabulary_only(path), "weights are missing"),
    "unknown architecture": (
        lambda path, _: write_unknown_architecture(path),
        "does not know the model's architecture",
    ),
}


@pytest.mark.parametrize("kind", list(BAD_FILES))
def test_a_bad_file_raises_and_the_message_says_what_is_wrong(
    kind: str, tmp_path: Path, tiny_path: Path
) -> None:
    write, message = BAD_FILES[kind]
    path = tmp_path / "bad.gguf"
    write(path, tiny_path)
    with pytest.raises(ModelLoadError, match=message) as caught:
        Model.load(path, SETTINGS)
    assert str(path) in str(caught.value)


def test_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        Weights(tmp_path / "missing.gguf", SETTINGS, use_extra_bufts=False)
    with pytest.raises(RegistryError, match=r"missing\.gguf"):
        Model.load(tmp_path / "missing.gguf", SETTINGS)


def test_a_split_model_with_a_missing_part_names_that_part(tmp_path: Path, tiny_path: Path) -> None:
    path = tmp_path / "big-00001-of-00002.gguf"
    path.write_bytes(tiny_path.read_bytes())
    with pytest.raises(ModelLoadError, match=r"missing: .*big-00002-of-00002\.gguf"):
        Model.load(path, SETTINGS)


def test_a_bad_file_leaves_the_process_fit_for_a_good_one(
    tmp_path: Path, tiny_path: Path, extra_bufts: bool
) -> None:
    path = tmp_path / "bad.gguf"
    write_unknown_architecture(path)
    with pytest.raises(ModelLoadError):
        Weights(path, SETTINGS, use_extra_bufts=extra_bufts)
    Weights(tiny_path, SETTINGS, use_extra_bufts=extra_bufts).close()


def test_a_context_that_llama_cpp_refuses_raises_with_its_reason(
    tiny_weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", lambda *_: ctypes.c_void_p(0))
    with pytest.raises(EngineError, match="could not make a context of 64 tokens"):
        Engine(tiny_weights, SETTINGS, n_ctx=N_CTX)


BAD_SETTINGS: list[dict[str, object]] = [
    {"n_ctx": 1},
    {"n_ctx": 0},
    {"n_ctx": -5},
    {"n_ctx": 2.5},
    {"n_ctx": True},
    {"n_batch": 1},
    {"n_batch": 1 << 20},
    {"n_threads": 0},
    {"n_threads": 10_000},
    {"n_gpu_layers": -2},
    {"main_gpu": -1},
    {"tensor_split": ()},
    {"tensor_split": (0.0, 0.0)},
    {"tensor_split": (1.0, -1.0)},
    {"tensor_split": (float("nan"),)},
    {"flash_attn": "maybe"},
    {"type_k": "q4_k"},
    {"type_v": "int8"},
    {"type_v": "q8_0", "flash_attn": "off"},
]


@pytest.mark.parametrize("arguments", BAD_SETTINGS, ids=str)
def test_settings_out_of_range_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match="|".join(arguments)):
        Settings(**arguments)  # type: ignore[arg-type]


def test_more_gpu_shares_than_devices_are_refused(tiny_path: Path) -> None:
    shares = (1.0,) * (llama_cpp.llama_max_devices() + 1)
    with pytest.raises(InvalidInputError, match="tensor_split"):
        Weights(tiny_path, Settings(tensor_split=shares), use_extra_bufts=False)


def test_what_the_parameters_point_to_outlives_the_model(
    tiny_path: Path, extra_bufts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp keeps the address of the shares; whether it copies them is its own affair."""
    load, shares = llama_cpp.llama_model_load_from_file, list[Any]()

    def watched_load(path: bytes, params: Any) -> object:
        shares.append(weakref.ref(params))
        return load(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", watched_load)
    settings = Settings(n_threads=1, tensor_split=(1.0,))
    weights = Weights(tiny_path, settings, use_extra_bufts=extra_bufts)
    gc.collect()
    assert shares[0]().tensor_split[0] == 1.0
    weights.close()
    gc.collect()
    assert shares[0]() is None


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text there")
def test_a_file_whose_name_is_not_utf_8_is_a_file(
    tiny_path: Path,
    spelling_path: Path,
    tmp_path: Path,
    cli: RunPython,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    path = folder / os.fsdecode(b"mod\xe8le.gguf")
    path.write_bytes(spelling_path.read_bytes())
    for exact in (False, True):
        with Model.load(path, Settings(n_threads=1, exact=exact)) as model:
            reply = model.complete("ab cd", params=SamplingParams(temperature=0, max_tokens=4))
            assert reply.token_ids
    done = cli("doctor", "-m", str(path), "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "caf?/mod?le.gguf" in done.stdout
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError) as caught:
        Model.load(path, SETTINGS)
    assert "caf\\xe9/mod\\xe8le.gguf: the file is truncated" in str(caught.value).encode().decode()


def test_every_kv_type_with_every_flash_attention_works_or_says_why_not(
    run_python: RunPython, tiny_path: Path, extra_bufts: bool
) -> None:
    script = Path(kv_combinations.__file__)
    done = run_python(str(script), str(tiny_path), str(int(extra_bufts)))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"crashed after {lines[-1:]}: {done.stderr[-2000:]}"
    outcomes = {tuple(line["combination"]): line["outcome"] for line in lines if "outcome" in line}
    assert len(outcomes) == 3 * 9 * 9
    failed = {c: o for c, o in outcomes.items() if o != "works"}
    assert all(o.startswith(("EngineError: ", "InvalidInputError: ")) for o in failed.values())
    assert not any("no reason given" in outcome for outcome in failed.values()), failed
    for flash in ("auto", "on", "off"):
        assert outcomes[flash, "f16", "f16"] == "works"
        assert outcomes[flash, "f32", "f32"] == "works"
    assert outcomes["on", "q8_0", "q8_0"] == "works"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_contexts_give_their_memory_back(tiny_weights: Weights) -> None:
    def resident_kib() -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(next(line for line in status.splitlines() if "VmRSS" in line).split()[1])

    def use_one() -> None:
        engine = Engine(tiny_weights, SETTINGS, n_ctx=4096)
        engine.eval(tokens(64), rows=1)
        engine.close()

    use_one()
    before = resident_kib()
    for _ in range(20):
        use_one()
    assert resident_kib() - before < 20_000


@pytest.mark.parametrize(("flag", "stops"), [(0, False), (1, True)])
def test_llama_cpp_is_told_to_stop_where_the_flag_is_set(flag: int, stops: bool) -> None:
    data = np.array([flag, 0], np.uint8)
    ask = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(ABORT_CALLBACK)
    assert ask(data.ctypes.data) is stops
