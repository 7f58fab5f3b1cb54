"""What sessions of one model share of what was measured and learned."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from copyspec_edge import Model, SamplingParams, Session, Settings
from copyspec_edge.arrays import Tokens
from copyspec_edge.cli.options import add_model_options, load_model
from copyspec_edge.host import machine
from copyspec_edge.tuning import model_tuning
from copyspec_edge.tuning.curves import CPU_CURVE

pytestmark = pytest.mark.real

STEP = 0.01
MEASURED = replace(CPU_CURVE, seconds=tuple(STEP * s for s in CPU_CURVE.seconds))
SETTINGS = Settings(n_ctx=2048, use_extra_bufts=False)


class Measurements:
    """Stands in for what is measured by the clock, and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = {"flash": 0, "threads": 0, "costs": 0}
        self.threads = (2, 2)

    def flash(self, *_: object) -> bool:
        self.calls["flash"] += 1
        return False

    def choose_threads(self, engine: Any, path: Path, *, for_batches: bool) -> None:
        self.calls["threads"] += 1
        one, several = self.threads
        engine.set_threads(one, several if for_batches else engine.n_threads_batch)

    def calibrated(self, engine: Any, path: Path) -> Any:
        self.calls["costs"] += 1
        return MEASURED


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measurements:
    found = Measurements()
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(machine, "physical_cores", lambda: 2)
    monkeypatch.setattr(model_tuning, "flash_is_faster", found.flash)
    monkeypatch.setattr(model_tuning, "choose_threads", found.choose_threads)
    monkeypatch.setattr(model_tuning, "calibrated", found.calibrated)
    return found


@pytest.fixture
def load(measurements: Measurements, tiny_path: Path) -> Iterator[Callable[..., Model]]:
    models: list[Model] = []

    def run(**options: Any) -> Model:
        models.append(Model.load(tiny_path, replace(SETTINGS, **options)))
        return models[-1]

    yield run
    for model in models:
        model.close()


Load = Callable[..., Model]


def teach(session: Session, dearer: float) -> None:
    """Batches of four rows take longer than was measured, the others do not."""
    table = MEASURED.table
    for _ in range(100):
        session.cost.observe(1, float(table[1]), depth=50)
        session.cost.observe(4, dearer * float(table[4]), depth=50)


def four_rows(session: Session) -> float:
    table = session.cost.at(0).table
    return float(table[4] / table[1])


def test_a_model_is_measured_once_for_all_of_its_sessions(
    load: Load, measurements: Measurements
) -> None:
    model = load()
    for _ in range(3):
        model.session()
    assert measurements.calls == {"flash": 1, "threads": 1, "costs": 1}


def test_costs_that_decoding_corrected_are_those_of_the_next_session(load: Load) -> None:
    model = load()
    measured = float(MEASURED.table[4] / MEASURED.table[1])
    first = model.session()
    assert four_rows(first) == pytest.approx(measured)
    teach(first, 1.3)
    assert four_rows(model.session()) == pytest.approx(1.3 * measured, rel=0.05)


def test_costs_that_decoding_corrected_are_those_of_the_next_process(load: Load) -> None:
    teach(load().session(), 1.3)
    measured = float(MEASURED.table[4] / MEASURED.table[1])
    assert four_rows(load().session()) == pytest.approx(1.3 * measured, rel=0.1)


def get_busy(session: Session) -> None:
    """Another process takes a core: with both threads steps take for ever."""
    for _ in range(10):
        factor = 300.0 if session.engine.n_threads == 2 else 2.0
        session.cost.observe(1, factor * STEP, depth=50)


def test_the_threads_that_were_fastest_are_those_of_the_next_session(load: Load) -> None:
    model = load()
    first = model.session()
    assert (first.engine.n_threads, first.engine.n_threads_batch) == (2, 2)
    get_busy(first)
    second = model.session()
    assert (second.engine.n_threads, second.engine.n_threads_batch) == (1, 1)


def test_a_busy_machine_is_forgotten_by_the_next_process(load: Load) -> None:
    get_busy(load().session())
    again = load().session()
    assert again.engine.n_threads == 2
    assert again.cost.curve.seconds == pytest.approx(MEASURED.seconds)


def test_steps_with_fewer_threads_teach_the_next_session_nothing(load: Load) -> None:
    model = load()
    first = model.session()
    get_busy(first)
    teach(first, 1.3)
    measured = float(MEASURED.table[4] / MEASURED.table[1])
    assert four_rows(model.session()) == pytest.approx(measured)


def test_one_token_and_several_keep_threads_of_their_own(
    load: Load, measurements: Measurements
) -> None:
    measurements.threads = (1, 2)
    model = load()
    for _ in range(2):
        engine = model.session().engine
        assert (engine.n_threads, engine.n_threads_batch) == (1, 2)


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({"n_threads": 1}, (1, 1)),
        ({"n_threads": 1, "n_threads_batch": 2}, (1, 2)),
        ({"n_threads_batch": 1}, (2, 1)),
    ],
)
def test_numbers_that_are_given_are_kept(
    load: Load, given: dict[str, int], threads: tuple[int, int]
) -> None:
    session = load(**given).session()
    get_busy(session)
    engine = session.engine
    assert engine.n_threads_batch == threads[1]
    if "n_threads" in given:
        assert engine.n_threads == threads[0]


def test_without_calibration_every_session_starts_from_what_is_built_in(
    load: Load, measurements: Measurements
) -> None:
    model = load(calibrate=False, n_threads=1)
    teach(model.session(), 1.3)
    assert model.session().cost.curve == CPU_CURVE
    assert measurements.calls == {"flash": 0, "threads": 0, "costs": 0}


def test_a_long_prompt_on_a_real_model_changes_no_threads(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real forward passes, on a clock by which the context makes them longer than was measured."""
    session = load().session(copy=False)
    engine, now = session.engine, 0.0
    read, counts = engine.eval, [engine.n_threads]

    def slower_when_deep(tokens: Tokens, *, rows: int) -> Any:
        nonlocal now
        now += STEP * len(tokens) * (1 + engine.n_past / 200)
        counts.append(engine.n_threads)
        return read(tokens, rows=rows)

    monkeypatch.setattr(engine, "eval", slower_when_deep)
    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("copyspec_edge.decoding.loop.time", clock)
    for n_prompt in (5, 900, 10, 1800, 40):
        session.complete([n_prompt % 60] * n_prompt, params=SamplingParams(max_tokens=40))
    assert set(counts) == {2}


def test_a_given_number_for_batches_is_what_llama_cpp_uses(load: Load) -> None:
    import llama_cpp

    engine: Any = load(n_threads=1, n_threads_batch=2).session().engine
    assert llama_cpp.llama_n_threads(engine._context) == 1
    assert llama_cpp.llama_n_threads_batch(engine._context) == 2


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        (["--threads", "1", "--threads-batch", "2"], (1, 2)),
        (["--threads-batch", "1"], (2, 1)),
        (["--threads", "1"], (1, 1)),
    ],
)
def test_the_command_line_offers_both_numbers(
    measurements: Measurements, tiny_path: Path, options: list[str], threads: tuple[int, int]
) -> None:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    with load_model(parser.parse_args(["-m", str(tiny_path), *options])) as model:
        engine = model.session().engine
        assert (engine.n_threads, engine.n_threads_batch) == threads
