"""Speculative decoding of every kind of model equals plain decoding, token by token and in logits.

The models are tiny and random, of the architectures in `tiny_archs`.
"""

from __future__ import annotations

import ctypes
import itertools
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from conftest import RunPython
from fake_vocab import END, bare_vocab, fake_template, fake_vocab
from fake_vocab import N_VOCAB as N_PIECES
from scripted_drafter import FLAT, Kind, ScriptedDrafter
from tiny_archs import ARCHS, N_VOCAB, WINDOW, Value, write_tiny_arch

from copyspec_edge import Model, Settings
from copyspec_edge.arrays import MAX_ROWS, Row, Tokens, as_tokens
from copyspec_edge.decoding.history import History
from copyspec_edge.decoding.loop import decode
from copyspec_edge.decoding.stats import Step
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.drafter import Drafter, NoDrafter
from copyspec_edge.errors import CancelledError, ContextFullError, EngineError, ModelLoadError
from copyspec_edge.exactness.twins import RecordingSampler
from copyspec_edge.exactness.verification import verify_copying
from copyspec_edge.host import machine
from copyspec_edge.llama.engine import Engine
from copyspec_edge.llama.recurrent_state import State, probe_state
from copyspec_edge.llama.weights import Weights
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import make_sampler
from copyspec_edge.session import Session
from copyspec_edge.tuning import calibration as calibrate

SETTINGS = Settings(n_threads=1, flash_attn="off", type_k="f32", type_v="f32")
NATIVE = ("lfm2", "lfm2moe", "qwen35", "qwen35moe", "nemotron_h")
MAMBAS = ("mamba", "mamba2", "granitehybrid", "falcon-h1", "jamba", "plamo2")
CHECKPOINT = (*MAMBAS, "qwen3next", "kimi-linear", "rwkv6", "rwkv7", "arwkv7")
WINDOWED = ("gemma3", "cohere2", "gpt-oss")
# One or two of each way for what does not depend on the architecture.
SOME = ("qwen3", "gemma3", "lfm2", "qwen35", "mamba2", "jamba")
RECURRENT = ("lfm2", "qwen35", "mamba2", "jamba", "rwkv7")
# Batches of two rows and more round alike in the kernels of this processor; elsewhere nearly.
TOLERANCE = 0.0 if platform.machine() in ("x86_64", "AMD64") else 1e-4

Load = Callable[..., Weights]


def way(arch: str) -> str:
    return "native" if arch in NATIVE else "checkpoint" if arch in CHECKPOINT else "attention"


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Weights of an architecture, made once."""
    folder = tmp_path_factory.mktemp("archs")
    loaded: dict[tuple[str, int], Weights] = {}

    def get(arch: str, n_vocab: int = N_VOCAB) -> Weights:
        if (arch, n_vocab) not in loaded:
            path = folder / f"{arch}-{n_vocab}.gguf"
            write_tiny_arch(path, arch, extra={"vocab_size": n_vocab})
            loaded[arch, n_vocab] = Weights(path, SETTINGS, use_extra_bufts=False)
        return loaded[arch, n_vocab]

    yield get
    for weights in loaded.values():
        weights.close()


def some_tokens(count: int, *, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, N_VOCAB, count, dtype=np.int32)


def assert_alike(found: Row, expected: Row, *, tolerance: float = TOLERANCE) -> None:
    if tolerance:
        assert np.abs(found - expected).max() <= tolerance * np.ptp(expected)
    else:
        assert np.array_equal(found, expected)


@dataclass
class Run:
    """Decodes behind a prompt, at least two rows at once."""

    engine: Engine
    prompt: Tokens
    drafter: Drafter = field(default_factory=NoDrafter)
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0))
    max_tokens: int = 60

    def __post_init__(self) -> None:
        self.engine.min_rows = 2
        self.history = History(self.engine.n_ctx)
        self.history.extend(self.prompt)
        self.steps: list[Step] = []
        vocab, nothing = bare_vocab(N_VOCAB), as_tokens([])
        sampler = RecordingSampler(make_sampler(self.params, vocab, nothing, 512))
        for step in decode(
            self.engine,
            self.history,
            drafter=self.drafter,
            sampler=sampler,
            cost=FLAT,
            eog=(),
            max_tokens=self.max_tokens,
        ):
            assert self.engine.n_past <= len(self.history) - 1
            self.steps.append(step)
        self.rows = np.array(sampler.rows)

    def assert_equals(self, other: Run) -> None:
        assert self.history.tokens.tolist() == other.history.tokens.tolist()
        for row, expected in zip(self.rows, other.rows, strict=True):
            assert_alike(row, expected)


def decode_speculatively(engine: Engine, kind: Kind, plain: Run, **options: Any) -> Run:
    engine.truncate(0)
    known = plain.history.tokens
    drafter = ShortDrafter(ScriptedDrafter(kind, known, n_vocab=N_VOCAB, eog=0))
    return Run(engine, plain.prompt, drafter, plain.params, **options)


class ShortDrafter:
    """Drafts of 1 to 12 tokens, so that there are many of them."""

    def __init__(self, drafter: ScriptedDrafter) -> None:
        self._drafter = drafter
        self._lengths = itertools.cycle((5, 1, 12, 2, 8, 3))

    def draft(self, history: Tokens, limit: int) -> Any:
        return self._drafter.draft(history, min(limit, next(self._lengths)))

    def reset(self) -> None:
        pass


@pytest.mark.parametrize("arch", ARCHS)
def test_forced_drafts_change_no_token_and_no_logit(load: Load, arch: str) -> None:
    engine = Engine(load(arch), SETTINGS, n_ctx=128)
    assert (engine.rollback, engine.max_rows) == (way(arch), MAX_ROWS)
    for params in (
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7),
    ):
        engine.truncate(0)
        plain = Run(engine, some_tokens(20), params=params)
        assert len(set(plain.history.tokens[20:].tolist())) > 5
        kinds: tuple[Kind, ...] = ("right", "wrong", "partly", "random")
        for kind in kinds:
            run = decode_speculatively(engine, kind, plain)
            run.assert_equals(plain)
            drafted = sum(step.drafted for step in run.steps)
            accepted = sum(step.accepted for step in run.steps)
            assert {"right": accepted == drafted > 40, "partly": 0 < accepted < drafted}.get(
                kind, 0 <= accepted < drafted / 4
            )
            if way(arch) != "checkpoint":
                assert all(step.evaluated == 1 for step in run.steps[1:])
    engine.close()


@pytest.mark.parametrize("arch", SOME)
@pytest.mark.parametrize("kind", ["right", "partly"])
def test_a_draft_ends_at_the_context_limit(load: Load, arch: str, kind: Kind) -> None:
    engine = Engine(load(arch), SETTINGS, n_ctx=40)
    plain = Run(engine, some_tokens(20), max_tokens=1000)
    assert len(plain.history) == 40
    run = decode_speculatively(engine, kind, plain, max_tokens=1000)
    run.assert_equals(plain)
    engine.close()


class Reader:
    """Reads tokens like a session: what the engine has not read before them first."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.history = as_tokens([])

    def read(self, tokens: Tokens, *, rows: int = 2) -> Row:
        """Append tokens; the last row."""
        self.history = np.concatenate((self.history, tokens))
        unread = self.history[self.engine.n_past :]
        rows = min(rows, len(unread), self.engine.max_rows)
        row: Row = self.engine.eval(unread, rows=rows)[-1].copy()
        return row

    def cut(self, length: int) -> int:
        self.history = self.history[:length]
        self.engine.truncate(length)
        assert self.engine.n_past <= length
        return self.engine.n_past

    def equals_fresh(self, load: Load, arch: str, *, seed: int) -> None:
        """What comes next is what a new instance says that has read the same."""
        n_past, more = self.engine.n_past, some_tokens(9, seed=seed)
        found = self.read(more)
        fresh = Engine(load(arch), SETTINGS, n_ctx=self.engine.n_ctx)
        expected = fresh.eval(self.history, rows=2)[-1]
        assert np.abs(found - expected).max() < 1e-3 * np.ptp(expected), (n_past, len(self.history))
        fresh.close()


@pytest.fixture
def reader(load: Load, arch: str) -> Iterator[Reader]:
    engine = Engine(load(arch), SETTINGS, n_ctx=256)
    yield Reader(engine)
    engine.close()


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_kept_after_a_rejection_is_a_prefix_like_any_other(
    load: Load, arch: str, reader: Reader
) -> None:
    reader.read(some_tokens(30))
    for seed, (drafted, accepted) in enumerate([(9, 4), (5, 0), (12, 11), (3, 1)], start=1):
        n_past = len(reader.history)
        reader.read(some_tokens(1 + drafted, seed=seed), rows=1 + drafted)
        kept = reader.cut(n_past + 1 + accepted)
        assert kept == (n_past if way(arch) == "checkpoint" else n_past + 1 + accepted)
        reader.equals_fresh(load, arch, seed=100 + seed)


@pytest.mark.parametrize("arch", ["qwen3", *RECURRENT])
def test_cuts_in_a_row_are_like_one(load: Load, arch: str, reader: Reader) -> None:
    """A stop string ends within a draft of which the end has been rejected."""
    reader.read(some_tokens(30))
    reader.read(some_tokens(12, seed=1), rows=12)
    reader.cut(38)
    kept = reader.cut(34)
    assert kept == (30 if way(arch) == "checkpoint" else 34)
    reader.equals_fresh(load, arch, seed=2)
    reader.read(some_tokens(12, seed=3), rows=12)
    reader.cut(len(reader.history) - 8)
    reader.cut(0)
    assert reader.engine.n_past == 0
    reader.equals_fresh(load, arch, seed=4)


@pytest.mark.parametrize("arch", RECURRENT)
def test_nothing_is_kept_of_what_lies_before_the_last_copy_or_batch(
    load: Load, arch: str, reader: Reader
) -> None:
    """llama.cpp's seq_rm would go back further, to states that other tokens have left there."""
    reader.read(some_tokens(30))
    reader.read(some_tokens(20, seed=1), rows=20)
    for seed in range(2, 8):
        reader.read(some_tokens(1, seed=seed), rows=1)
    assert reader.cut(54) == (30 if way(arch) == "checkpoint" else 0)
    reader.equals_fresh(load, arch, seed=9)
    reader.read(some_tokens(1, seed=10), rows=1)
    assert reader.cut(20) == 0
    reader.equals_fresh(load, arch, seed=10)


@pytest.mark.parametrize("arch", RECURRENT)
def test_a_copy_is_good_for_several_returns_to_it(load: Load, arch: str, reader: Reader) -> None:
    reader.read(some_tokens(30))
    for seed in range(1, 5):
        reader.read(some_tokens(8, seed=seed), rows=8)
        reader.cut(31)
        reader.cut(31)
        reader.equals_fresh(load, arch, seed=20 + seed)
        reader.cut(30)


@pytest.mark.parametrize("arch", WINDOWED)
@pytest.mark.parametrize("n_read", [WINDOW - 3, 3 * WINDOW, 420])
def test_a_prefix_is_reused_only_where_its_window_is_still_there(
    load: Load, arch: str, n_read: int
) -> None:
    settings = replace(SETTINGS, n_batch=16, n_ubatch=16)
    engine = Engine(load(arch), settings, n_ctx=512)
    kept = []
    for back in (1, 5, 16, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, n_read - 20, n_read - 1):
        if not 0 < back < n_read:
            continue
        engine.truncate(0)
        reader = Reader(engine)
        reader.read(some_tokens(n_read))
        reader.cut(n_read - back)
        kept.append(engine.n_past > 0)
        reader.equals_fresh(load, arch, seed=back)
    assert kept[:3] == [True] * 3
    assert all(kept) == (n_read < 256)  # the cells of a window are reused in a ring of 256
    engine.close()


NATIVE_FAILURES = {1: ContextFullError, 2: CancelledError, -1: EngineError, -3: EngineError}


@pytest.mark.parametrize("arch", ["qwen3", *RECURRENT])
@pytest.mark.parametrize("code", NATIVE_FAILURES)
@pytest.mark.parametrize("rows", [1, 6])
def test_a_failed_decode_leaves_no_trace(
    load: Load, arch: str, reader: Reader, monkeypatch: pytest.MonkeyPatch, code: int, rows: int
) -> None:
    reader.read(some_tokens(30))
    decode_natively = llama_cpp.llama_decode

    def read_and_fail(context: object, batch: object) -> int:
        assert decode_natively(context, batch) == 0
        return code

    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", read_and_fail)
        with pytest.raises(NATIVE_FAILURES[code]):
            reader.engine.eval(some_tokens(6, seed=1), rows=rows)
    assert reader.engine.n_past == (0 if way(arch) == "native" and rows > 1 else 30)
    reader.equals_fresh(load, arch, seed=2)


@pytest.mark.parametrize("arch", ["qwen3", *RECURRENT])
@pytest.mark.parametrize("rows", [1, 6])
def test_a_decode_cancelled_half_way_leaves_no_trace(
    load: Load, arch: str, reader: Reader, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    reader.read(some_tokens(30))
    reader.read(some_tokens(6, seed=1), rows=6)
    reader.cut(33)
    decode_natively = llama_cpp.llama_decode

    def cancel_within(context: object, batch: object) -> int:
        reader.engine.cancel()
        return int(decode_natively(context, batch))

    unread = np.concatenate((reader.history[reader.engine.n_past :], some_tokens(6, seed=2)))
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", cancel_within)
        with pytest.raises(CancelledError):
            reader.engine.eval(unread, rows=rows)
    reader.engine.clear_cancel()
    assert reader.engine.n_past <= 33
    reader.equals_fresh(load, arch, seed=3)


@pytest.mark.parametrize("arch", ["qwen3", *RECURRENT])
def test_a_long_prompt_cancelled_half_way_goes_on_from_the_chunk_before(
    load: Load, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(load(arch), replace(SETTINGS, n_batch=16, n_ubatch=16), n_ctx=256)
    decode_natively, calls = llama_cpp.llama_decode, itertools.count(1)

    def cancel_the_third(context: object, batch: object) -> int:
        if next(calls) == 3:
            engine.cancel()
        return int(decode_natively(context, batch))

    reader = Reader(engine)
    reader.history = some_tokens(60)
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", cancel_the_third)
        with pytest.raises(CancelledError):
            engine.eval(reader.history, rows=1)
    engine.clear_cancel()
    assert engine.n_past == 32
    reader.equals_fresh(load, arch, seed=1)
    engine.close()


@pytest.mark.parametrize("arch", RECURRENT)
def test_an_answer_is_taken_back_to_its_prompt_without_reading_all_again(
    load: Load, arch: str, reader: Reader
) -> None:
    reader.read(some_tokens(30))
    reader.read(some_tokens(20, seed=1), rows=1)
    for seed in range(2, 8):
        reader.read(some_tokens(1, seed=seed), rows=1)
    assert reader.cut(53) == 30
    reader.equals_fresh(load, arch, seed=9)


@pytest.mark.parametrize("arch", ["mamba2", "jamba"])
@pytest.mark.parametrize("name", ["get_size", "get_data", "set_data"])
def test_a_state_that_cannot_be_copied_is_an_error_and_not_a_wrong_state(
    load: Load, arch: str, reader: Reader, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    reader.read(some_tokens(30))
    reader.read(some_tokens(6), rows=6)

    def draft_and_go_back() -> None:
        reader.engine.eval(some_tokens(6, seed=1), rows=6)
        reader.engine.truncate(39)
        reader.engine.eval(some_tokens(6, seed=2), rows=1)

    def fail(context: object, *_: object) -> int:
        if name == "set_data":  # as llama.cpp does then
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, f"llama_state_seq_{name}_ext", fail)
        with pytest.raises(EngineError, match="save or restore"):
            draft_and_go_back()
    assert reader.engine.n_past == 0
    reader.equals_fresh(load, arch, seed=3)


def test_llama_cpp_failing_to_go_back_is_an_error_and_not_a_wrong_state(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(Engine(load("lfm2"), SETTINGS, n_ctx=256))
    reader.read(some_tokens(30), rows=6)
    reader.cut(28)
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_memory_seq_rm", lambda *_: False)
        with pytest.raises(EngineError, match="save or restore"):
            reader.engine.eval(some_tokens(6, seed=1), rows=1)
    assert reader.engine.n_past == 0
    reader.equals_fresh(load, "lfm2", seed=3)
    reader.engine.close()


MIB = 1 << 20


@pytest.mark.parametrize(
    ("memory", "n_bytes", "expected"),
    [
        (16 * 640 * MIB, MIB, 63),
        (16 * 40 * MIB, MIB, 40),
        (16 * 3 * MIB, MIB, 0),
        (0, MIB, 0),
        (None, MIB, 0),
        (1 << 40, 0, 63),
    ],
)
def test_earlier_states_are_kept_as_far_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch, memory: int | None, n_bytes: int, expected: int
) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: memory)
    state = State(n_bytes, has_snapshots=True, can_restore=True)
    assert state.affordable_snapshots(63, 512) == expected
    assert State(n_bytes, has_snapshots=False, can_restore=True).affordable_snapshots(63, 512) == 0


@pytest.mark.parametrize(("memory", "rollback", "max_rows"), [
    (16 * 20 * 10_548, "native", 21), (16 * 10_548, "checkpoint", 64),
])  # fmt: skip
def test_with_little_memory_drafts_are_shorter_or_a_checkpoint_does(
    load: Load, monkeypatch: pytest.MonkeyPatch, memory: int, rollback: str, max_rows: int
) -> None:
    weights = load("qwen35")
    assert weights.state is not None
    monkeypatch.setattr(machine, "available_memory", lambda: memory)
    engine = Engine(weights, SETTINGS, n_ctx=128)
    assert (engine.rollback, engine.max_rows) == (rollback, max_rows)
    plain = Run(engine, some_tokens(20))
    decode_speculatively(engine, "partly", plain).assert_equals(plain)
    engine.close()


def test_where_the_states_do_not_fit_into_the_device_a_checkpoint_does(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = llama_cpp.llama_init_from_model
    weights = load("qwen35")
    assert weights.state is not None

    def refuse(model: object, params: Any) -> object:
        return None if params.n_rs_seq else init(model, params)

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", refuse)
    engine = Engine(weights, SETTINGS, n_ctx=128)
    assert (engine.rollback, engine.max_rows) == ("checkpoint", MAX_ROWS)
    engine.close()


@pytest.mark.parametrize("arch", ["mamba2", "jamba", "rwkv7"])
@pytest.mark.parametrize("is_lossy", [True, False])
def test_a_state_that_is_not_restored_as_it_was_is_never_relied_on(
    load: Load, monkeypatch: pytest.MonkeyPatch, arch: str, is_lossy: bool
) -> None:
    intact = load(arch)
    assert intact.state is not None
    assert intact.state.can_restore
    weights = Weights(intact.path, SETTINGS, use_extra_bufts=False)
    restore = llama_cpp.llama_state_seq_set_data_ext

    def lose(context: object, data: Any, size: int, *rest: int) -> int:
        if not is_lossy:
            return size
        lost = size // 5
        ctypes.memset(ctypes.addressof(data.contents) + size - lost, 0, lost)
        return int(restore(context, data, size, *rest))

    monkeypatch.setattr(llama_cpp, "llama_state_seq_set_data_ext", lose)
    engine = Engine(weights, SETTINGS, n_ctx=128)
    assert (engine.rollback, engine.max_rows) == ("none", 1)
    plain = Run(engine, some_tokens(20))
    decode_speculatively(engine, "right", plain).assert_equals(plain)
    engine.truncate(0)
    reader = Reader(engine)
    for count in (30, 10, 1):
        reader.read(some_tokens(count, seed=count), rows=1)
    assert reader.cut(35) == 0
    reader.equals_fresh(load, arch, seed=1)
    engine.close()
    weights.close()


def test_no_context_or_batch_size_aborts_the_process(load: Load, run_python: RunPython) -> None:
    """llama.cpp asserts that a batch is longer than the states it is to keep."""
    script = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from copyspec_edge import Settings\n"
        "from copyspec_edge.llama.engine import Engine\n"
        "from copyspec_edge.llama.weights import Weights\n"
        "weights = Weights(Path(sys.argv[1]), Settings(n_threads=1), use_extra_bufts=False)\n"
        "for size in (2, 3, 4, 5, 63, 64, 65, 66):\n"
        "    for n_ctx in (2, 3, 5, 63, 64, 65, 66, 300):\n"
        "        settings = Settings(n_threads=1, n_batch=size, n_ubatch=size)\n"
        "        engine = Engine(weights, settings, n_ctx=n_ctx)\n"
        "        n = min(n_ctx, engine.max_rows)\n"
        "        engine.eval(np.arange(n, dtype=np.int32) % 64, rows=n)\n"
        "        engine.truncate(n - 1)\n"
        "        engine.eval(np.zeros(n - engine.n_past, np.int32), rows=1)\n"
        "        engine.close()\n"
        "print('survived')\n"
    )
    for arch in ("lfm2", "mamba2"):
        done = run_python("-c", script, str(load(arch).path), env={"GGML_NO_BACKTRACE": "1"})
        assert (done.returncode, done.stdout.strip()) == (0, "survived"), done.stderr[-2000:]


@pytest.mark.parametrize("arch", ["qwen3", "lfm2", "mamba2"])
def test_costs_are_measured_on_every_kind_and_leave_nothing_behind(
    load: Load, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    monkeypatch.setattr(calibrate, "_BUDGET_SECONDS", 0.2)
    engine = Engine(load(arch), SETTINGS, n_ctx=calibrate.LEAST_CONTEXT)
    longest = 0
    read = engine.eval

    def watched(tokens: Tokens, *, rows: int) -> Row:
        nonlocal longest
        longest = max(longest, len(tokens))
        return read(tokens, rows=rows)

    monkeypatch.setattr(engine, "eval", watched)
    curve, _ = calibrate.measure(engine)
    assert engine.n_past == 0
    assert min(curve.seconds) > 0
    assert longest >= 16
    engine.close()


@pytest.mark.parametrize("arch", ["qwen3", "gemma3", "lfm2", "mamba2"])
def test_what_is_certified_holds_over_turns_past_a_window_and_512_cells(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arch: str
) -> None:
    """Prompts behind answers, half of each read again, and drafts that are often wrong."""
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path))
    settings = replace(SETTINGS, exact=True, calibrate=False, use_extra_bufts=False, n_ctx=720)
    prompts = [np.tile(some_tokens(45, seed=seed), 2) for seed in range(4)]
    with Model.load(load(arch).path, settings) as model:
        assert model.certificate
        assert model.certificate.depth == 719
        found = list(verify_copying(model, prompts, max_tokens=80))
    assert found[-1].depth > 512 + WINDOW
    assert all(c.rows_differing == 0 and c.difference is None for c in found)
    assert all(0 < c.accepted < c.drafted for c in found if c.drafts == "forced")


@pytest.mark.parametrize("arch", ["qwen3", "lfm2", "mamba2", "jamba"])
def test_every_kind_can_be_certified_exact_and_is(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arch: str
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path))
    settings = replace(SETTINGS, exact=True, calibrate=False, use_extra_bufts=False, n_ctx=256)
    params = SamplingParams(temperature=0, max_tokens=100, logprobs=3)
    prompt = [int(token) for token in np.tile(some_tokens(40), 2)]
    with Model.load(load(arch).path, settings) as model:
        copied, plain = (
            model.session(copy=copy).complete(prompt, params=params) for copy in (True, False)
        )
    assert copied.stats.drafted_tokens > copied.stats.accepted_tokens > 0
    assert (copied.token_ids, copied.logprobs) == (plain.token_ids, plain.logprobs)


@pytest.mark.parametrize("refused", ["llama_get_logits", "llama_init_from_model"])
def test_a_state_of_which_nothing_can_be_found_out_is_not_put_back(
    load: Load, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    model = load("mamba2").pointer
    assert probe_state(model, 1).can_restore
    monkeypatch.setattr(llama_cpp, refused, lambda *_: ctypes.POINTER(ctypes.c_float)())
    assert not probe_state(model, 1).can_restore


class Chat:
    """A session over a tiny model, with the texts of `fake_vocab`."""

    def __init__(self, weights: Weights, *, copy: bool = True) -> None:
        self.engine = Engine(weights, SETTINGS, n_ctx=256, min_rows=2)
        eog = frozenset({END})
        self.session = Session(
            self.engine,
            fake_vocab(),
            fake_template(),
            FLAT,
            CopyDrafter(self.engine.n_ctx, eog) if copy else NoDrafter(),
        )


@pytest.mark.parametrize("arch", SOME)
def test_conversations_are_the_same_with_copying(load: Load, arch: str) -> None:
    """Turns, a stop string, a rewind to an earlier turn, a reset: equal to never copying."""
    chat = Chat(load(arch, N_PIECES))
    drafted = 0
    for stop, seed in itertools.product(((), ("b",), ("ab", "\n")), (0, 1)):
        params = SamplingParams(temperature=0.7, seed=seed, max_tokens=30, stop=stop)
        plain = Chat(load(arch, N_PIECES), copy=False)
        for message in ("ab cd ab cd", "cd ab", "ab cd ab cd ab"):
            found = chat.session.send(message, params=params)
            expected = plain.session.send(message, params=params)
            assert found.token_ids == expected.token_ids
            assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
            assert found.stats.rollback == way(arch)
            drafted += found.stats.drafted_tokens
        assert chat.session.token_ids == plain.session.token_ids
        prefix = as_tokens(chat.session.token_ids[:40])
        completed = [c.session.complete(prefix, params=params) for c in (chat, plain)]
        assert completed[0].token_ids == completed[1].token_ids
        chat.session.reset()
        plain.session.close()
    assert drafted > 50
    chat.session.close()


@pytest.mark.parametrize(("arch", "twin"), [("qwen2vl", "qwen2"), ("qwen3vl", "qwen3")])
def test_text_has_the_same_positions_in_a_vision_model_as_in_its_text_model(
    load: Load, arch: str, twin: str
) -> None:
    """They have the same weights here; the vision model rotates by several positions a token."""
    rows = []
    for name in (arch, twin):
        reader = Reader(Engine(load(name), SETTINGS, n_ctx=256))
        reader.read(some_tokens(30))
        reader.read(some_tokens(9, seed=1), rows=9)
        reader.cut(33)
        rows.append(reader.read(some_tokens(40, seed=2)))
        reader.engine.close()
    assert np.abs(rows[0] - rows[1]).max() < 1e-4 * np.ptp(rows[1])


# Of models that do not write text from left to right, or that llama.cpp decodes into memory it
# does not own: metadata, and what the refusal says.
EMBEDDING: dict[str, Value] = {"attention.causal": False, "pooling_type": 1}
REFUSED: dict[str, tuple[dict[str, Value], str]] = {
    "t5": ({"attention.relative_buckets_count": 8}, "encoder"),
    "t5encoder": ({"attention.relative_buckets_count": 8}, "encoder"),
    "bert": ({**EMBEDDING, "tokenizer.ggml.token_type_count": 2}, "embedding model"),
    "modern-bert": ({**EMBEDDING, "attention.sliding_window": WINDOW}, "embedding model"),
    "neo-bert": (EMBEDDING, "embedding model"),
    "llama-embed": (EMBEDDING, "embedding model"),
    "dream": ({}, "diffusion"),
    "llada": ({}, "diffusion"),
    "rwkv7": ({"wkv.head_size": 32}, "multiple of 64"),
    "arwkv7": ({"wkv.head_size": 32}, "multiple of 64"),
}


@pytest.mark.parametrize("arch", REFUSED)
def test_models_that_cannot_be_decoded_are_refused(tmp_path: Path, arch: str) -> None:
    extra, reason = REFUSED[arch]
    path = tmp_path / f"{arch}.gguf"
    write_tiny_arch(path, arch, extra=extra)
    with pytest.raises(ModelLoadError, match=reason) as caught:
        Weights(path, SETTINGS, use_extra_bufts=False)
    assert str(path) in str(caught.value)


def test_an_embedding_model_that_does_not_say_so_is_refused_a_context(tmp_path: Path) -> None:
    path = tmp_path / "neo-bert.gguf"
    write_tiny_arch(path, "neo-bert")
    weights = Weights(path, SETTINGS, use_extra_bufts=False)
    with pytest.raises(ModelLoadError, match="keeps no memory"):
        Engine(weights, SETTINGS, n_ctx=64)
    weights.close()


def test_the_models_differ_by_seed_and_follow_from_it(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.gguf" for name in "abc"]
    for path, seed in zip(paths, (0, 0, 1), strict=True):
        write_tiny_arch(path, "qwen3", seed=seed)
    first, same, other = (path.read_bytes() for path in paths)
    assert first == same != other
