from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import RunPython

from copyspec_edge import InvalidInputError, Model, Settings
from copyspec_edge.arrays import Tokens
from copyspec_edge.cli import main
from copyspec_edge.exactness.outcomes import Comparison, summarize
from copyspec_edge.exactness.verification import ForcedDrafter, verify_copying
from copyspec_edge.exactness.verify_prompts import built_in_prompts, prompts_of

PROMPT = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], np.int32)


@pytest.fixture(scope="module")
def tiny(tiny_path: Path, extra_bufts: bool) -> Iterator[Model]:
    settings = Settings(n_threads=1, calibrate=False, use_extra_bufts=extra_bufts, exact=True)
    with Model.load(tiny_path, settings) as model:
        yield model


@pytest.mark.real
def test_what_is_exact_is_found_identical(tiny: Model) -> None:
    found = list(verify_copying(tiny, [PROMPT, PROMPT[:1]], max_tokens=40))
    assert [(c.prompt, c.drafts) for c in found] == [
        (0, "copied"), (0, "forced"), (1, "copied"), (1, "forced")
    ]  # fmt: skip
    assert summarize(found) == {
        "identical": True,
        "tokens_compared": 160,
        "rows_differing": 0,
        "max_logit_difference": 0.0,
        "deepest": 52,
        "first_difference": None,
    }
    forced = [c for c in found if c.drafts == "forced"]
    assert all(0 < c.accepted < c.drafted for c in forced)


@pytest.mark.real
def test_a_prompt_that_leaves_no_room_is_refused(tiny: Model) -> None:
    for prompt in (np.zeros(tiny.n_ctx, np.int32), PROMPT[:0]):
        with pytest.raises(InvalidInputError, match="prompt 1 has"):
            list(verify_copying(tiny, [prompt], max_tokens=4))


def test_forced_drafts_are_right_for_the_most_part_and_of_all_lengths() -> None:
    known: Tokens = np.arange(1000, dtype=np.int32)
    drafter = ForcedDrafter(known, 1000)
    drafts = [drafter.draft(known[:n], 63).tokens for n in range(1, 900)]
    assert {len(draft) for draft in drafts} == set(range(1, 64))
    right = np.concatenate([d == known[n : n + len(d)] for n, d in enumerate(drafts, start=1)])
    assert 0.9 < right.mean() < 0.94
    assert len(drafter.draft(known, 0)) == 0
    assert len(drafter.draft(known, 5)) <= 5


def test_prompts_are_read_from_a_file(tmp_path: Path) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text("First one\n\n  {second}  \n", encoding="utf-8")
    messages = [trace.messages for trace in prompts_of(text)]
    assert messages == [
        ({"role": "user", "content": "First one"},),
        ({"role": "user", "content": "{second}"},),
    ]
    lines = tmp_path / "prompts.jsonl"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines.write_text(json.dumps({"prompt": "First one"}) + "\n" + json.dumps({"messages": chat}))
    assert [trace.messages for trace in prompts_of(lines)] == [messages[0], tuple(chat)]
    assert len(built_in_prompts()) >= 4


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b" \n\n", "has no prompts"),
        ("a.txt", b"caf\xe9", "cannot read"),
        ("a.jsonl", b"hello", "line 1"),
        ("a.jsonl", b'{"prompt": "a"}\n[1]', "line 2: not a JSON object"),
        ("a.jsonl", b'{"prompt": ""}', "line 1: `prompt` must be text"),
        ("a.jsonl", b'{"prompt": "a", "messages": []}', "either"),
        ("a.jsonl", b"[" * 100_000, "line 1"),
        ("missing/b.txt", None, "cannot read"),
    ],
)
def test_files_that_are_no_prompts_are_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        prompts_of(path)


def test_the_command_tells_the_threads_that_ran(
    spelling_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Comparison(
        prompt=0, drafts="copied", depth=9, n_threads=3, n_threads_batch=4, tokens_compared=1,
        drafted=0, accepted=0, rows_differing=0, max_logit_difference=0.0, difference=None,
    )  # fmt: skip
    monkeypatch.setattr("copyspec_edge.cli.verify.verify_copying", lambda *_, **__: iter([ran]))
    monkeypatch.setattr(logging.getLogger("copyspec_edge.llama_cpp"), "propagate", True)
    assert main(["verify", "-m", str(spelling_path), "--threads", "1", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["n_threads"], settings["n_threads_batch"]) == (3, 4)


@pytest.mark.real
def test_the_command_compares_and_prints(
    cli: RunPython, smollm2_path: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Repeat: one two three one two three one two three\n")
    common = ("verify", "-m", str(smollm2_path), "--threads", "1", "--ctx", "64")
    options = ("--max-tokens", "10", "--prompts", str(prompts))
    done = cli(*common, *options, "--exact", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["identical"], result["first_difference"]) == (True, None)
    assert result["tokens_compared"] == sum(a["tokens_compared"] for a in result["answers"]) > 5
    assert result["max_logit_difference"] == 0
    assert result["settings"]["certificate"]["reason"] == ""
    done = cli(*common, *options)
    assert done.returncode == 0, done.stderr
    assert "rows differing" in done.stdout
    assert "With --exact nothing may differ" in done.stdout
    done = cli(*common, "--prompts", str(tmp_path / "missing.txt"))
    assert done.returncode == 2
    assert "cannot read" in done.stderr
