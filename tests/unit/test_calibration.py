from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, TinyLanguage

from copyspec_edge.arrays import Tokens
from copyspec_edge.errors import EngineError
from copyspec_edge.tuning import calibration, long_context, measuring
from copyspec_edge.tuning.calibration import LEAST_CONTEXT, calibrated, measure
from copyspec_edge.tuning.cost import CostCurve
from copyspec_edge.tuning.curves import CPU_CURVE, GPU_CURVE, SHAPES

STEP = 0.01
TIMERS = (calibration, long_context, measuring)


def in_seconds(curve: CostCurve, step: float = STEP) -> CostCurve:
    return CostCurve(curve.rows, tuple(step * s for s in curve.seconds))


class TimedEngine(FakeEngine):
    """Takes the time of a cost curve for each batch, on a clock of its own.

    Attributes:
        now: the clock.
        reshape: seconds that a batch takes more when the last one had other rows.
        busy: factor of a step's time, given the number of steps before it and the threads.
    """

    def __init__(
        self,
        truth: CostCurve,
        *,
        max_rows: int = 64,
        n_ctx: int = LEAST_CONTEXT,
        n_vocab: int = 8,
        **options: Any,
    ) -> None:
        shape: dict[str, Any] = {"n_ctx": n_ctx, "max_rows": max_rows, "n_batch": max(max_rows, 64)}
        super().__init__(TinyLanguage(n_vocab), **shape, **options)
        self.now = 0.0
        self.reshape = 0.0
        self.n_threads = self.n_threads_batch = 4
        self.busy: Callable[[int, int], float] = lambda step, threads: 1.0
        self._truth = truth
        self._last = 0

    def eval(self, tokens: Tokens, *, rows: int) -> Any:
        factor = self.busy(len(self.batch_sizes), self.n_threads)
        seconds = self._seconds(tokens)
        seconds += self.reshape * (len(tokens) != self._last)
        self._last = len(tokens)
        self.now += seconds * factor
        return super().eval(tokens, rows=rows)

    def _seconds(self, tokens: Tokens) -> float:
        n_batches, rest = divmod(len(tokens), 64)
        table = self._truth.at(self.n_past).table
        return n_batches * float(table[64]) + (float(table[rest]) if rest else 0.0)

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        assert min(n_threads, n_threads_batch) >= 1
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[[TimedEngine], TimedEngine]:
    """Make an engine's clock the one that calibration reads."""

    def use(engine: TimedEngine) -> TimedEngine:
        clock = SimpleNamespace(perf_counter=lambda: engine.now)
        for module in TIMERS:
            monkeypatch.setattr(module, "time", clock)
        return engine

    return use


Start = Callable[[TimedEngine], TimedEngine]


def assert_clean(engine: TimedEngine) -> None:
    assert (engine.n_past, engine.tokens) == (0, [])
    assert (engine.n_threads, engine.n_threads_batch) == (4, 4)


@pytest.mark.parametrize("truth", [CPU_CURVE, GPU_CURVE], ids=["cpu", "gpu"])
def test_the_curve_is_what_batches_take(start: Start, truth: CostCurve) -> None:
    engine = start(TimedEngine(in_seconds(truth)))
    curve, spread = measure(engine)
    assert curve.rows == SHAPES
    assert curve.seconds == pytest.approx(in_seconds(truth).seconds)
    assert spread == pytest.approx(1.0)
    assert_clean(engine)


def test_a_change_of_shape_is_charged_to_the_longer_batch(start: Start) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE)))
    engine.reshape = 0.002
    curve, _ = measure(engine)
    assert curve.seconds[0] == pytest.approx(STEP)
    expected = [s + 2 * engine.reshape for s in in_seconds(CPU_CURVE).seconds[1:]]
    assert curve.seconds[1:] == pytest.approx(expected)


@pytest.mark.parametrize("max_rows", [1, 2, 16, 17])
def test_no_batch_is_longer_than_the_engine_has_rows(start: Start, max_rows: int) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE), max_rows=max_rows))
    curve, _ = measure(engine)
    measured = [i for i, rows in enumerate(SHAPES) if rows <= max_rows]
    truth = in_seconds(CPU_CURVE).seconds
    assert curve.seconds[: len(measured)] == pytest.approx(truth[: len(measured)])
    assert (np.diff(curve.seconds) > 0).all()


def test_an_engine_that_forgets_everything_at_a_cut_is_measured_alike(start: Start) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE), can_truncate=False))
    assert measure(engine)[0].seconds == pytest.approx(in_seconds(CPU_CURVE).seconds)
    assert_clean(engine)


def test_reading_again_what_a_cut_took_is_charged_to_the_longer_batch(start: Start) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE), checkpoints=True))
    curve, _ = measure(engine)
    assert curve.seconds == pytest.approx(in_seconds(CPU_CURVE).seconds)
    assert_clean(engine)


def test_outliers_among_the_longer_batches_are_thrown_away(start: Start) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE)))
    engine.busy = lambda step, _: 30.0 if step in (7, 15, 33) else 1.0
    curve, _ = measure(engine)
    assert curve.seconds == pytest.approx(in_seconds(CPU_CURVE).seconds)


def test_a_batch_that_seems_cheaper_than_a_plain_step_gives_no_falling_curve(start: Start) -> None:
    falling = CostCurve((1, 2, 64), (1.0, 0.9, 0.5))
    curve, _ = measure(start(TimedEngine(in_seconds(falling, 0.8), max_rows=2)))
    assert min(curve.seconds) == pytest.approx(0.72)


@pytest.mark.parametrize("step", [0.0002, 0.003, 0.01, 0.05, 0.1])
def test_two_seconds_are_enough_for_a_fast_model(start: Start, step: float) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE, step)))
    measure(engine)
    assert engine.now <= 2.0 + 4 * step


@pytest.mark.parametrize("truth", [CPU_CURVE, GPU_CURVE], ids=["cpu", "gpu"])
@pytest.mark.parametrize("step", [0.3, 3.0, 20.0])
def test_twenty_plain_steps_are_enough_for_a_slow_model(
    start: Start, step: float, truth: CostCurve
) -> None:
    engine = start(TimedEngine(in_seconds(truth, step)))
    curve, _ = measure(engine)
    assert engine.now <= 20.5 * step
    assert curve.seconds[:4] == pytest.approx(in_seconds(truth, step).seconds[:4], rel=0.1)
    assert curve.seconds == pytest.approx(in_seconds(truth, step).seconds, rel=0.5)
    assert (np.diff(curve.seconds) > 0).all()


def test_reading_weights_from_the_disk_at_first_does_not_shorten_the_rest(start: Start) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE)))
    engine.busy = lambda step, _: 1000.0 if step == 0 else 1.0
    curve, spread = measure(engine)
    assert curve.seconds == pytest.approx(in_seconds(CPU_CURVE).seconds)
    assert spread == pytest.approx(1.0)


def test_two_rows_are_measured_even_if_the_time_is_up_before(start: Start) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE)))
    engine.busy = lambda step, _: 1000.0 if step == 2 else 1.0
    curve, _ = measure(engine)
    assert curve.seconds[:2] == pytest.approx(in_seconds(CPU_CURVE).seconds[:2])


def test_an_engine_that_fails_is_left_empty_with_all_its_threads(
    start: Start, tmp_path: Path
) -> None:
    for fails_at in range(8):
        engine = start(TimedEngine(in_seconds(CPU_CURVE)))
        engine.faults[fails_at] = "before"
        with pytest.raises(EngineError):
            calibrated(engine, tmp_path / "curve.json")
        assert_clean(engine)
    assert list(tmp_path.iterdir()) == []


def busy_from(first: int, last: int = 10_000) -> Callable[[int, int], float]:
    """Beside another process spinning threads are slow, and half as many are not."""
    return lambda step, threads: 150.0 if first <= step < last and threads > 2 else 1.0


@pytest.mark.parametrize(
    "busy",
    [
        busy_from(0),
        busy_from(4),
        busy_from(9),
        busy_from(60),
        lambda step, _: 4.0 if step == 4 else 1.0,
        lambda step, _: 1.0 + 3 * (step % 2),
    ],
    ids=["always", "soon", "later", "late", "once", "noise"],
)
def test_on_a_busy_machine_nothing_is_believed_nor_kept(
    start: Start, tmp_path: Path, busy: Callable[[int, int], float]
) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE)))
    engine.busy = busy
    assert calibrated(engine, tmp_path / "curve.json") is None
    assert list(tmp_path.iterdir()) == []
    assert_clean(engine)


def test_a_machine_that_is_busy_from_the_start_is_given_up_soon(start: Start) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE)))
    engine.busy = busy_from(0)
    measure(engine)
    assert len(engine.batch_sizes) <= 6


def kept(tmp_path: Path, curve: CostCurve = CPU_CURVE) -> Path:
    path = tmp_path / "measured" / "curve.json"
    engine = TimedEngine(in_seconds(curve))
    with pytest.MonkeyPatch.context() as patch:
        for module in TIMERS:
            patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: engine.now))
        assert calibrated(engine, path) is not None
    return path


def test_a_curve_that_was_measured_is_used_again_without_an_eval(tmp_path: Path) -> None:
    path = kept(tmp_path)
    engine = TimedEngine(in_seconds(GPU_CURVE))
    curve = calibrated(engine, path)
    assert curve is not None
    assert curve.seconds == pytest.approx(in_seconds(CPU_CURVE).seconds)
    assert engine.batch_sizes == []


def test_the_spread_is_recorded(tmp_path: Path) -> None:
    assert json.loads(kept(tmp_path).read_text())["spread"] == pytest.approx(1.0)


GOOD = {
    "rows": list(SHAPES),
    "seconds": list(CPU_CURVE.seconds),
    "growth": [0.001] * len(SHAPES),
    "spread": 1.0,
}


def with_second(value: object) -> dict[str, object]:
    return {**GOOD, "seconds": [value, *CPU_CURVE.seconds[1:]]}


BAD: dict[str, str] = {
    "empty": "",
    "cut off": json.dumps(GOOD)[:-20],
    "no JSON": "\x00\x01 hello",
    "a list": "[1, 2, 3]",
    "a number": "7",
    "null": "null",
    "too deep": "[" * 100_000,
    "no rows": json.dumps({"seconds": GOOD["seconds"]}),
    "no seconds": json.dumps({"rows": GOOD["rows"], "growth": GOOD["growth"]}),
    "null seconds": json.dumps({**GOOD, "seconds": None}),
    "NaN": json.dumps(with_second(float("nan"))),
    "infinite": json.dumps(with_second(float("inf"))),
    "too large": json.dumps(with_second(10**400)),
    "negative": json.dumps(with_second(-1.0)),
    "zero": json.dumps(with_second(0)),
    "text": json.dumps(with_second("fast")),
    "nested": json.dumps(with_second([1.0])),
    "other rows": json.dumps({**GOOD, "rows": [*SHAPES[:-1], 65]}),
    "fewer rows": json.dumps({**GOOD, "rows": list(SHAPES[:-1])}),
    "fewer seconds": json.dumps({**GOOD, "seconds": list(CPU_CURVE.seconds[:-1])}),
    "more seconds": json.dumps({**GOOD, "seconds": [*CPU_CURVE.seconds, 12.0]}),
    "no growth": json.dumps({"rows": GOOD["rows"], "seconds": GOOD["seconds"]}),
    "NaN growth": json.dumps({**GOOD, "growth": [float("nan")] * len(SHAPES)}),
    "negative growth": json.dumps({**GOOD, "growth": [-0.001] * len(SHAPES)}),
    "less growth": json.dumps({**GOOD, "growth": [0.001]}),
    "another format": json.dumps({"1": 1.0, "2": 1.5}),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_what_cannot_be_believed_is_measured_again_and_replaced(
    start: Start, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "curve.json"
    path.write_text(text, encoding="utf-8")
    engine = start(TimedEngine(in_seconds(CPU_CURVE)))
    curve = calibrated(engine, path)
    assert curve is not None
    assert curve.seconds == pytest.approx(in_seconds(CPU_CURVE).seconds)
    assert json.loads(path.read_text())["seconds"] == pytest.approx(list(curve.seconds))
    assert_clean(engine)


def test_the_files_above_are_bad_for_one_reason_each(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    engine = TimedEngine(in_seconds(GPU_CURVE))
    curve = calibrated(engine, path)
    assert curve == CostCurve(SHAPES, CPU_CURVE.seconds, (0.001,) * len(SHAPES))
    assert engine.batch_sizes == []


def test_bytes_that_are_no_text_are_measured_again(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_bytes(b"\xff\xfe\x00{")
    assert calibrated(start(TimedEngine(in_seconds(CPU_CURVE))), path) is not None
    assert json.loads(path.read_text())["rows"] == list(SHAPES)


def test_a_folder_that_cannot_be_written_costs_only_the_memory(
    start: Start, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    engine = start(TimedEngine(in_seconds(CPU_CURVE)))
    for _ in range(2):
        before = len(engine.batch_sizes)
        curve = calibrated(engine, blocked / "curve.json")
        assert curve is not None
        assert curve.seconds == pytest.approx(in_seconds(CPU_CURVE).seconds)
        assert len(engine.batch_sizes) > before
    assert blocked.read_text() == "not a folder"


def test_a_folder_in_the_place_of_the_file_is_survived(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.mkdir()
    assert calibrated(start(TimedEngine(in_seconds(CPU_CURVE))), path) is not None


class ExpertsEngine(TimedEngine):
    """Each token of a batch that is not in it twice takes the time of its own experts."""

    def _seconds(self, tokens: Tokens) -> float:
        return STEP * (0.5 + 0.5 * len(set(tokens.tolist())))


def test_tokens_are_varied_so_that_each_row_takes_its_own_experts(start: Start) -> None:
    engine = start(ExpertsEngine(CPU_CURVE, n_vocab=50_000))
    curve, _ = measure(engine)
    assert curve.seconds == pytest.approx([STEP * (0.5 + 0.5 * rows) for rows in SHAPES], rel=0.01)


def growing(first: float, each: float, step: float = STEP) -> CostCurve:
    """Costs that a context of a thousand tokens makes dearer by `first` + rows * `each` steps."""
    growth = tuple(step * (first + each * rows) / 1000 for rows in SHAPES)
    return CostCurve(SHAPES, in_seconds(CPU_CURVE, step).seconds, growth)


@pytest.mark.parametrize("max_rows", [1, 2, 16, 64])
@pytest.mark.parametrize("n_ctx", [400, 2048])
def test_what_a_long_context_adds_is_measured(start: Start, n_ctx: int, max_rows: int) -> None:
    truth = growing(0.3, 0.2, step=0.001)
    engine = start(TimedEngine(truth, max_rows=max_rows, n_ctx=n_ctx))
    curve, _ = measure(engine)
    assert curve.at(0).seconds[0] == pytest.approx(truth.seconds[0], rel=0.05)
    n_measured = sum(rows <= max_rows for rows in SHAPES)
    expected = truth.at(4000).seconds[:n_measured]
    assert curve.at(4000).seconds[:n_measured] == pytest.approx(expected, rel=0.05)
    assert_clean(engine)


def test_a_context_that_adds_nothing_leaves_the_curve(start: Start) -> None:
    engine = start(TimedEngine(in_seconds(CPU_CURVE, 0.001), n_ctx=2048))
    curve, _ = measure(engine)
    assert curve.at(8000).seconds == pytest.approx(curve.seconds)


@pytest.mark.parametrize("step", [0.0002, 0.003, 0.01, 0.05, 0.1])
def test_reading_a_long_context_takes_little_more(start: Start, step: float) -> None:
    engine = start(TimedEngine(growing(0.1, 0.01, step), n_ctx=8192))
    measure(engine)
    assert max(engine.batch_sizes) > 64 or step == 0.1
    assert engine.now <= 5.5 + 4 * step


def test_a_model_too_slow_to_read_a_long_context_is_spared_it(start: Start) -> None:
    engine = start(TimedEngine(growing(0.1, 0.01, 0.3), n_ctx=8192))
    curve, _ = measure(engine)
    assert max(engine.batch_sizes) <= 64
    assert curve.growth == ()


def test_a_machine_that_gets_busy_behind_a_long_context_says_nothing_of_it(start: Start) -> None:
    engine = start(TimedEngine(growing(0.3, 0.2, 0.001), n_ctx=2048))
    engine.busy = lambda step, _: 100.0 if max(engine.batch_sizes, default=0) > 64 else 1.0
    curve, _ = measure(engine)
    assert curve.growth == ()


def test_an_engine_that_cannot_go_back_has_no_long_context(start: Start) -> None:
    truth = growing(0.3, 0.2, 0.001)
    engine = start(TimedEngine(truth, n_ctx=2048, can_truncate=False))
    assert measure(engine)[0].growth == ()
    assert_clean(engine)


def test_a_curve_with_what_a_long_context_adds_is_kept(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    engine = start(TimedEngine(growing(0.3, 0.2, 0.001), n_ctx=2048))
    curve = calibrated(engine, path)
    assert curve is not None
    assert curve.growth
    assert calibrated(TimedEngine(CPU_CURVE), path) == curve
