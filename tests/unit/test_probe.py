from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, TinyLanguage
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting.draft_length import best_length
from copyspec_edge.exactness import row_comparison
from copyspec_edge.exactness.certificate import (
    Certificate,
    CertifiedCosts,
    read_certificate,
    split,
    write_certificate,
)
from copyspec_edge.exactness.probe import COUNTS, probe, probed_context
from copyspec_edge.exactness.row_comparison import Finding
from copyspec_edge.tuning.curves import CPU_CURVE

Bump = Callable[[int, int, int], bool]
MAX_ROWS, N_BATCH, N_CTX = 64, 512, 900
ROWS = tuple(n for n in COUNTS if n <= MAX_ROWS)


class RoundingEngine(FakeEngine):
    """Rounds its rows by how each token was read, as llama.cpp does.

    Args:
        bumps: whether a token read in a batch of `count` at `index` of it, at `position` of the
            context, is rounded another way. All rows behind it show that.
        at_once: whether its own batch's rows show it too.
    """

    def __init__(self, bumps: Bump, *, at_once: bool = True, **options: Any) -> None:
        shape = {"n_ctx": N_CTX, "max_rows": MAX_ROWS, "n_batch": N_BATCH, **options}
        super().__init__(TinyLanguage(4, order=1), **shape)
        self._bumps = bumps
        self._at_once = at_once
        self._bumped: set[int] = set()

    def _read(self, chunk: Tokens) -> None:
        start, count = self.n_past, len(chunk)
        before = set(self._bumped)
        super()._read(chunk)
        self._bumped |= {start + i for i in range(count) if self._bumps(count, i, start + i)}
        self._shown = self._bumped if self._at_once else before

    def _fill(self, rows: int) -> None:
        super()._fill(rows)
        for index in range(rows):
            end = len(self.tokens) - rows + index + 1
            self._buffer[index, 0] += 0.01 * sum(1 for p in self._shown if p < end)

    def _keep(self, length: int) -> None:
        super()._keep(length)
        self._bumped = {p for p in self._bumped if p < length}


def find(
    bumps: Bump, min_rows: int = 2, *, limit_seconds: float = 600.0, **options: Any
) -> Finding:
    engine = RoundingEngine(bumps, **options)
    tokens = np.random.default_rng(1).integers(0, engine.n_vocab, engine.n_ctx).astype(np.int32)
    finding = probe(
        engine,
        tokens,
        min_rows=min_rows,
        n_batch=options.get("n_batch", N_BATCH),
        limit_seconds=limit_seconds,
    )
    assert engine.n_past == 0
    return finding


def test_where_nothing_differs_all_counts_are_found() -> None:
    finding = find(lambda n, index, position: False, 1)
    assert finding.rows == ROWS
    assert finding.chunks == COUNTS
    assert finding.excluded == ()
    assert finding.ranges == ((0, 64), (0, 640), (739, 899))
    assert finding.width == MAX_ROWS


def test_counts_from_where_a_kernel_changes_are_out() -> None:
    finding = find(lambda n, index, position: n >= 8)
    assert finding.rows == finding.chunks == (2, 3, 4, 5, 6, 7)
    assert finding.width == 7
    assert any(seen.startswith("8 rows differ by 0.0") for seen in finding.excluded)
    assert len(finding.excluded) == sum(count >= 8 for count in COUNTS)


def test_single_rows_that_differ_leave_the_others_when_two_are_the_least() -> None:
    assert find(lambda n, index, position: n == 1, 1).width == 0
    finding = find(lambda n, index, position: n == 1, 2)
    assert finding.rows == ROWS[1:]


@pytest.mark.parametrize("first", [70, 512, 800])
def test_a_difference_at_some_depth_only_is_found(first: int) -> None:
    finding = find(lambda n, index, position: n in (6, 24) and position >= first)
    assert set(ROWS[1:]) - set(finding.rows) == {6, 24}


def test_a_difference_of_one_row_of_a_batch_is_found() -> None:
    finding = find(lambda n, index, position: n % 4 == 1 and index == n - 1)
    assert set(ROWS[1:]) - set(finding.rows) == {n for n in ROWS[1:] if n % 4 == 1}


def test_prompt_batches_are_found_apart_from_rows() -> None:
    finding = find(lambda n, index, position: n in (256, 512))
    assert finding.rows == ROWS[1:]
    assert finding.chunks == (*ROWS[1:], 128)


def test_a_prompt_batch_that_differs_deep_in_the_context_only_is_out() -> None:
    finding = find(lambda n, index, position: n == 512 and position >= 900, n_ctx=2000)
    assert finding.rows == ROWS[1:]
    assert finding.chunks == (*ROWS[1:], 128, 256)


def test_a_count_that_spoils_only_what_comes_after_it_is_the_one_to_go() -> None:
    finding = find(lambda n, index, position: n in (5, 20), at_once=False)
    assert set(ROWS[1:]) - set(finding.rows) == {5, 20}
    assert all("change what is behind" in seen for seen in finding.excluded)


def test_odd_batches_that_differ_leave_no_way_to_read_any_prompt() -> None:
    finding = find(lambda n, index, position: n % 2 == 1)
    assert (finding.width, finding.rows) == (0, ())
    assert finding.excluded


def test_rows_that_depend_on_their_place_in_a_batch_leave_nothing() -> None:
    finding = find(lambda n, index, position: index % 2 == 1)
    assert finding.width == 0
    assert finding.excluded


def test_what_rolling_back_leaves_behind_is_found() -> None:
    class Sticky(RoundingEngine):
        """Rejected tokens go on counting."""

        def _keep(self, length: int) -> None:
            FakeEngine._keep(self, length)
            if length == 0:
                self._bumped.clear()
            self._bumped = {min(p, length - 1) for p in self._bumped}

        def _read(self, chunk: Tokens) -> None:
            super()._read(chunk)
            self._bumped.add(self.n_past)

    engine = Sticky(lambda n, index, position: False)
    tokens = np.arange(N_CTX, dtype=np.int32) % 4
    assert probe(engine, tokens, min_rows=2, n_batch=N_BATCH).width == 0


def test_a_first_look_is_short_and_sees_less() -> None:
    engines = [RoundingEngine(lambda n, index, position: n == 6 and position > 99) for _ in "12"]
    tokens = np.arange(N_CTX, dtype=np.int32) % 4
    look, full = (
        probe(engine, tokens, min_rows=2, n_batch=N_BATCH, thorough=thorough)
        for engine, thorough in zip(engines, (False, True), strict=True)
    )
    assert 6 in look.rows
    assert 6 not in full.rows
    assert look.ranges == ((0, 64),)
    assert len(engines[0].batch_sizes) < len(engines[1].batch_sizes) / 3


def test_a_model_that_never_copies_is_exact_with_one_row() -> None:
    finding = find(lambda n, index, position: n > 1, 1, max_rows=1)
    assert (finding.rows, finding.chunks, finding.width) == ((1,), (1,), 1)


def test_a_model_that_can_copy_is_not_exact_with_one_row_alone() -> None:
    assert find(lambda n, index, position: n > 1, 1).width == 0


def test_a_memory_that_cannot_be_cut_is_read_anew() -> None:
    finding = find(lambda n, index, position: n >= 48, can_truncate=False, n_ctx=200)
    assert finding.rows == tuple(n for n in ROWS[1:] if n < 48)


@pytest.mark.parametrize("memory", [{"can_truncate": False}, {"checkpoints": True}])
def test_a_memory_that_cannot_be_cut_nor_reached_again_ends_the_probe(
    memory: dict[str, bool],
) -> None:
    finding = find(lambda n, index, position: n % 2 == 1, n_ctx=200, **memory)
    assert finding.width == 0
    assert any("no batches end behind" in seen for seen in finding.excluded)


@pytest.mark.parametrize("n_ctx", [2, 3, 4, 5, 17, 64, 65, 66, 130, 641, 800])
@pytest.mark.parametrize("min_rows", [1, 2])
def test_any_context_can_be_probed(n_ctx: int, min_rows: int) -> None:
    finding = find(lambda n, index, position: False, min_rows, n_ctx=n_ctx)
    is_enough = n_ctx >= min_rows + 2
    expected = [n for n in COUNTS if min_rows <= n < n_ctx] if is_enough else []
    assert finding.chunks == tuple(expected)
    assert bool(finding.width) == is_enough


def test_a_slow_model_is_probed_less_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    depths = []
    for limit in (0.0, 1.0, 10.0, 20.0, 40.0, 80.0, 160.0, 1e9):
        clock = SimpleNamespace(perf_counter=count(0.0, 1.0).__next__)
        monkeypatch.setattr(row_comparison, "time", clock)
        ranges = find(lambda n, index, position: False, limit_seconds=limit).ranges
        depths.append(max(end for _, end in ranges))
    assert depths == sorted(depths)
    assert set(depths) == {64, 640, N_CTX - 1}


@pytest.mark.parametrize(
    ("n_ctx", "n_swa", "enough"), [(8192, 0, 1024), (8192, 4096, 4096 + 256), (2048, 4096, 2048)]
)
def test_the_probe_goes_past_a_sliding_window(n_ctx: int, n_swa: int, enough: int) -> None:
    assert enough <= probed_context(n_ctx, n_swa) <= n_ctx


GOOD = Certificate(
    reason="",
    min_rows=2,
    rows=(2, 3, 8, 16),
    chunks=(2, 3, 8, 16, 128),
    flash_attn="off",
    type_k="f16",
    type_v="f16",
    use_extra_bufts=False,
    n_threads=1,
    n_threads_batch=2,
    n_batch=512,
    ranges=((0, 64), (0, 640)),
    n_compared=1000,
    excluded=("4 rows differ by 0.5 behind 17 tokens",),
)


@given(st.integers(1, 3000), st.sets(st.sampled_from(COUNTS[3:])), st.sampled_from([1, 2]))
def test_prompts_are_split_into_certified_lengths(n: int, more: set[int], least: int) -> None:
    chunks = {*more, *range(least, 2 * least)}
    sizes = split(n, chunks, least)
    assert sum(sizes) == n
    if n >= least:
        assert set(sizes) <= chunks
    assert sizes[0] == n or sizes[0] >= max(c for c in chunks if c <= max(n - least, least))


def test_costs_forbid_what_is_not_certified_and_charge_the_least_rows() -> None:
    costs = CertifiedCosts(CPU_CURVE, GOOD)
    table = costs.at(0).table
    assert table[1] == table[2] == CPU_CURVE.table[2]
    finite = set(np.flatnonzero(np.isfinite(table)).tolist())
    assert finite == {0, 1, 2, 3, 8, 16}
    assert table[8] == CPU_CURVE.table[8]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=63))
def test_the_policy_keeps_to_certified_rows(accept: list[float]) -> None:
    costs = CertifiedCosts(CPU_CURVE, GOOD).at(0)
    length = best_length(np.array(accept, np.float32), costs.table, costs.breaks)
    assert max(2, length + 1) in GOOD.rows


def test_the_depth_of_a_certificate_is_that_of_its_deepest_range() -> None:
    assert GOOD.depth == 640
    assert replace(GOOD, ranges=((0, 64), (2911, 3071))).depth == 3071
    assert replace(GOOD, ranges=()).depth == 0


def test_a_certificate_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "measured" / "exact.json"
    write_certificate(path, "key", GOOD)
    assert read_certificate(path, "key") == GOOD
    assert read_certificate(path, "another key") is None


def test_a_certificate_that_was_changed_or_damaged_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "exact.json"
    write_certificate(path, "key", GOOD)
    text = path.read_text()
    raw = json.loads(text)
    changed = {**raw, "certificate": {**raw["certificate"], "rows": [2, 3, 4, 8, 16]}}
    for bad in (
        "",
        text[:-20],
        "[1]",
        "null",
        "[" * 100_000,
        "{}",
        json.dumps(changed),
        json.dumps({**raw, "digest": None}),
        json.dumps({**raw, "certificate": None}),
    ):
        path.write_text(bad)
        assert read_certificate(path, "key") is None, bad[:40]
    path.write_bytes(b"\xff\xfe{")
    assert read_certificate(path, "key") is None
    assert read_certificate(tmp_path, "key") is None
