"""`copyspec-edge verify`: does copying change what this model says here?"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from copyspec_edge.chat import prompt_tokens
from copyspec_edge.cli.options import add_exact_option, add_model_options, load_model
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.exactness import (
    Comparison,
    Difference,
    built_in_prompts,
    prompts_of,
    summarize,
    verify_copying,
)
from copyspec_edge.host import machine
from copyspec_edge.model import Model


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser(
        "verify",
        help="check that copying changes nothing",
        description="Answers prompts greedily, each behind the answer to the one before: without "
        "copying, with it, and with forced drafts that are often wrong. Compares all tokens and "
        "logits. Without --exact, rounding may "
        "differ and flip near-ties; the exit code is then 0 all the same.",
    )
    add_model_options(parser)
    add_exact_option(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt a line; .jsonl: objects with `prompt` or `messages`; default: built in",
    )
    parser.add_argument(
        "--max-tokens", type=int, default=128, metavar="N", help="of each answer; default: 128"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=verify)


def verify(arguments: argparse.Namespace) -> int:
    """Run the command: 1 if something differs although nothing may."""
    if arguments.max_tokens < 1:
        raise InvalidInputError("--max-tokens must be at least 1")
    prompts = prompts_of(arguments.prompts) if arguments.prompts else built_in_prompts()
    with load_model(arguments) as model:
        tokens = [prompt_tokens(prompt, model) for prompt in prompts]
        answers = verify_copying(model, tokens, max_tokens=arguments.max_tokens)
        bar = tqdm(answers, total=2 * len(tokens), file=sys.stderr, disable=None)
        comparisons = list(bar)
        result = {
            **summarize(comparisons),
            "answers": [asdict(comparison) for comparison in comparisons],
            **_circumstances(model, comparisons[-1], arguments),
        }
    if arguments.json:
        print(json.dumps(result))
    else:
        _print_table(comparisons, exact=arguments.exact)
    return 1 if arguments.exact and not result["identical"] else 0


def _circumstances(
    model: Model, last: Comparison, arguments: argparse.Namespace
) -> dict[str, object]:
    return {
        "model": {"path": str(model.path), "description": model.description},
        "settings": {
            "exact": arguments.exact,
            "n_ctx": model.n_ctx,
            "n_threads": last.n_threads,
            "n_threads_batch": last.n_threads_batch,
            "n_gpu_layers": arguments.gpu_layers,
            "max_tokens": arguments.max_tokens,
            "certificate": model.certificate.as_dict() if model.certificate else None,
        },
        "machine": {"processor": machine.processor_name(), "cores": machine.physical_cores()},
    }


def _print_table(comparisons: list[Comparison], *, exact: bool) -> None:
    print("prompt drafts  depth tokens drafted accepted rows differing  largest difference")
    for c in comparisons:
        print(
            f"{c.prompt + 1:<6} {c.drafts:<7} {c.depth:>5} {c.tokens_compared:>6} {c.drafted:>7} "
            f"{c.accepted:>8} {c.rows_differing:>14} {c.max_logit_difference:>19.4g}"
        )
    totals = summarize(comparisons)
    difference = next((c.difference for c in comparisons if c.difference), None)
    if totals["identical"]:
        print(f"Identical, bit for bit: {totals['tokens_compared']} tokens and their logits.")
    elif difference is None:
        print(f"The same {totals['tokens_compared']} tokens; their logits are rounded differently.")
    else:
        print(_explain(difference))
    if not exact and not totals["identical"]:
        print("Batches of other sizes round otherwise. With --exact nothing may differ.")


def _explain(difference: Difference) -> str:
    return (
        f"First other token: answer {difference.prompt + 1} ({difference.drafts} drafts), token "
        f"{difference.position + 1}: {difference.other_text!r} ({difference.other}) instead of "
        f"{difference.plain_text!r} ({difference.plain}), which the model found more likely by "
        f"{difference.margin:.4g}; the two rows differ by up to {difference.rounding:.4g}."
    )
