from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from fake_engine import FakeEngine, TinyLanguage
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_baselines import (
    Reference,
    SlowMapK,
    SlowMod,
    agreement,
    first_occurrence,
    ngram_cache,
    ngram_simple,
    prompt_lookup,
)

from bench.replay import Bench, report
from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.chat.template import Message
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.drafter import MAX_DRAFT, Draft, Drafter, NoDrafter
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.evaluation.baseline_choice import BEST, chosen_baselines, parse_names
from copyspec_edge.evaluation.baselines import (
    BASELINES,
    PROMPT_LOOKUPS,
    FirstOccurrence,
    NgramSimple,
    PromptLookup,
)
from copyspec_edge.evaluation.built_in import built_in
from copyspec_edge.evaluation.git_traces import from_git
from copyspec_edge.evaluation.live import Contender, Run, prefill_speed, run_traces
from copyspec_edge.evaluation.ngram_cache import NgramCache
from copyspec_edge.evaluation.ngram_map_k import NgramMapK
from copyspec_edge.evaluation.ngram_mod import NgramMod
from copyspec_edge.evaluation.oracle import least_time, longest_copies, oracle_speedups
from copyspec_edge.evaluation.recorded import RECORDED, recorded
from copyspec_edge.evaluation.replay import MAX_TOKENS, geometric_mean, replay, replay_all
from copyspec_edge.evaluation.sources import Sources
from copyspec_edge.evaluation.traces import (
    MAX_EDIT_CHARS,
    TokenTrace,
    Trace,
    chat_trace,
    from_jsonl,
    tokenized,
)
from copyspec_edge.tuning.cost import CostCurve
from copyspec_edge.tuning.curves import GPU_CURVE

DATA = os.environ.get("COPYSPEC_BENCH_DATA")
NO_DATA = "COPYSPEC_BENCH_DATA is unset: the recorded data is not part of the project"


# Traces


class Letters:
    """A tokenizer of one token a character."""

    def __init__(self, *, can_chat: bool) -> None:
        self.can_chat = can_chat

    def tokenize(self, text: str, *, add_special: bool = True) -> Tokens:
        return as_tokens([1] * add_special + [ord(c) for c in text])

    def tokenize_chat(self, messages: Sequence[Message]) -> Tokens:
        return self.tokenize("".join(f"<{m['role']}>{m['content']}" for m in messages))


def write(path: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_traces_from_json_lines(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    path = write(
        tmp_path / "traces.jsonl",
        {"task": "chat", "messages": said, "output": "Hello\u2028there"},
        "",
        {"task": "text", "prompt": "One, two", "output": ", three"},
    )
    chat, text = from_jsonl(path)
    assert chat.messages == tuple(said)
    assert (chat.task, chat.prompt, chat.output) == ("chat", None, "Hello\u2028there")
    assert text == Trace("text", None, "One, two", ", three")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting"),
        ([1], "not a JSON object"),
        ({"prompt": "a", "output": "b"}, "`task`"),
        ({"task": 3, "prompt": "a", "output": "b"}, "`task`"),
        ({"task": "t", "prompt": "a"}, "`output`"),
        ({"task": "t", "prompt": "a", "output": ""}, "`output`"),
        ({"task": "t", "output": "b"}, "either"),
        ({"task": "t", "prompt": "a", "messages": [], "output": "b"}, "either"),
        ({"task": "t", "messages": [], "output": "b"}, "list and not empty"),
        ({"task": "t", "messages": {"role": "user"}, "output": "b"}, "list and not empty"),
        ({"task": "t", "messages": ["hi"], "output": "b"}, "object with"),
        ({"task": "t", "messages": [{"role": "user"}], "output": "b"}, "`content`"),
    ],
)
def test_names_the_line_that_is_no_trace(tmp_path: Path, line: object, reason: str) -> None:
    good = {"task": "t", "prompt": "a", "output": "b"}
    path = write(tmp_path / "traces.jsonl", good, "", line)
    with pytest.raises(InvalidInputError, match=rf"traces\.jsonl, line 3: .*{reason}"):
        from_jsonl(path)


def test_refuses_files_that_hold_no_traces(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read"):
        from_jsonl(tmp_path / "missing.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="cannot read"):
        from_jsonl(tmp_path / "binary.jsonl")
    with pytest.raises(InvalidInputError, match="no traces"):
        from_jsonl(write(tmp_path / "empty.jsonl", ""))


def test_built_in_traces_are_the_same_each_time() -> None:
    traces = built_in(4)
    assert traces == built_in(4)
    tasks = [trace.task for trace in traces]
    assert tasks == [t for t in ("rename", "delete", "quote", "annotate", "list") for _ in range(4)]
    assert all(trace.messages and trace.output for trace in traces)


def test_tokenizes_through_the_chat_template_where_there_is_one() -> None:
    traces = [chat_trace("t", ["ab", "c", "d"], "x" * 8), Trace("t", None, "ab", "x" * 8)]
    chat, text = tokenized(traces, Letters(can_chat=True))
    assert "".join(map(chr, chat.prompt[1:])) == "<user>ab<assistant>c<user>d"
    assert list(chat.output) == [ord("x")] * 8
    assert list(text.prompt) == [1, ord("a"), ord("b")]
    plain = tokenized(traces[:1], Letters(can_chat=False))[0]
    assert "".join(map(chr, plain.prompt[1:])) == "ab\n\nc\n\nd\n\n"


def test_leaves_out_what_is_too_long_or_too_short() -> None:
    traces = [Trace("t", None, "a" * 9, "b" * n) for n in (7, 8, 90, 91)]
    kept = tokenized(traces, Letters(can_chat=True), n_ctx=100)
    assert [len(trace.output) for trace in kept] == [8, 90]


def git(repo: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(repo), *identity, *arguments], check=True, capture_output=True)


def commit(repo: Path, subject: str, **files: bytes | None) -> None:
    for name, content in files.items():
        if content is None:
            (repo / name).unlink()
        else:
            (repo / name).write_bytes(content)
    git(repo, "add", "-A")
    git(repo, "commit", "-m", subject)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-b", "main")
    commit(tmp_path, "start", a=b"one\n", b=b"\0\1", ü=b"u\n", gone=b"x\n", big=b"y\n")
    commit(tmp_path, "Say two", a=b"two\n", b=b"\0\2", new=b"new\n", gone=None)
    commit(tmp_path, "Umlaut & big", ü="ü\n".encode(), big=b"z" * MAX_EDIT_CHARS)
    commit(tmp_path, "Latin", ü=b"\xfc\n")
    return tmp_path


def test_git_edits_become_traces(repo: Path) -> None:
    umlaut, two = from_git(repo, 10)
    assert (umlaut.task, umlaut.output) == ("git", "ü\n")
    assert two.messages is not None
    content = two.messages[0]["content"]
    assert (content[:7], content[-4:], two.output) == ("Say two", "one\n", "two\n")
    assert from_git(repo, 1) == [umlaut]


def test_says_why_a_repository_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InvalidInputError, match="not a git repository"):
        from_git(tmp_path, 3)
    git(tmp_path, "init")
    commit(tmp_path, "start", a=b"one\n")
    with pytest.raises(InvalidInputError, match="no text file"):
        from_git(tmp_path, 3)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidInputError, match="git is not installed"):
        from_git(tmp_path, 3)


@pytest.mark.skipif(DATA is None, reason=NO_DATA)
def test_reads_the_recorded_tasks() -> None:
    traces = recorded(Path(DATA or ""), list(RECORDED), 5)
    assert [trace.task for trace in traces] == [task for task in RECORDED for _ in range(5)]
    for trace in traces:
        assert trace.messages is not None
        assert len(trace.messages) == {"2": 3, "3": 5}.get(trace.task[-1], 1)
        assert trace.output
        assert "<|im_end|>" not in trace.output


def test_refuses_unknown_tasks_and_other_folders(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no task 'chess'"):
        recorded(tmp_path, ["chess"], 5)
    with pytest.raises(InvalidInputError, match="not the benchmark data"):
        recorded(tmp_path, ["mt-bench-1"], 5)
    with pytest.raises(InvalidInputError, match="no task 'chess'"):
        Sources(tasks=["chess"]).load()


def test_chooses_among_sources(tmp_path: Path) -> None:
    lines = [{"task": t, "prompt": "p", "output": str(i)} for t in "ab" for i in range(4)]
    path = write(tmp_path / "traces.jsonl", *lines)
    found = Sources(trace=path, data=tmp_path, tasks=["b"], per_task=2).load()
    assert [(trace.task, trace.output) for trace in found] == [("b", "0"), ("b", "2")]
    assert {trace.task for trace in Sources(tasks=["quote"], per_task=1).load()} == {"quote"}


# Baselines


PAIRS: dict[str, tuple[Callable[[], Drafter], Callable[[], Reference]]] = {
    "paper": (lambda: FirstOccurrence(3, 10), lambda: first_occurrence(3, 10)),
    "lookup": (lambda: PromptLookup(2, 10), lambda: prompt_lookup(2, 10)),
    "lookup with ends": (
        lambda: PromptLookup(3, 5, frozenset({1})),
        lambda: prompt_lookup(3, 5, [1]),
    ),
    "simple": (lambda: NgramSimple(3, 7), lambda: ngram_simple(3, 7)),
    "map-k": (lambda: NgramMapK(3, 7), lambda: SlowMapK(3, 7)),
    "mod": (lambda: NgramMod(4, 3, 9), lambda: SlowMod(4, 3, 9)),
    "cache": (lambda: NgramCache(8), lambda: ngram_cache(8)),
}


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Passages from a small alphabet, some of them repeated with changes."""
    alphabet = draw(st.sampled_from([2, 4, 30]))
    passage = st.lists(st.integers(0, alphabet - 1), min_size=1, max_size=40)
    passages = draw(st.lists(passage, min_size=1, max_size=4))
    order = draw(st.lists(st.integers(0, len(passages) - 1), min_size=2, max_size=8))
    return [token for index in order for token in passages[index]]


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=60, deadline=None)
@given(tokens=texts(), share=st.floats(0, 1))
def test_baseline_drafts_what_its_description_says(
    name: str, tokens: list[int], share: float
) -> None:
    make, make_reference = PAIRS[name]
    drafter, reference = make(), make_reference()
    array = as_tokens(tokens)
    begin = int(share * (len(tokens) - 1))
    position = begin + 1
    while position < len(tokens):
        draft = drafter.draft(array[:position], MAX_DRAFT)
        assert list(draft.tokens) == reference(tokens[:position], begin)
        assert np.all(draft.accept == 1)
        position += agreement(draft.tokens.tolist(), tokens[position:]) + 1


@pytest.mark.parametrize("name", BASELINES)
def test_baseline_keeps_within_its_limit_and_starts_anew(name: str) -> None:
    loop = as_tokens([*range(3, 103)] * 4)
    drafter = BASELINES[name](len(loop), frozenset({2}))
    first = drafter.draft(loop, MAX_DRAFT)
    assert 8 <= len(first) <= MAX_DRAFT
    drafter.reset()
    assert len(drafter.draft(loop, 4)) == 4
    drafter.reset()
    assert len(drafter.draft(loop, 0)) == 0
    drafter.reset()
    assert len(drafter.draft(loop[:50] + 1000, MAX_DRAFT)) == 0


def test_lengths_of_the_published_baselines() -> None:
    loop = as_tokens([*range(100)] * 4)
    lengths = {
        name: len(make(512, frozenset()).draft(loop, 64)) for name, make in BASELINES.items()
    }
    tens = dict.fromkeys(("copyspec-3", "copyspec-5", "llama-cpp-python", "transformers"), 10)
    maps = dict.fromkeys(("ngram-simple", "ngram-map-k"), 48)
    assert lengths == {**tens, **maps, "ngram-mod": 64, "ngram-cache": 8}


# Replay and oracle


class Fixed:
    """Drafts the same tokens at every step, and notes its limits."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.limits: list[int] = []

    def draft(self, history: Tokens, limit: int) -> Draft:
        self.limits.append(limit)
        kept = as_tokens(self.tokens)[:limit]
        return Draft(kept, np.full(len(kept), 0.5, np.float32), "fixed")

    def reset(self) -> None:
        pass


def token_trace(output: list[int], *, task: str = "t", prompt: Sequence[int] = (9,)) -> TokenTrace:
    return TokenTrace(task, as_tokens(prompt), as_tokens(output))


def test_counts_the_steps_of_a_trace_made_by_hand() -> None:
    # Behind the prefill's 0: (1 2 | 7), (| 1 by itself: 1 agrees, 2 does not), (1 2 3 | end).
    trace = token_trace([0, 1, 2, 7, 1, 5, 1, 2, 3])
    tally = replay(Fixed([1, 2, 3]), trace, None)
    assert (tally.tokens, tally.steps, tally.drafted, tally.accepted) == (8, 3, 9, 2 + 1 + 3)
    assert list(np.flatnonzero(tally.batches)) == [4]
    curve = CostCurve((1, 4, 64), (2.0, 4.0, 64.0))
    assert tally.speedup(curve) == pytest.approx(8 * 2 / (3 * 4))


def test_trims_where_a_curve_is_given() -> None:
    dear = CostCurve((1, 64), (1.0, 64.0))
    trace = token_trace([0, 1, 2, 7, 1, 5])
    tally = replay(Fixed([1, 2, 3]), trace, dear)
    assert (tally.steps, tally.drafted, tally.accepted) == (5, 0, 0)
    assert tally.speedup(dear) == 1


def test_room_is_the_token_limit_not_the_end_of_the_recording() -> None:
    drafter = Fixed([])
    replay(drafter, token_trace([0] * 20), None)
    assert drafter.limits == [MAX_DRAFT] * 19
    drafter = Fixed([])
    assert replay(drafter, token_trace([0] * (MAX_TOKENS + 50)), None).tokens == MAX_TOKENS - 1
    assert drafter.limits[-3:] == [2, 1, 0]


def test_tallies_by_task_and_carries_where_asked() -> None:
    traces = [token_trace([0] * 9, task=task) for task in "aba"]
    made: list[Drafter] = []

    def make() -> Drafter:
        made.append(NoDrafter())
        return made[-1]

    tallies = replay_all(make, traces, None, carried=True)
    assert len(made) == 1
    assert {task: tally.tokens for task, tally in tallies.items()} == {"a": 16, "b": 8}
    replay_all(make, traces, None, carried=False)
    assert len(made) == 1 + len(traces)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def slow_copies(tokens: list[int], start: int, gamma: int, longest: int) -> list[int]:
    found = []
    for i in range(start, len(tokens)):
        sources = [j for j in range(gamma, i) if tokens[j - gamma : j] == tokens[i - gamma : i]]
        lengths = [agreement(tokens[j:], tokens[i:]) for j in sources]
        found.append(min(max(lengths, default=0), longest))
    return found


def slow_time(copies: list[int], cost: Sequence[float], at: int = 0) -> float:
    if at >= len(copies):
        return 0.0
    return min(cost[k + 1] + slow_time(copies, cost, at + k + 1) for k in range(copies[at] + 1))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=5, max_size=14), st.integers(1, 3), st.integers(2, 6))
def test_oracle_is_the_least_of_all_ways(tokens: list[int], gamma: int, longest: int) -> None:
    cost = np.array([0, 1, 1.5, 1.2, 2.2, 2.0, 4, 4, 4], np.float32)
    copies = longest_copies(as_tokens(tokens), 3, gamma, longest)
    assert list(copies) == slow_copies(tokens, 3, gamma, longest)
    slow = slow_time(copies.tolist(), cost.tolist())
    assert least_time(copies, cost) == pytest.approx(slow)


def test_reports_ours_the_oracle_and_the_baselines() -> None:
    traces = [
        token_trace([*range(20, 60)] * 3, task="copy", prompt=[*range(20, 60)]),
        token_trace([*range(100, 200)], task="new"),
    ]
    oracle = oracle_speedups(traces, GPU_CURVE)
    assert oracle["copy"] > 10
    assert oracle["new"] == pytest.approx(1.0)
    bench = Bench(traces, frozenset(), GPU_CURVE, carried=False)
    results = report(bench, ["ngram-simple"])
    for task, row in results["tasks"].items():
        assert row["predicted_speedup"] <= row["oracle_speedup"] == oracle[task]
    ours = replay_all(lambda: CopyDrafter(512, frozenset()), traces, GPU_CURVE, carried=False)
    assert results["tasks"]["copy"]["steps"] == ours["copy"].steps
    assert results["baselines"]["ngram-simple"]["tasks"]["new"] == 1


def test_the_best_constants_of_a_curve_are_the_fastest_of_their_families() -> None:
    text = list(range(10, 60))
    trace = TokenTrace("copy", as_tokens([*text, 1, 2]), as_tokens([1, *text, 3, *text]))
    flat, steep = (CostCurve((1, 64), (1.0, last)) for last in (1.0, 64.0))

    def speedup(name: str, curve: CostCurve) -> float:
        return replay(PROMPT_LOOKUPS[name](200, frozenset()), trace, None).speedup(curve)

    for curve, is_long in ((flat, True), (steep, False)):
        chosen = chosen_baselines([BEST], [trace], curve, frozenset(), carried=False)
        best = next(iter(chosen)).removeprefix("best ")
        assert speedup(best, curve) == max(speedup(name, curve) for name in PROMPT_LOOKUPS)
        assert best.endswith("/31") == is_long


@pytest.mark.parametrize(
    ("text", "names"),
    [("none", []), ("all", list(BASELINES)), ("best,ngram-mod", ["best", "ngram-mod"])],
)
def test_baselines_are_chosen_by_name(text: str, names: list[str]) -> None:
    assert parse_names(text) == names


# Live


class Growing:
    """Drafts one token more at every step, and so shows how many steps it has learned from."""

    def __init__(self) -> None:
        self.n_steps = 0

    def draft(self, history: Tokens, limit: int) -> Draft:
        self.n_steps += 1
        tokens = np.full(min(self.n_steps, limit), 7, np.int32)
        return Draft(tokens, np.ones(len(tokens), np.float32), "growing")

    def reset(self) -> None:
        pass


class Dearer(CostCurve):
    """Costs that change with every step, to be told apart by the first of them."""

    def observe(self, rows: int, seconds: float, *, depth: int) -> None:
        object.__setattr__(self, "seconds", (self.seconds[0] + 1, *self.seconds[1:]))


def live(repetitions: int) -> tuple[list[Run], list[Contender]]:
    engine = FakeEngine(TinyLanguage(50), n_ctx=64)
    traces = [token_trace([1, 2, 3, 4, 5], prompt=[8, 9]), token_trace([6, 5, 4], prompt=[8])]
    field = [Contender(name, Growing(), Dearer((1, 64), (1.0, 1.0))) for name in ("a", "b")]
    runs = run_traces(
        engine,
        traces,
        field,
        eog_tokens=frozenset({0}),
        max_tokens=16,
        repetitions=repetitions,
        free=False,
    )
    return list(runs), field


def drafted(run: Run) -> list[list[int]]:
    return [[step.drafted for step in steps] for steps in run.repetitions]


def test_every_repetition_starts_from_what_was_learned_before_the_trace() -> None:
    runs, field = live(repetitions=3)
    assert [run.contender for run in runs] == ["a", "b", "a", "b"]
    for run in runs[:2]:
        assert drafted(run) == [[1, 2, 3, 4, 5, 6]] * 3
    for run in runs[2:]:
        assert drafted(run) == [[7, 8, 9, 10]] * 3
    for contender in field:
        assert contender.cost.curve.seconds[0] == 1 + 10


def test_repetitions_teach_no_more_than_one() -> None:
    (once, learned_once), (thrice, learned_thrice) = live(1), live(3)
    assert [drafted(run)[0] for run in once] == [drafted(run)[-1] for run in thrice]
    for one, other in zip(learned_once, learned_thrice, strict=True):
        assert one.cost.curve.seconds == other.cost.curve.seconds


def test_prompts_are_timed_on_the_tokens_of_the_traces() -> None:
    engine = FakeEngine(TinyLanguage(50), n_ctx=20, n_batch=16)
    traces = [token_trace([1], prompt=range(1, 9)), token_trace([1], prompt=range(11, 40))]
    seen: list[int] = []
    engine.on_chunk = lambda _: seen.extend(engine.tokens[len(seen) :])
    assert prefill_speed(engine, traces) > 0
    assert engine.batch_sizes == [20]
    assert engine.n_past == 0
    assert seen == [*range(1, 9), *range(11, 19)]
