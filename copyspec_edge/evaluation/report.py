"""What a wall-clock benchmark found: as one JSON object, as a table, as a plot."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from copyspec_edge.drafting import CopyDrafter
from copyspec_edge.errors import CopySpecError
from copyspec_edge.evaluation.live import OURS, PLAIN, Run
from copyspec_edge.evaluation.oracle import oracle_speedups
from copyspec_edge.evaluation.replay import geometric_mean, replay_all
from copyspec_edge.evaluation.traces import TokenTrace
from copyspec_edge.host import machine
from copyspec_edge.llama import features
from copyspec_edge.tuning import CostCurve

_CONTEXT_BIN = 512

Results = dict[str, Any]


def report(
    runs: Sequence[Run],
    traces: Sequence[TokenTrace],
    curve: CostCurve,
    *,
    capacity: int,
    eog_tokens: frozenset[int],
) -> Results:
    """Everything that was measured; speed-ups are plain time over a contender's, per task."""
    tasks = list(dict.fromkeys(run.task for run in runs))
    names = list(dict.fromkeys(run.contender for run in runs if run.contender != PLAIN))
    speedups = {name: {task: _speedup(runs, task, name) for task in tasks} for name in names}
    tallies = replay_all(lambda: CopyDrafter(capacity, eog_tokens), traces, curve, carried=False)
    predicted = {task: tally.speedup(curve) for task, tally in tallies.items()}
    ours, oracle = speedups.pop(OURS), oracle_speedups(traces, curve)
    return {
        "tasks": {
            task: {
                **_counts([r for r in runs if r.task == task and r.contender == OURS]),
                "plain_tps": _speed(runs, task, PLAIN),
                "speedup": ours[task],
                "predicted_speedup": predicted[task],
            }
            for task in tasks
        },
        "geomean_speedup": geometric_mean(ours.values()),
        "min_speedup": min(ours.values()),
        "baselines": {
            name: {"geomean_speedup": geometric_mean(found.values()), "tasks": found}
            for name, found in speedups.items()
        },
        "oracle": {"geomean_speedup": geometric_mean(oracle.values()), "tasks": oracle},
        "by_context": {name: _by_context(runs, name) for name in (PLAIN, OURS)},
        "cost_curve": {"rows": curve.rows, "seconds": curve.seconds},
        "machine": {
            "processor": machine.processor_name(),
            "cores": machine.physical_cores(),
            "llama_cpp": features(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
    }


def _of(runs: Sequence[Run], task: str, contender: str) -> list[Run]:
    return [run for run in runs if run.task == task and run.contender == contender]


def _speed(runs: Sequence[Run], task: str, contender: str) -> float:
    chosen = _of(runs, task, contender)
    return sum(run.tokens for run in chosen) / sum(run.seconds for run in chosen)


def _speedup(runs: Sequence[Run], task: str, contender: str) -> float:
    return _speed(runs, task, contender) / _speed(runs, task, PLAIN)


def _counts(runs: Sequence[Run]) -> dict[str, int]:
    steps = [step for run in runs for step in run.steps]
    return {
        "tokens": sum(run.tokens for run in runs),
        "steps": len(steps),
        "drafted": sum(step.drafted for step in steps),
        "accepted": sum(step.accepted for step in steps),
    }


def _by_context(runs: Sequence[Run], contender: str) -> list[dict[str, float]]:
    """Tokens per second against the tokens of context before them."""
    tokens: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for run in runs:
        if run.contender != contender:
            continue
        position = run.n_prompt
        for step in run.steps:
            place = position // _CONTEXT_BIN * _CONTEXT_BIN
            tokens[place] = tokens.get(place, 0) + len(step.tokens)
            seconds[place] = seconds.get(place, 0.0) + step.seconds
            position += len(step.tokens)
    return [{"context": at, "tps": tokens[at] / seconds[at]} for at in sorted(tokens)]


def table(results: Results) -> str:
    """The results as text."""
    lines = [f"{'task':<18}{'tokens':>8}{'plain t/s':>11}{'speed-up':>10}{'predicted':>11}"]
    for task, row in results["tasks"].items():
        lines.append(
            f"{task:<18}{row['tokens']:>8}{row['plain_tps']:>11.1f}"
            f"{row['speedup']:>10.2f}{row['predicted_speedup']:>11.2f}"
        )
    lines += ["", f"{'geometric mean':<29}{'speed-up':>9}"]
    lines.append(f"{OURS:<29}{results['geomean_speedup']:>9.2f}")
    for name, found in results["baselines"].items():
        lines.append(f"{name:<29}{found['geomean_speedup']:>9.2f}")
    lines.append(f"{'copy oracle (predicted)':<29}{results['oracle']['geomean_speedup']:>9.2f}")
    return "\n".join(lines)


def plot(results: Results, path: Path) -> None:
    """Speed-up per task against baselines and ceiling, and speed over the context's length.

    Raises:
        CopySpecError: matplotlib, the extra "plot", is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CopySpecError("--plot needs matplotlib: pip install 'copyspec-edge[plot]'") from error
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    bars, curve = figure.subplots(1, 2, width_ratios=(2, 1))
    tasks = list(results["tasks"])
    series = {OURS: [results["tasks"][task]["speedup"] for task in tasks]}
    series |= {
        name: [found["tasks"][task] for task in tasks]
        for name, found in results["baselines"].items()
    }
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [place + (index - (len(series) - 1) / 2) * width for place in range(len(tasks))]
        bars.bar(places, values, width, label=name)
    ceiling = [results["oracle"]["tasks"][task] for task in tasks]
    bars.plot(range(len(tasks)), ceiling, "k_", markersize=20, label="copy oracle, predicted")
    bars.axhline(1.0, color="black", linewidth=0.8)
    bars.set_xticks(range(len(tasks)), tasks, rotation=40, ha="right")
    bars.set_ylabel("speed-up over plain decoding")
    bars.legend(fontsize="small")
    for name, points in results["by_context"].items():
        curve.plot([p["context"] for p in points], [p["tps"] for p in points], "o-", label=name)
    curve.set_xlabel("tokens of context")
    curve.set_ylabel("tokens per second")
    curve.set_ylim(bottom=0)
    curve.legend(fontsize="small")
    figure.savefig(path)
