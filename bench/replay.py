"""What drafters gain on recorded answers and a cost curve, without a model: python -m bench.replay.

Run it, before and after, when a drafter, its accept estimates or the choice of lengths change; it
takes seconds, not hours. The drafter under test is trimmed by the policy; the baselines, of
constant length, are not. "best" among the baselines tunes the two numbers of prompt lookup and of
ngram-simple on this curve and these traces. The oracle is the fastest that copying could be.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from copyspec_edge import CopySpecError, Model, Settings
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.evaluation.baseline_choice import BEST, NAMES, chosen_baselines, parse_names
from copyspec_edge.evaluation.baselines import Factory
from copyspec_edge.evaluation.oracle import oracle_speedups
from copyspec_edge.evaluation.replay import MAX_TOKENS, Tally, geometric_mean, replay_all
from copyspec_edge.evaluation.sources import Sources
from copyspec_edge.evaluation.traces import N_CTX, TokenTrace, tokenized
from copyspec_edge.tuning.cost import CostCurve
from copyspec_edge.tuning.curves import REPLAY_CURVES

OURS: Factory = CopyDrafter


@dataclass(frozen=True)
class Bench:
    """The traces, the end-of-generation tokens of their model, and how contenders are compared."""

    traces: Sequence[TokenTrace]
    eog_tokens: frozenset[int]
    curve: CostCurve
    carried: bool

    def run(self, factory: Factory, *, trimmed: bool) -> dict[str, Tally]:
        """Tallies by task of one contender."""
        return replay_all(
            lambda: factory(N_CTX, self.eog_tokens),
            self.traces,
            self.curve if trimmed else None,
            carried=self.carried,
        )

    def speedups(self, tallies: dict[str, Tally]) -> dict[str, float]:
        """By task."""
        return {task: tally.speedup(self.curve) for task, tally in tallies.items()}

    def baselines(self, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Speed-ups by name and task."""
        chosen = chosen_baselines(
            names, self.traces, self.curve, self.eog_tokens, carried=self.carried
        )
        return {name: self.speedups(self.run(make, trimmed=False)) for name, make in chosen.items()}


def report(bench: Bench, names: Sequence[str]) -> dict[str, Any]:
    """All results, in the layout that the benchmarks' JSON files share."""
    tallies = bench.run(OURS, trimmed=True)
    ours, oracle = bench.speedups(tallies), oracle_speedups(bench.traces, bench.curve)
    geomean, ceiling = geometric_mean(ours.values()), geometric_mean(oracle.values())
    return {
        "tasks": {
            task: {
                "predicted_speedup": ours[task],
                "oracle_speedup": oracle[task],
                "tokens": tally.tokens,
                "steps": tally.steps,
                "drafted": tally.drafted,
                "accepted": tally.accepted,
            }
            for task, tally in tallies.items()
        },
        "geomean_speedup": geomean,
        "min_speedup": min(ours.values()),
        "oracle": {"geomean_speedup": ceiling, "share": geomean / ceiling},
        "baselines": {
            name: {"geomean_speedup": geometric_mean(found.values()), "tasks": found}
            for name, found in bench.baselines(names).items()
        },
        "cost_curve": {"rows": bench.curve.rows, "times": bench.curve.seconds},
        "machine": {"platform": platform.platform(), "python": platform.python_version()},
    }


def show(results: dict[str, Any]) -> None:
    """Print the results as tables."""
    columns = ("task", "tokens", "tokens/step", "drafted", "accepted", "speed-up", "oracle")
    print("{:<18}{:>10}{:>13}{:>10}{:>10}{:>10}{:>9}".format(*columns))
    for task, row in results["tasks"].items():
        accepted = row["accepted"] / max(row["drafted"], 1)
        print(
            f"{task:<18}{row['tokens']:>10}{row['tokens'] / row['steps']:>13.2f}"
            f"{row['drafted']:>10}{accepted:>10.1%}"
            f"{row['predicted_speedup']:>10.3f}{row['oracle_speedup']:>9.3f}"
        )
    oracle = results["oracle"]
    print(f"\n{'geometric means':<40}{'speed-up':>10}")
    print(f"{'copyspec-edge':<40}{results['geomean_speedup']:>10.3f}")
    for name, found in results["baselines"].items():
        print(f"{name:<40}{found['geomean_speedup']:>10.3f}")
    print(f"{'oracle':<40}{oracle['geomean_speedup']:>10.3f}")
    print(f"{'share of the oracle':<40}{oracle['share']:>10.3f}")


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("COPYSPEC_BENCH_DATA"),
        help="folder of the recorded tasks; without it the built-in traces are used",
    )
    parser.add_argument("--git", type=Path, help="use the newest edits of this repository")
    parser.add_argument("--trace", type=Path, help="use the traces of this JSON lines file")
    parser.add_argument("--tasks", type=_names, default=[], help="only these, with commas between")
    parser.add_argument("--per-task", type=int, default=96, help="most traces of one task")
    parser.add_argument("--curve", choices=REPLAY_CURVES, default="1b", help="what batches cost")
    parser.add_argument(
        "--baselines",
        default="all",
        help=f"{NAMES}; {BEST} takes minutes",
    )
    parser.add_argument(
        "--learner",
        choices=("fresh", "carried"),
        default="fresh",
        help="what was learned is forgotten, or kept, from trace to trace in the tasks' order",
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("-m", "--model", default="smollm2-135m", help="whose tokens to use")
    return parser


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    """Parse the command line, replay, print, and write the JSON file."""
    parser = options()
    arguments = parser.parse_args()
    start = time.perf_counter()
    try:
        names = parse_names(arguments.baselines)
        traces = Sources(
            data=arguments.data and Path(arguments.data),
            git=arguments.git,
            trace=arguments.trace,
            tasks=arguments.tasks,
            per_task=arguments.per_task,
        ).load()
        with Model.load(arguments.model, Settings(n_ctx=512)) as model:
            tokens, eog_tokens = tokenized(traces, model), model.eog_tokens
    except CopySpecError as error:
        parser.error(str(error))
    if not tokens:
        parser.error("all traces are too long or too short")
    curve, carried = REPLAY_CURVES[arguments.curve], arguments.learner == "carried"
    results = report(Bench(tokens, eog_tokens, curve, carried), names)
    results["settings"] = {
        **{name: str(value) for name, value in vars(arguments).items() if name != "json"},
        "traces": len(tokens),
        "max_tokens": MAX_TOKENS,
        "n_ctx": N_CTX,
    }
    show(results)
    print(f"\n{len(tokens)} traces, {time.perf_counter() - start:.1f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
