"""`copyspec-edge bench`: what copying gains on this machine, by the clock."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tqdm import tqdm

from copyspec_edge.cli.options import add_model_options, load_model
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.evaluation import (
    NAMES,
    OURS,
    PLAIN,
    Run,
    Sources,
    TokenTrace,
    chosen_baselines,
    contenders,
    parse_names,
    prefill_speed,
    report,
    run_traces,
    tokenized,
)
from copyspec_edge.host import machine
from copyspec_edge.model import Model


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser(
        "bench",
        help="measure what copying gains",
        description="Decodes recorded answers with real forward passes, with copying and without "
        "in turns. Without --data, --trace or --git: scripted edits of Python's own sources.",
    )
    add_model_options(parser)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("COPYSPEC_BENCH_DATA"),
        help="folder of recorded tasks; default: COPYSPEC_BENCH_DATA",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="traces as JSON lines")
    parser.add_argument("--git", type=Path, metavar="REPO", help="the newest edits of a repository")
    parser.add_argument("--tasks", default="", metavar="A,B", help="only these tasks")
    parser.add_argument("--per-task", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--max-tokens", type=int, default=256, metavar="N", help="of each answer; default: 256"
    )
    parser.add_argument(
        "--repetitions", type=int, default=1, metavar="N", help="medians are taken; default: 1"
    )
    parser.add_argument(
        "--baselines",
        default="none",
        metavar="A,B",
        help=f"{NAMES}: constants tuned to this machine and these traces",
    )
    parser.add_argument(
        "--free", action="store_true", help="the model's own greedy answers instead; loops flatter"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them, as png or svg")
    parser.set_defaults(run=bench)


def bench(arguments: argparse.Namespace) -> int:
    """Run the command."""
    names = parse_names(arguments.baselines)
    if min(arguments.per_task, arguments.max_tokens, arguments.repetitions) < 1:
        raise InvalidInputError("--per-task, --max-tokens and --repetitions must be at least 1")
    sources = Sources(
        data=arguments.data and Path(arguments.data),
        git=arguments.git,
        trace=arguments.trace,
        tasks=[task for task in arguments.tasks.split(",") if task],
        per_task=arguments.per_task,
    )
    # A fixed number of threads, so that all contenders have the same.
    arguments.threads = arguments.threads or machine.physical_cores()
    with load_model(arguments) as model:
        traces = tokenized(sources.load(), model, model.n_ctx - arguments.max_tokens)
        if not traces:
            raise InvalidInputError("all traces are too long for the context, or too short")
        results = _measure(model, traces, names, arguments)
    results["settings"] = {k: str(v) for k, v in vars(arguments).items() if k != "run"}
    print(report.table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2), encoding="utf-8")
    if arguments.plot:
        report.plot(results, arguments.plot)
    return 0


def _measure(
    model: Model, traces: list[TokenTrace], names: list[str], arguments: argparse.Namespace
) -> report.Results:
    eog_tokens = model.eog_tokens
    with model.session() as session:
        engine, cost = session.engine, session.cost
        prefill = prefill_speed(engine, traces)
        others = chosen_baselines(names, traces, cost.curve, eog_tokens, carried=True)
        field = contenders(others, session.drafter, cost, model.n_ctx, eog_tokens)
        runs: list[Run] = []
        decoded = run_traces(
            engine,
            traces,
            field,
            eog_tokens=eog_tokens,
            max_tokens=arguments.max_tokens,
            repetitions=arguments.repetitions,
            free=arguments.free,
        )
        for run in tqdm(decoded, total=len(traces) * len(field), file=sys.stderr, disable=None):
            runs.append(run)
        curve = next(contender.cost.curve for contender in field if contender.name == OURS)
    plain = [run for run in runs if run.contender == PLAIN]
    replayed = [
        TokenTrace(trace.task, trace.prompt, run.answer)
        for trace, run in zip(traces, plain, strict=True)
    ]
    results = report.report(runs, replayed, curve, capacity=model.n_ctx, eog_tokens=eog_tokens)
    results["model"] = {"path": str(model.path), "description": model.description}
    results["prefill_tps"] = prefill
    results["free"] = arguments.free
    return results
