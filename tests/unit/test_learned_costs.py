from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from copyspec_edge.tuning.cost import CostCurve, StepTime
from copyspec_edge.tuning.learned_costs import LearnedCosts

MEASURED = CostCurve((1, 2, 4, 8), (1.0, 1.5, 2.0, 3.0), (0.001, 0.001, 0.002, 0.002))


def teach(
    learned: LearnedCosts,
    truth: tuple[float, ...],
    rows: tuple[int, ...],
    *,
    n_steps: int = 400,
    depth: int = 100,
    noise: float = 0.1,
) -> None:
    random = np.random.default_rng(0)
    curve = CostCurve(MEASURED.rows, truth, MEASURED.growth).at(depth)
    for step in range(n_steps):
        n = rows[step % len(rows)]
        seconds = float(curve.table[n]) * float(random.uniform(1 - noise, 1 + noise))
        learned.observe(StepTime(n, depth, seconds, 1.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "measured" / "learned.json"


def test_nothing_learned_is_the_measured_curve(path: Path) -> None:
    assert LearnedCosts(MEASURED, path).curve == MEASURED
    assert not path.exists()


def test_a_shape_that_takes_longer_than_measured_is_learned_and_kept(path: Path) -> None:
    truth = (1.0, 1.5, 2.6, 3.0)
    learned = LearnedCosts(MEASURED, path)
    teach(learned, truth, (1, 2, 4, 8))
    assert learned.curve.seconds == pytest.approx(truth, rel=0.06)
    assert LearnedCosts(MEASURED, path).curve.seconds == pytest.approx(truth, rel=0.1)


def test_plain_steps_at_another_pace_change_no_ratio(path: Path) -> None:
    learned = LearnedCosts(MEASURED, path)
    for _ in range(20):
        teach(learned, (0.8, 1.2, 1.6, 2.4), (1,))
        learned = LearnedCosts(MEASURED, path)
    seconds = np.array(learned.curve.seconds)
    assert seconds / seconds[0] == pytest.approx(MEASURED.seconds, rel=0.03)


def test_what_a_long_context_takes_is_corrected_alike(path: Path) -> None:
    learned = LearnedCosts(MEASURED, path)
    teach(learned, (1.2, 1.8, 2.4, 3.6), (1, 2, 4, 8), depth=0)
    assert learned.curve.growth == pytest.approx([1.2 * g for g in MEASURED.growth], rel=0.05)


@pytest.mark.parametrize("factor", [0.3, 0.6, 1.6, 2.0, 300.0])
def test_what_a_busy_machine_says_is_not_believed(path: Path, factor: float) -> None:
    learned = LearnedCosts(MEASURED, path)
    truth = tuple(factor * s for s in MEASURED.seconds)
    teach(learned, truth, (1, 4), depth=0, noise=0.01)
    assert learned.curve == MEASURED
    assert not path.exists()


def test_steps_behind_a_far_longer_context_than_was_measured_teach_nothing(path: Path) -> None:
    learned = LearnedCosts(MEASURED, path)
    teach(learned, (1.2, 1.8, 2.4, 3.6), (1, 4), depth=30_000)
    assert learned.curve == MEASURED


def test_a_change_of_a_few_per_cent_is_not_written(path: Path) -> None:
    learned = LearnedCosts(MEASURED, path)
    teach(learned, (1.03, 1.5, 2.02, 3.0), (1, 2, 4, 8), n_steps=2000, noise=0.01)
    assert learned.curve != MEASURED
    assert not path.exists()


def test_what_settles_is_not_written_again_and_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[object] = []
    monkeypatch.setattr(
        "copyspec_edge.tuning.learned_costs.write_json", lambda _, content: writes.append(content)
    )
    learned = LearnedCosts(MEASURED, path)
    teach(learned, (1.0, 1.5, 2.6, 3.0), (1, 2, 4, 8), n_steps=10_000, noise=0.2)
    assert 1 <= len(writes) <= 6


def test_no_correction_is_larger_than_half_however_often_it_is_kept(path: Path) -> None:
    for _ in range(10):
        teach(LearnedCosts(MEASURED, path), (1.0, 1.5, 5.0, 3.0), (1, 2, 4, 8))
    curve = LearnedCosts(MEASURED, path).curve
    assert max(a / b for a, b in zip(curve.seconds, MEASURED.seconds, strict=True)) <= 1.5


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        json.dumps({"measured": MEASURED.seconds, "factors": [1.0, 1.0, 1.2]}),
        json.dumps({"measured": MEASURED.seconds, "factors": [1.0, 1.0, 1.2, 1e9]}),
        json.dumps({"measured": MEASURED.seconds, "factors": [1.0, 1.0, 1.2, float("nan")]}),
        json.dumps({"measured": MEASURED.seconds, "factors": [1.0, 1.0, 1.2, -1.0]}),
        json.dumps({"measured": MEASURED.seconds, "factors": "abcd"}),
        json.dumps({"measured": [9.0, 9.0, 9.0, 9.0], "factors": [1.0, 1.0, 1.2, 1.0]}),
    ],
)
def test_what_is_damaged_or_about_another_curve_is_not_used(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content, "utf-8")
    assert LearnedCosts(MEASURED, path).curve == MEASURED


def test_the_files_above_are_bad_for_one_reason_each(path: Path) -> None:
    path.parent.mkdir()
    good = {"measured": MEASURED.seconds, "factors": [1.0, 1.0, 1.2, 1.0]}
    path.write_text(json.dumps(good), "utf-8")
    assert LearnedCosts(MEASURED, path).curve.seconds[2] > 2.05


def test_many_threads_may_teach_at_once(path: Path) -> None:
    learned = LearnedCosts(MEASURED, path)
    truth = (1.1, 1.5, 2.6, 3.0)
    threads = [
        threading.Thread(target=teach, args=(learned, truth, (1, 2, 4, 8))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert learned.curve.seconds == pytest.approx(truth, rel=0.05)
