"""Do answers with and without copying agree, and if not, is it rounding?

Ten prompts that repeat their input are answered greedily with and without copying. Where the tokens
first differ, the row that decided is compared: its two likeliest tokens must be closer together
than twice what decoding it in a batch instead of alone changed. Run: python -m bench.agreement
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from copyspec_edge import Model, SamplingParams, Session, Settings, Stats
from copyspec_edge.history import Tokens, common_prefix

Rows = dict[int, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Run:
    """One answer: its tokens behind the prompt's, and the row that each was chosen from."""

    tokens: Tokens
    n_prompt: int
    rows: Rows
    stats: Stats


def prompts(data: Path) -> Iterator[tuple[str, str]]:
    """(name, prompt): four texts to quote, four functions to fix, two lists to continue."""
    documents = _lines(data / "docs" / "peps_30.jsonl")
    for index in (0, 7, 14, 21):
        passage = documents[index]["text"][600:1500]
        yield f"quote {index}", f"Repeat this text word for word:\n\n{passage}"
    fixes = _lines(data / "edit" / "humanevalfix_py_js_go.jsonl")
    for index in (3, 40, 200, 333):
        yield f"fix {index}", f"{fixes[index]['instruction']}\n\n```\n{fixes[index]['before']}\n```"
    with gzip.open(data / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        names = [json.loads(line)["entry_point"] for line in file]
    for first in (0, 80):
        items = "\n".join(f"{n + 1}. {name}" for n, name in enumerate(names[first : first + 30]))
        yield f"list {first}", f"Write this list again and continue it:\n\n{items}"


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def answer(session: Session, prompt: str, n_tokens: int) -> Run:
    """Answer greedily and keep the logits of every committed position."""
    engine = session.engine
    rows: Rows = {}
    plain_eval = engine.eval

    def recording_eval(tokens: Tokens, *, rows: int) -> npt.NDArray[np.float32]:
        first = engine.n_past + len(tokens) - rows + 1
        logits = plain_eval(tokens, rows=rows)
        kept.update({first + i: logits[i].copy() for i in range(rows)})
        return logits

    kept = rows
    engine.eval = recording_eval  # type: ignore[method-assign]
    reply = session.send(prompt, params=SamplingParams(temperature=0, max_tokens=n_tokens))
    tokens = np.array(reply.token_ids, np.int32)
    return Run(tokens, reply.stats.prompt_tokens, rows, reply.stats)


def compare(plain: Run, copied: Run) -> dict[str, object]:
    """Whether two answers are the same, and what the first difference looks like."""
    same = common_prefix(plain.tokens, copied.tokens)
    result: dict[str, object] = {
        "tokens": len(plain.tokens),
        "plain_steps": plain.stats.verify_steps,
        "copy_steps": copied.stats.verify_steps,
        "copied_tokens": copied.stats.accepted_tokens,
        "identical": bool(np.array_equal(plain.tokens, copied.tokens)),
    }
    if not result["identical"]:
        alone, batched = (run.rows[run.n_prompt + same] for run in (plain, copied))
        second, first = np.partition(alone, -2)[-2:]
        result["at_token"] = same
        result["margin"] = float(first - second)
        result["rounding"] = float(np.abs(alone - batched).max())
        result["within_rounding"] = bool(first - second <= 2 * np.abs(alone - batched).max())
    return result


def main() -> None:
    """Parse the command line and print one JSON line a prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--data", type=Path, default=os.environ.get("COPYSPEC_BENCH_DATA"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument(
        "--alike", action="store_true", help="no flash attention, at least two rows a batch"
    )
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("pass --data or set COPYSPEC_BENCH_DATA")
    settings = Settings(
        n_ctx=4096,
        n_threads=arguments.threads,
        flash_attn="off" if arguments.alike else "auto",
    )
    min_rows = 2 if arguments.alike else 1
    with Model.load(arguments.model, settings) as model:
        for name, prompt in prompts(Path(arguments.data)):
            runs = []
            for copy in (False, True):
                with model.session(copy=copy, min_rows=min_rows) as session:
                    runs.append(answer(session, prompt, arguments.tokens))
            print(json.dumps({"prompt": name, **compare(*runs)}), flush=True)


if __name__ == "__main__":
    main()
