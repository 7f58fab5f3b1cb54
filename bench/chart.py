"""The README's chart: python -m bench.chart RESULTS.json docs/speedup.svg.

Run it when the benchmark's table is made anew, on what `copyspec-edge bench --json` wrote: speed-up
by task for this drafter and the best of the others, with the model and the machine in the title.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from copyspec_edge.evaluation import OURS

N_OTHERS = 3
LABELS = {
    "mt-bench-1": "questions",
    "mt-bench-2": "follow-up questions",
    "mt-redundant-2": "variations of an answer",
    "gsm8k-1": "math by a program",
    "gsm8k-2": "critique of the program",
    "gsm8k-3": "the program, corrected",
    "code-fix": "fix a function",
    "code-edit": "edit code",
    "search-replace": "search and replace",
    "prose-edit": "edit prose",
}
# Kinds of instructions that decide what a batch costs, the best first.
VECTORS = ("AMX_INT8", "AVX512_VNNI", "AVX512", "AVX2", "SVE", "NEON")
_COLOURS = ("#0b6e4f", "#8d99ae", "#b8bfcc", "#dde1e8")

Results = Mapping[str, Any]


def bars(results: Results) -> dict[str, dict[str, float]]:
    """Speed-ups by contender and task: ours, then the best others by their geometric means."""
    ours = {task: row["speedup"] for task, row in results["tasks"].items()}
    others = sorted(
        results["baselines"].items(), key=lambda item: item[1]["geomean_speedup"], reverse=True
    )
    return {OURS: ours} | {name: found["tasks"] for name, found in others[:N_OTHERS]}


def geometric_means(results: Results) -> dict[str, float]:
    """By contender."""
    others = results["baselines"].items()
    found = {name: float(baseline["geomean_speedup"]) for name, baseline in others}
    return {OURS: float(results["geomean_speedup"]), **found}


def title(results: Results, model: str | None) -> str:
    """What was measured, on what."""
    name = model or Path(results["model"]["path"]).stem
    said = "its own answers" if results["free"] else "recorded answers"
    machine, n_threads = results["machine"], results["settings"]["threads"]
    threads = "1 thread" if n_threads == "1" else f"{n_threads} threads"
    vectors = next((v for v in VECTORS if f"{v} = 1" in machine["llama_cpp"]), "no vectors")
    return f"{name}, {said}\n{machine['processor']}, {vectors}, {threads}"


def draw(results: Results, path: Path, *, model: str | None = None) -> None:
    """Write the chart, as the suffix of the path says.

    Args:
        model: what to call it; None: its file's name.
    """
    found, means = bars(results), geometric_means(results)
    tasks = sorted(found[OURS], key=lambda task: found[OURS][task])
    figure = Figure(figsize=(8, 0.5 * len(tasks) + 1.6), layout="constrained")
    axes = figure.subplots()
    height = 0.84 / len(found)
    for index, (name, speedups) in enumerate(found.items()):
        places = [place + 0.42 - (index + 0.5) * height for place in range(len(tasks))]
        widths = [speedups[task] for task in tasks]
        label = f"{name}, geometric mean {means[name]:.2f}"
        drawn = axes.barh(places, widths, height, label=label, color=_COLOURS[index])
        if name == OURS:
            axes.bar_label(drawn, fmt="%.2f", padding=2, fontsize="small")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(tasks)), [LABELS.get(task, task) for task in tasks])
    axes.set_xlabel("speed-up over plain decoding (1: as fast)")
    axes.set_title(title(results, model), fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", fontsize="small", frameon=False)
    # The same results give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "copyspec-edge"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("chart", type=Path)
    parser.add_argument("--model", help="what to call the model; default: the file's name")
    parsed = parser.parse_args(arguments)
    draw(json.loads(parsed.results.read_text(encoding="utf-8")), parsed.chart, model=parsed.model)


if __name__ == "__main__":
    main()
