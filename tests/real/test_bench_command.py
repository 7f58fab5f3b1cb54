from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copyspec_edge.cli import main
from copyspec_edge.errors import CopySpecError
from copyspec_edge.evaluation.live import OURS, PLAIN, RecordedSampler
from copyspec_edge.evaluation.report import plot

Results = dict[str, Any]

TEXT = "The quick brown fox jumps over the lazy dog and runs into the deep dark wood. "
FAST = ("--threads", "1", "--ctx", "512")
TRACES = [
    {"task": "copy", "prompt": TEXT * 3 + "Again: ", "output": TEXT * 2},
    {
        "task": "new",
        "prompt": "Count to twenty.",
        "output": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11",
    },
]


@pytest.fixture(scope="module")
def results(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("bench")
    traces, found = folder / "traces.jsonl", folder / "found.json"
    traces.write_text("\n".join(map(json.dumps, TRACES)), encoding="utf-8")
    options = [
        "--trace",
        str(traces),
        "--max-tokens",
        "24",
        "--baselines",
        "ngram-simple,copyspec-3,best",
    ]
    assert main(["bench", "-m", str(smollm2_path), *FAST, *options, "--json", str(found)]) == 0
    loaded: Results = json.loads(found.read_text("utf-8"))
    return loaded


@pytest.mark.real
def test_every_task_is_decoded_to_the_end_of_its_recording(
    results: Results,
) -> None:
    tasks = results["tasks"]
    assert list(tasks) == ["copy", "new"]
    assert all(row["tokens"] == 25 for row in tasks.values())
    assert tasks["copy"]["steps"] < 25 == tasks["copy"]["tokens"]
    assert all(row["plain_tps"] > 0 and row["speedup"] > 0 for row in tasks.values())


@pytest.mark.real
def test_the_json_has_what_the_documentation_lists(
    results: Results,
) -> None:
    first, second, lookup, simple = results["baselines"]
    assert [first, second] == ["ngram-simple", "copyspec-3"]
    assert lookup.startswith("best prompt-lookup ")
    assert simple.startswith("best ngram-simple ")
    assert results["min_speedup"] == min(row["speedup"] for row in results["tasks"].values())
    assert set(results["by_context"]) == {PLAIN, OURS}
    assert {"cost_curve", "machine", "settings", "model", "prefill_tps"} <= set(results)
    assert results["oracle"]["geomean_speedup"] >= 1


@pytest.mark.real
def test_free_answers_are_the_same_with_every_contender(
    smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces.jsonl"
    traces.write_text(json.dumps(TRACES[0]), encoding="utf-8")
    options = ["--trace", str(traces), "--max-tokens", "12", "--free"]
    assert main(["bench", "-m", str(smollm2_path), *FAST, *options]) == 0
    assert "copy" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--baselines", "no-such"],
        ["--per-task", "0"],
        ["--max-tokens", "0"],
        ["--tasks", "no-such"],
    ],
)
@pytest.mark.real
def test_bad_options_are_invalid_input(smollm2_path: Path, options: list[str]) -> None:
    assert main(["bench", "-m", str(smollm2_path), *FAST, *options]) == 2


def test_a_recorded_sampler_says_the_recording_whatever_the_row() -> None:
    sampler = RecordedSampler(np.array([5, 3, 5], np.int32))
    assert [sampler.choose(np.zeros(8, np.float32)) for _ in range(3)] == [5, 3, 5]


def test_a_plot_without_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CopySpecError, match=r"copyspec-edge\[plot\]"):
        plot({}, tmp_path / "plot.png")


@pytest.mark.real
def test_a_plot_is_drawn(tmp_path: Path, results: Results) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, the extra 'plot', is not installed")
    plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.real
def test_the_readmes_chart_shows_ours_and_the_best_others(tmp_path: Path, results: Results) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, the extra 'plot', is not installed")
    from bench.chart import draw

    draw(results, tmp_path / "once.svg", model="A model")
    draw(results, tmp_path / "twice.svg", model="A model")
    drawn = (tmp_path / "once.svg").read_text("utf-8")
    assert drawn == (tmp_path / "twice.svg").read_text("utf-8")
    means = {name: found["geomean_speedup"] for name, found in results["baselines"].items()}
    worst = min(means, key=lambda name: means[name])
    shown = {name for name in (OURS, *means) if f">{name}, geometric mean" in drawn}
    assert shown == {OURS, *means} - {worst}
    assert "A model, recorded answers" in drawn
    assert results["machine"]["processor"] in drawn
