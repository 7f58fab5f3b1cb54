"""Comparing answers with and without copying, on engines that round as they are told."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine, TinyLanguage

from copyspec_edge.arrays import Row, Tokens, as_tokens
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.drafter import NoDrafter
from copyspec_edge.exactness.certificate import Certificate
from copyspec_edge.exactness.outcomes import Comparison, summarize
from copyspec_edge.exactness.verification import verify_copying
from copyspec_edge.tuning.curves import FREE_ROWS

N_VOCAB, N_CTX = 6, 128
PROMPT = as_tokens([1, 2, 3, 4, 5, 1, 2, 3])


class NudgedEngine(FakeEngine):
    """Adds to the second largest logit behind `depth` tokens."""

    def __init__(self, depth: int, by: float) -> None:
        super().__init__(TinyLanguage(N_VOCAB, order=2), n_ctx=N_CTX)
        self._depth, self._by = depth, by
        self.reads: list[tuple[int, int]] = []

    def eval(self, tokens: Tokens, *, rows: int) -> Row:
        self.reads.append((self.n_past, len(tokens)))
        return super().eval(tokens, rows=rows)

    def _fill(self, rows: int) -> None:
        super()._fill(rows)
        index = self._depth - (len(self.tokens) - rows) - 1
        if 0 <= index < rows:
            self._buffer[index, self._buffer[index].argsort()[-2]] += self._by


class FakeModel:
    """Its sessions that copy round otherwise at one depth."""

    certificate: Certificate | None = None
    eog_tokens: frozenset[int] = frozenset()

    def __init__(self, depth: int = 0, by: float = 0.0) -> None:
        self._nudge = depth, by
        self.engines: list[NudgedEngine] = []

    def session(self, *, copy: bool = True) -> Any:
        engine = NudgedEngine(*self._nudge) if copy else NudgedEngine(0, 0.0)
        engine.n_threads, engine.n_threads_batch = (3, 4) if copy else (1, 1)
        self.engines.append(engine)
        return SimpleNamespace(
            engine=engine,
            drafter=CopyDrafter(N_CTX, self.eog_tokens) if copy else NoDrafter(),
            cost=FREE_ROWS,
            n_ctx=N_CTX,
            close=engine.close,
        )

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return f"<{token_ids[0]}>"


def compare(model: FakeModel, n_prompts: int = 1, max_tokens: int = 20) -> list[Comparison]:
    found = list(verify_copying(model, [PROMPT] * n_prompts, max_tokens=max_tokens))
    assert all(engine.closed for engine in model.engines)
    return found


def test_where_all_rows_agree_nothing_differs() -> None:
    found = compare(FakeModel(), n_prompts=2)
    assert [(c.prompt, c.drafts) for c in found] == [
        (0, "copied"), (0, "forced"), (1, "copied"), (1, "forced")
    ]  # fmt: skip
    assert summarize(found) == {
        "identical": True,
        "tokens_compared": 80,
        "rows_differing": 0,
        "max_logit_difference": 0.0,
        "deepest": 56,
        "first_difference": None,
    }
    assert all(c.drafted > c.accepted > 0 for c in found if c.drafts == "forced")


def test_a_row_that_is_rounded_otherwise_is_counted() -> None:
    found = compare(FakeModel(depth=len(PROMPT) + 5, by=1e-3))
    for comparison in found:
        assert (comparison.rows_differing, comparison.difference) == (1, None)
        assert comparison.max_logit_difference == pytest.approx(1e-3, rel=0.1)
        assert comparison.tokens_compared == 20
    assert not summarize(found)["identical"]


def test_the_first_other_token_is_told() -> None:
    found = compare(FakeModel(depth=len(PROMPT) + 5, by=50.0))
    for comparison, drafts in zip(found, ("copied", "forced"), strict=True):
        difference = comparison.difference
        assert difference is not None
        assert comparison.tokens_compared == 6
        assert (difference.prompt, difference.drafts, difference.position) == (0, drafts, 5)
        assert difference.plain != difference.other
        texts = f"<{difference.plain}>", f"<{difference.other}>"
        assert (difference.plain_text, difference.other_text) == texts
        assert 0 < difference.margin < 50
        assert difference.rounding == pytest.approx(50)


def test_what_differs_behind_earlier_answers_only_is_found() -> None:
    turn = len(PROMPT) + 20
    found = compare(FakeModel(depth=2 * turn + len(PROMPT) + 1, by=1e-3), n_prompts=4)
    assert {c.prompt for c in found if c.rows_differing} == {2}
    assert [c.depth for c in found] == [
        turn,
        turn,
        *[2 * turn] * 2,
        *[3 * turn] * 2,
        *[4 * turn] * 2,
    ]


def test_an_answer_that_differs_does_not_spoil_the_next_one() -> None:
    turn = len(PROMPT) + 20
    found = compare(FakeModel(depth=len(PROMPT) + 5, by=50.0), n_prompts=2)
    assert all(c.difference for c in found[:2])
    assert all(c.rows_differing == 0 for c in found[2:])
    assert all(c.depth == 2 * turn for c in found[2:])


def test_a_full_context_begins_anew() -> None:
    found = compare(FakeModel(), n_prompts=3, max_tokens=80)
    assert [c.depth for c in found] == [88] * 6


def test_the_threads_are_those_of_the_engine_that_copied() -> None:
    assert {(c.n_threads, c.n_threads_batch) for c in compare(FakeModel())} == {(3, 4)}


def test_forced_drafts_of_an_exact_model_keep_half_of_the_prompt() -> None:
    model = FakeModel()
    model.certificate = Certificate(
        reason="", min_rows=1, rows=tuple(range(1, 17)), chunks=tuple(range(1, 33)),
        flash_attn="off", type_k="f16", type_v="f16", use_extra_bufts=False, n_threads=1,
        n_threads_batch=1, n_batch=32, ranges=((0, N_CTX),), n_compared=1, excluded=(),
    )  # fmt: skip
    compare(model, n_prompts=2)
    first, half = len(PROMPT), len(PROMPT) // 2
    turn = first + 20
    # A turn's last token is read with the next prompt.
    reads = [(0, first), (half, half), (turn - 1, 1 + first), (turn + half, half)]
    assert [read for read in model.engines[1].reads if read in reads] == reads
