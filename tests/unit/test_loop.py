from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import RunPython
from fake_engine import FakeEngine, Fault, RecitingLanguage, TinyLanguage
from fake_vocab import bare_vocab
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scripted_drafter import FLAT, KINDS, Kind, ScriptedDrafter

from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.decoding.history import History
from copyspec_edge.decoding.loop import decode
from copyspec_edge.decoding.stats import Step
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.drafter import Drafter, NoDrafter
from copyspec_edge.errors import CancelledError, EngineError
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import Sampler, make_sampler
from copyspec_edge.tuning.cost import CostCurve
from copyspec_edge.tuning.curves import CPU_CURVE

GREEDY = SamplingParams(temperature=0)
many = settings(max_examples=250, deadline=None)
few = settings(max_examples=120, deadline=None)


@dataclass(frozen=True)
class Case:
    """One text to continue, and everything that must not change how it goes on."""

    language: TinyLanguage
    prompt: list[int]
    eog: frozenset[int]
    params: SamplingParams = GREEDY
    max_tokens: int = 1000
    n_ctx: int = 64
    max_rows: int = 16
    n_batch: int = 32
    min_rows: int = 1
    cost: CostCurve = FLAT

    def engine(self, **options: Any) -> FakeEngine:
        shape = {
            "n_ctx": self.n_ctx,
            "min_rows": self.min_rows,
            "max_rows": self.max_rows,
            "n_batch": self.n_batch,
        }
        return FakeEngine(self.language, **{**shape, **options})

    def copy_drafter(self) -> CopyDrafter:
        return CopyDrafter(self.n_ctx, self.eog)

    @cached_property
    def plain(self) -> Run:
        return Run(replace(self, min_rows=1), NoDrafter()).finish()

    def scripted(self, kind: Kind, seed: int = 0) -> ScriptedDrafter:
        return ScriptedDrafter(
            kind,
            self.plain.history.tokens,
            n_vocab=self.language.n_vocab,
            eog=min(self.eog),
            seed=seed,
        )


@dataclass
class Run:
    """Decodes a case and checks the invariants after every step."""

    case: Case
    drafter: Drafter
    engine: FakeEngine = field(default=None)  # type: ignore[assignment]
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = self.engine or self.case.engine()
        self.history = History(self.case.n_ctx)
        self.history.extend(self.case.prompt)
        self.sampler: Sampler = make_sampler(
            self.case.params,
            bare_vocab(self.case.language.n_vocab),
            self.history.tokens,
            self.case.n_ctx,
        )

    @property
    def generated(self) -> list[int]:
        return list(map(int, self.history.tokens[len(self.case.prompt) :]))

    def check(self) -> None:
        held = self.engine.tokens
        assert self.engine.n_past == len(held) <= len(self.history) - 1
        assert held == self.history.tokens[: len(held)].tolist()

    def finish(self, *, most_steps: int | None = None) -> Run:
        """Go on from where it is, up to the end or for some steps."""
        stepping = decode(
            self.engine,
            self.history,
            drafter=self.drafter,
            sampler=self.sampler,
            cost=self.case.cost,
            eog=self.case.eog,
            max_tokens=self.case.max_tokens - len(self.generated),
        )
        try:
            for n_steps, step in enumerate(stepping, start=1):
                self.steps.append(step)
                self.check()
                if n_steps == most_steps:
                    break
        finally:
            self.check()
        return self


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n_vocab = draw(st.integers(4, 24))
    eog = draw(st.frozensets(st.integers(0, n_vocab - 1), min_size=1, max_size=2))
    order, seed = draw(st.integers(1, 3)), draw(st.integers(0, 10_000))
    max_rows = draw(st.integers(2, 20))
    n_ctx = draw(st.integers(2, 64))
    n_prompt = draw(st.integers(1, n_ctx - 1))
    prompt = np.random.default_rng(seed).integers(0, draw(st.integers(1, n_vocab)), n_prompt)
    sampled = SamplingParams(temperature=draw(st.sampled_from([0, 0.4, 1.0])), seed=seed)
    return Case(
        TinyLanguage(n_vocab, order=order, seed=seed, unlikely=eog),
        prompt.tolist(),
        eog,
        params=sampled,
        max_tokens=draw(st.sampled_from([1, 2, 3, 7, 20, 1000])),
        n_ctx=n_ctx,
        max_rows=max_rows,
        n_batch=max_rows + draw(st.integers(0, 12)),
        min_rows=draw(st.integers(1, 2)),
        cost=draw(st.sampled_from([FLAT, CPU_CURVE])),
    )


kinds = st.sampled_from(KINDS)
seeds = st.integers(0, 1000)


@many
@given(cases())
def test_copying_changes_nothing_of_the_output(case: Case) -> None:
    assert Run(case, case.copy_drafter()).finish().generated == case.plain.generated


@settings(max_examples=500, deadline=None)
@given(cases(), kinds, seeds)
def test_no_draft_changes_anything_of_the_output(case: Case, kind: Kind, seed: int) -> None:
    run = Run(case, case.scripted(kind, seed)).finish()
    assert run.generated == case.plain.generated


@many
@given(cases(), kinds)
def test_the_output_ends_at_the_first_limit_exactly(case: Case, kind: Kind) -> None:
    generated = Run(case, case.scripted(kind)).finish().generated
    room = min(case.max_tokens, case.n_ctx - len(case.prompt))
    ends = [i for i, token in enumerate(generated, start=1) if token in case.eog]
    assert len(generated) == (ends[0] if ends else room)
    assert len(generated) <= room


@many
@given(cases(), kinds)
def test_counts_of_the_steps_add_up(case: Case, kind: Kind) -> None:
    run = Run(case, case.scripted(kind)).finish()
    assert [token for step in run.steps for token in step.tokens] == run.generated
    accepted = sum(step.accepted for step in run.steps)
    ended_drafted = sum(step.accepted == len(step.tokens) for step in run.steps)
    assert len(run.generated) == len(run.steps) + accepted - ended_drafted
    assert all(step.accepted <= step.drafted < case.max_rows for step in run.steps)
    assert all(step.source == ("scripted" if step.drafted else "none") for step in run.steps)
    assert ended_drafted <= 1


@many
@given(cases(), kinds)
def test_a_draft_never_rides_on_a_prompt(case: Case, kind: Kind) -> None:
    run = Run(case, case.scripted(kind)).finish()
    assert run.steps[0].evaluated == len(case.prompt)
    assert all(step.evaluated == 1 for step in run.steps[1:])
    assert all(step.drafted == 0 for step in run.steps if step.evaluated > 1)


@many
@given(cases())
def test_right_drafts_read_each_token_once_in_the_fewest_steps(case: Case) -> None:
    case = replace(case, min_rows=1, cost=FLAT)
    run = Run(case, case.scripted("right")).finish()
    assert set(run.engine.evaluations.values()) == {1}
    assert len(run.engine.evaluations) >= len(run.history) - 1
    n_later = len(run.generated) - len(run.steps[0].tokens)
    assert len(run.steps) == 1 + -(-n_later // case.max_rows)
    assert all(step.accepted == step.drafted for step in run.steps)


@few
@given(cases())
def test_without_drafts_each_token_is_read_once(case: Case) -> None:
    run = case.plain
    assert run.engine.evaluations == dict.fromkeys(range(len(run.history) - 1), 1)


@many
@given(cases(), kinds, seeds)
def test_an_engine_that_cannot_truncate_gives_the_same_output(
    case: Case, kind: Kind, seed: int
) -> None:
    engine = case.engine(can_truncate=False)
    run = Run(case, case.scripted(kind, seed), engine).finish()
    assert run.generated == case.plain.generated


@many
@given(cases(), kinds, seeds)
def test_an_engine_that_goes_back_to_before_a_draft_gives_the_same_output(
    case: Case, kind: Kind, seed: int
) -> None:
    run = Run(case, case.scripted(kind, seed), case.engine(checkpoints=True)).finish()
    assert run.generated == case.plain.generated
    for before, step in itertools.pairwise(run.steps):
        rejected = before.accepted < before.drafted or case.min_rows > before.drafted + 1
        if before.evaluated == 1 and rejected:
            assert step.evaluated == 1 + len(before.tokens)
            assert step.drafted == 0


@few
@given(cases())
def test_a_step_declines_what_is_not_worth_verifying_and_nothing_else(case: Case) -> None:
    dear = replace(case, cost=CostCurve((1, 2, 64), (1.0, 100.0, 200.0)))
    run = Run(dear, case.scripted("right")).finish()
    later = run.steps[1:]
    assert all(step.drafted == 0 for step in later)
    assert [step.declined for step in later[:-1]] == [True] * len(later[:-1])
    assert not any(step.declined for step in run.steps if step.evaluated > 1)
    assert not any(step.declined for step in case.plain.steps)
    assert not any(step.declined for step in Run(case, case.scripted("right")).finish().steps)


@few
@given(cases(), kinds)
def test_two_rows_at_least_are_read_behind_a_prompt(case: Case, kind: Kind) -> None:
    run = Run(replace(case, min_rows=2), case.scripted(kind)).finish()
    sizes = zip(run.steps, run.engine.batch_sizes, strict=True)
    assert all(size == max(2, step.drafted + 1) for step, size in sizes if step.evaluated == 1)


@few
@given(cases(), kinds)
def test_an_engine_of_one_row_decodes_plainly(case: Case, kind: Kind) -> None:
    run = Run(case, case.scripted(kind), case.engine(max_rows=1)).finish()
    assert run.generated == case.plain.generated
    assert all(step.drafted == 0 for step in run.steps)


@many
@given(cases(), kinds, st.integers(1, 5))
def test_a_closed_generator_leaves_a_state_to_go_on_from(
    case: Case, kind: Kind, most_steps: int
) -> None:
    run = Run(case, case.scripted(kind)).finish(most_steps=most_steps)
    partial = run.generated
    whole = case.plain.generated
    assert partial == whole[: len(partial)]
    if partial[-1] not in case.eog:
        assert run.finish().generated == whole


faults = st.sampled_from(["before", "partly", "after"])


@many
@given(cases(), kinds, st.integers(0, 6), faults, st.booleans())
def test_after_an_engine_error_decoding_goes_on_to_the_same_output(
    case: Case, kind: Kind, fails_at: int, fault: Fault, can_truncate: bool
) -> None:
    run = Run(case, case.scripted(kind), case.engine(can_truncate=can_truncate))
    run.engine.faults[fails_at] = fault
    try:
        run.finish()
        assert len(run.engine.batch_sizes) <= fails_at
    except EngineError:
        run.finish()
    assert run.generated == case.plain.generated


@few
@given(cases(), kinds, st.integers(0, 6))
def test_after_logits_that_are_not_numbers_decoding_goes_on_to_the_same_output(
    case: Case, kind: Kind, fails_at: int
) -> None:
    case = replace(case, params=GREEDY)
    run = Run(case, case.scripted(kind))
    run.engine.faults[fails_at] = "nan"
    try:
        run.finish()
    except EngineError:
        run.finish()
    assert run.generated == case.plain.generated


@few
@given(cases(), kinds, st.integers(0, 12), st.booleans())
def test_a_cancel_in_the_middle_leaves_a_state_to_go_on_from(
    case: Case, kind: Kind, cancel_at: int, can_truncate: bool
) -> None:
    engine = case.engine(can_truncate=can_truncate)
    engine.on_chunk = lambda chunk: engine.cancel() if chunk == cancel_at else None
    run = Run(case, case.scripted(kind), engine)
    try:
        run.finish()
    except CancelledError:
        engine.clear_cancel()
        run.finish()
    assert run.generated == case.plain.generated


def test_a_cancelled_prefill_keeps_the_chunks_it_has_read() -> None:
    language = TinyLanguage(8)
    case = Case(language, [1, 2, 3, 4, 5, 6, 7], frozenset({0}), n_batch=2, max_rows=2)
    run = Run(case, NoDrafter())
    run.engine.on_chunk = lambda chunk: run.engine.cancel() if chunk == 2 else None
    with pytest.raises(CancelledError):
        run.finish()
    assert (run.engine.tokens, run.generated) == ([1, 2, 3, 4], [])


def reciting(script: list[int], n_prompt: int, **options: Any) -> Case:
    """A case that continues the first tokens of `script` with the others."""
    language: Any = RecitingLanguage(16, script)
    return Case(language, script[:n_prompt], frozenset({0}), **options)


def test_an_end_of_generation_inside_a_right_draft_ends_there() -> None:
    script = [1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 1]
    drafter = ScriptedDrafter("right", as_tokens(script), n_vocab=16, eog=0)
    run = Run(reciting(script, 2), drafter).finish()
    assert run.generated == [3, 4, 5, 0]
    (first, second) = run.steps
    assert first.tokens.tolist() == [3]
    assert (second.drafted, second.accepted, second.tokens.tolist()) == (8, 3, [4, 5, 0])
    assert run.engine.tokens == [1, 2, 3, 4, 5]


def test_a_copy_saves_forward_passes() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    run = Run(reciting([*text, 11, *text, 0], 13), CopyDrafter(64, frozenset({0}))).finish()
    assert run.generated == [3, 4, 5, 6, 7, 8, 9, 10, 0]
    assert len(run.steps) == 2


def test_a_full_history_yields_no_step() -> None:
    case = reciting([1, 2, 3, 4], 3, n_ctx=3)
    assert Run(case, NoDrafter()).finish().steps == []


def test_no_tokens_wanted_yields_no_step() -> None:
    case = reciting([1, 2, 3, 4], 3, max_tokens=0)
    run = Run(case, NoDrafter()).finish()
    assert (run.steps, run.engine.batch_sizes) == ([], [])


def test_the_last_place_of_the_context_is_used() -> None:
    case = reciting([1, 2, 3, 4, 5, 6, 7, 8], 3, n_ctx=8)
    run = Run(case, case.scripted("right")).finish()
    assert run.generated == [4, 5, 6, 7, 8]
    assert run.steps[-1].drafted == 3


def test_the_longest_draft_fills_the_rows_the_engine_has() -> None:
    case = reciting([*[1, 2, 3] * 20], 3, max_rows=7)
    run = Run(case, case.scripted("right")).finish()
    assert max(step.drafted for step in run.steps) == 6
    assert run.engine.batch_sizes[1] == 7


def test_a_prompt_that_was_read_but_for_its_last_token_takes_a_draft_at_once() -> None:
    case = reciting([1, 2, 3, 4, 5, 6, 7, 8, 0], 4)
    run = Run(case, case.scripted("right"))
    run.engine._read(run.history.tokens[:3])
    run.finish()
    assert (run.steps[0].evaluated, run.steps[0].drafted) == (1, 5)


def test_times_of_steps_are_taken() -> None:
    case = reciting([1, 2, 3, 4, 0], 2)
    assert all(step.seconds > 0 for step in Run(case, NoDrafter()).finish().steps)


def test_warm_up_compiles_the_kernels_without_a_model(run_python: RunPython) -> None:
    code = (
        "from copyspec_edge.drafting import draft_length, matcher, warm_up\n"
        "kernels = matcher._walk, draft_length.best_length\n"
        "assert not any(k.signatures for k in kernels)\n"
        "warm_up()\n"
        "assert all(k.signatures for k in kernels)"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


def test_cases_cover_what_they_are_meant_to() -> None:
    seen = {"copied": 0, "ended": 0}

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(cases())
    def count(case: Case) -> None:
        assume(case.max_tokens > 3)
        run = Run(replace(case, cost=FLAT), case.copy_drafter()).finish()
        seen["copied"] += any(step.accepted for step in run.steps)
        seen["ended"] += run.generated[-1] in case.eog

    count()
    assert min(seen.values()) > 10


@few
@given(st.integers(1, 40), st.integers(1, 3), st.sampled_from(KINDS), st.integers(0, 1000))
def test_every_forward_pass_has_the_least_rows(
    n_prompt: int, min_rows: int, kind: Kind, seed: int
) -> None:
    prompt = np.random.default_rng(seed).integers(0, 8, n_prompt).tolist()
    case = Case(TinyLanguage(8, seed=seed), prompt, frozenset({7}), min_rows=min_rows)
    run = Run(case, case.scripted(kind))
    asked: list[tuple[int, int]] = []
    plain_eval = run.engine.eval

    def recording_eval(tokens: Tokens, *, rows: int) -> Any:
        asked.append((len(tokens), rows))
        return plain_eval(tokens, rows=rows)

    run.engine.eval = recording_eval  # type: ignore[method-assign]
    run.finish()
    assert run.generated == case.plain.generated
    # In the last place of a context there is room for two rows only.
    assert all(min(n_tokens, rows) >= min(min_rows, 2) for n_tokens, rows in asked)
    assert all(rows >= min_rows for _, rows in asked[:-1])


class Clocked:
    """A world in which only an engine, a sampler and a reader of the steps take time."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch, *, drafts: Kind) -> None:
        self.now = 0.0
        self.observed: list[tuple[int, float, int]] = []
        self.asked: list[int] = []
        self.run = Run(case, case.scripted(drafts))
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr("copyspec_edge.decoding.loop.time", clock)
        self._slow_down(self.run.engine, "eval", 1.0)
        self._slow_down(self.run.engine, "truncate", 0.125)
        for method in ("choose", "accept", "admits"):
            self._slow_down(self.run.sampler, method, 50.0)
        self._slow_down(self.run.drafter, "draft", 30.0)

    def _slow_down(self, part: object, method: str, seconds: float) -> None:
        plain = getattr(part, method)

        def slow(*arguments: Any, **options: Any) -> Any:
            self.now += seconds
            return plain(*arguments, **options)

        setattr(part, method, slow)

    def at(self, depth: int) -> CostCurve:
        self.asked.append(depth)
        return FLAT

    def observe(self, rows: int, seconds: float, *, depth: int) -> None:
        self.observed.append((rows, seconds, depth))

    def steps(self) -> list[Step]:
        taken = []
        case = self.run.case
        for step in decode(
            self.run.engine,
            self.run.history,
            drafter=self.run.drafter,
            sampler=self.run.sampler,
            cost=self,
            eog=case.eog,
            max_tokens=case.max_tokens,
        ):
            taken.append(step)
            self.now += 1000.0
        return taken


@pytest.mark.parametrize("drafts", ["right", "wrong"])
def test_costs_are_told_the_time_of_the_forward_pass_alone(
    monkeypatch: pytest.MonkeyPatch, drafts: Kind
) -> None:
    case = reciting([*range(1, 16)] * 2, 4, n_ctx=30, max_rows=4)
    world = Clocked(case, monkeypatch, drafts=drafts)
    first, *later = world.steps()
    assert first.evaluated > 1
    assert [seconds for _, seconds, _ in world.observed] == [1.0] * len(later)
    assert [rows for rows, _, _ in world.observed] == [step.drafted + 1 for step in later]
    assert all(50.0 < step.seconds < 1000.0 for step in later)


def test_costs_are_asked_and_told_at_the_depth_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Clocked(reciting([*range(1, 16)] * 2, 4, n_ctx=30), monkeypatch, drafts="wrong")
    world.steps()
    assert [depth for _, _, depth in world.observed] == world.asked == list(range(4, 29))
