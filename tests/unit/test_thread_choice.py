from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine, TinyLanguage

from copyspec_edge.arrays import Tokens
from copyspec_edge.errors import EngineError
from copyspec_edge.tuning import thread_choice
from copyspec_edge.tuning.thread_choice import choose_threads

Seconds = Callable[[int, int], float]


class ClockedEngine(FakeEngine):
    """Takes `seconds(threads, step)` for each batch, on a clock of its own."""

    def __init__(self, seconds: Seconds, most: int) -> None:
        super().__init__(TinyLanguage(8), n_ctx=64)
        self.now = 0.0
        self.n_threads = self.n_threads_batch = most
        self._seconds = seconds

    def eval(self, tokens: Tokens, *, rows: int) -> Any:
        threads = self.n_threads if len(tokens) == 1 else self.n_threads_batch
        self.now += self._seconds(threads, len(self.batch_sizes))
        return super().eval(tokens, rows=rows)

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        assert min(n_threads, n_threads_batch) >= 1
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ClockedEngine]:
    def run(seconds: Seconds, most: int = 8) -> ClockedEngine:
        engine = ClockedEngine(seconds, most)
        clock = SimpleNamespace(perf_counter=lambda: engine.now)
        monkeypatch.setattr(thread_choice, "time", clock)
        choose_threads(engine, tmp_path / "threads.json")
        assert engine.n_past == 0
        return engine

    return run


Choose = Callable[..., ClockedEngine]


def best_at(best: int) -> Seconds:
    """Threads beyond the fast cores are waited for."""
    return lambda threads, step: 0.01 / threads if threads <= best else 0.02 / best


@pytest.mark.parametrize(("most", "best"), [(8, 4), (8, 7), (12, 8), (16, 4), (2, 1), (3, 2)])
def test_the_fastest_number_of_threads_is_used_and_kept(
    choose: Choose, most: int, best: int
) -> None:
    assert choose(best_at(best), most).n_threads == best
    again = choose(lambda threads, step: 1.0, most)
    assert (again.n_threads, again.batch_sizes) == (best, [])


def test_all_cores_are_used_where_fewer_are_hardly_faster(choose: Choose) -> None:
    assert choose(lambda threads, step: 0.01 + 0.00002 * threads).n_threads == 8


def test_one_thread_needs_no_choice_of_others(choose: Choose) -> None:
    assert choose(lambda threads, step: 0.01, 1).n_threads == 1


@pytest.mark.parametrize(
    "busy",
    [
        lambda threads, step: 2.0 if threads == 8 else 0.01,
        lambda threads, step: 0.5 if threads == 8 and step < 8 else 0.01,
    ],
    ids=["all along", "for a while"],
)
def test_on_a_busy_machine_nothing_is_chosen_nor_kept(choose: Choose, busy: Seconds) -> None:
    assert choose(busy).n_threads == 8
    assert choose(best_at(4)).n_threads == 4


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"n_threads": 3}',
        '{"n_threads": 0, "n_threads_batch": 3}',
        '{"n_threads": 3, "n_threads_batch": 9}',
        '{"n_threads": "4", "n_threads_batch": 3}',
        '{"n_threads": true, "n_threads_batch": 3}',
        "\xff",
    ],
)
def test_what_cannot_be_believed_is_measured_again(
    choose: Choose, tmp_path: Path, content: str
) -> None:
    (tmp_path / "threads.json").write_bytes(content.encode("latin-1"))
    assert choose(best_at(4)).n_threads == 4
    assert choose(lambda threads, step: 1.0).n_threads == 4


def test_a_slow_model_is_measured_in_one_round(choose: Choose) -> None:
    engine = choose(lambda threads, step: 0.4)
    assert len(engine.batch_sizes) == 1 + 2 * 5 + 2 * 5


def test_an_engine_that_fails_is_left_empty_with_all_its_threads(
    choose: Choose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = ClockedEngine(best_at(4), 8)
    engine.faults = {3: "before"}
    with pytest.raises(EngineError):
        choose_threads(engine, tmp_path / "threads.json")
    assert (engine.n_threads, engine.n_past) == (8, 0)


class HybridEngine(ClockedEngine):
    """One token waits for memory, which two threads use up; several wait for arithmetic."""

    def eval(self, tokens: Tokens, *, rows: int) -> Any:
        one = 0.01 + 0.001 * abs(self.n_threads - 2)
        several = 0.2 / self.n_threads_batch
        self._seconds = lambda threads, step: one if len(tokens) == 1 else several
        return super().eval(tokens, rows=rows)


def hybrid(monkeypatch: pytest.MonkeyPatch, path: Path, **options: bool) -> HybridEngine:
    engine = HybridEngine(lambda threads, step: 0.0, 8)
    monkeypatch.setattr(thread_choice, "time", SimpleNamespace(perf_counter=lambda: engine.now))
    choose_threads(engine, path, **options)
    return engine


def test_one_token_and_several_have_threads_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for _ in range(2):
        engine = hybrid(monkeypatch, tmp_path / "threads.json")
        assert (engine.n_threads, engine.n_threads_batch) == (2, 8)
    assert engine.batch_sizes == []


def test_a_number_that_is_given_for_batches_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = hybrid(monkeypatch, tmp_path / "threads.json", for_batches=False)
    assert (engine.n_threads, engine.n_threads_batch) == (2, 8)
    assert engine.batch_sizes.count(16) == 1


def test_counts_below_one_that_is_far_slower_are_not_tried(choose: Choose) -> None:
    counts: set[int] = set()

    def seconds(threads: int, step: int) -> float:
        counts.add(threads)
        return 0.08 / threads

    assert choose(seconds).n_threads == 8
    assert counts == {8, 7, 5}
