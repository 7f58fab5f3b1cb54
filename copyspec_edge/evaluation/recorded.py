"""The ten recorded tasks, read from a data folder. The data is not part of the package.

Sources, each in the file named here: MT-Bench (lm-sys/FastChat) and MT-Redundant (CopySpec, arXiv
2502.08923), answered by Qwen2.5-7B-Instruct in the CopySpec authors' experiments; their GSM8K
self-correction conversations; EditEval (InstructCoder), HumanEvalPack (OctoPack), search/replace
edits of aider's repository and commits of the Python enhancement proposals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.evaluation.traces import MAX_EDIT_CHARS, Trace, chat_trace, edit_trace, spread

_Loader = Callable[[Path], list[Trace]]
_END_OF_TURN = "<|im_end|>"
_SOLVE = "Solve this problem with a short Python program that prints the answer."
_CHECK = "Check the program step by step. Write it again and say whether it is correct."
_FINAL = "Now write the final program, with all corrections."


def recorded(data: Path, tasks: Sequence[str], per_task: int) -> list[Trace]:
    """The recorded traces of these tasks, in this order, at most `per_task` of each.

    A turn after the first has the recorded earlier answers before it. Edits with more than
    MAX_EDIT_CHARS before and after are left out.

    Raises:
        InvalidInputError: an unknown task, or the folder lacks a file or has another layout.
    """
    unknown = [task for task in tasks if task not in RECORDED]
    if unknown:
        raise InvalidInputError(f"no task {unknown[0]!r}; there are {', '.join(RECORDED)}")
    try:
        return [trace for task in tasks for trace in spread(RECORDED[task](data), per_task)]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidInputError(
            f"{data} is not the benchmark data: {error!r}; "
            "point --data or COPYSPEC_BENCH_DATA to the folder with replay/ and edit/"
        ) from error


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _bench(task: str, turn: int, questions: str, answers: str) -> _Loader:
    """One turn of FastChat's two-turn conversations."""

    def load(data: Path) -> list[Trace]:
        asked = {q["question_id"]: q["turns"] for q in _lines(data / questions)}
        traces = []
        for line in _lines(data / "replay" / answers):
            question, answer = asked[line["question_id"]], line["choices"][0]["turns"]
            before = [question[0]] if turn == 1 else [question[0], answer[0], question[1]]
            traces.append(chat_trace(task, before, answer[turn - 1]))
        return traces

    return load


def _self_correction(task: str, turn: int) -> _Loader:
    """One round of: solve, criticize, solve again."""

    def load(data: Path) -> list[Trace]:
        path = data / "replay" / "gsm_selfcorrect_3round_104.json"
        traces = []
        for item in json.loads(path.read_text(encoding="utf-8")):
            names = ("round_1_code", "round_2_critique", "round_3_code")
            code, critique, final = (item[name].removesuffix(_END_OF_TURN) for name in names)
            turns = [f"{_SOLVE}\n\n{item['question']}", code, _CHECK, critique, _FINAL, final]
            traces.append(chat_trace(task, turns[: 2 * turn - 1], turns[2 * turn - 1]))
        return traces

    return load


def _edits(task: str, name: str) -> _Loader:
    """The text before an edit, answered with the text after it."""

    def load(data: Path) -> list[Trace]:
        return [
            edit_trace(task, edit["instruction"], edit["before"], edit["after"])
            for edit in _lines(data / "edit" / name)
            if len(edit["before"]) + len(edit["after"]) <= MAX_EDIT_CHARS
        ]

    return load


_QUESTIONS = "mt_bench_question.jsonl"
_ANSWERS = "Qwen2.5-7B-Chat-experiments-large-1.jsonl"
_REDUNDANT_QUESTIONS = "mt_redundant_question.jsonl"
_REDUNDANT_ANSWERS = "Qwen2.5-7B-Chat-large-redundant-1.jsonl"

RECORDED: dict[str, _Loader] = {
    "mt-bench-1": _bench("mt-bench-1", 1, _QUESTIONS, _ANSWERS),
    "mt-bench-2": _bench("mt-bench-2", 2, _QUESTIONS, _ANSWERS),
    "mt-redundant-2": _bench("mt-redundant-2", 2, _REDUNDANT_QUESTIONS, _REDUNDANT_ANSWERS),
    "gsm8k-1": _self_correction("gsm8k-1", 1),
    "gsm8k-2": _self_correction("gsm8k-2", 2),
    "gsm8k-3": _self_correction("gsm8k-3", 3),
    "code-fix": _edits("code-fix", "humanevalfix_py_js_go.jsonl"),
    "code-edit": _edits("code-edit", "editeval.jsonl"),
    "search-replace": _edits("search-replace", "aider_search_replace.jsonl"),
    "prose-edit": _edits("prose-edit", "peps_prose.jsonl"),
}
