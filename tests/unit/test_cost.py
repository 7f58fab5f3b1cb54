from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_edge.tuning.cost import CostCurve, CostModel, MeasuredCosts, StepTime
from copyspec_edge.tuning.curves import CPU_CURVE, GPU_CURVE, SHAPES

STEPS = CostCurve((1, 2, 4, 8), (1.0, 1.5, 2.0, 3.0))


def cost_model(curve: CostCurve = STEPS) -> CostModel:
    return CostModel(curve, in_seconds=True)


def ratios(cost: CostModel) -> list[float]:
    return [float(t / cost.at(0).table[1]) for t in cost.at(0).table[1:]]


def decode(cost: CostModel, truth: CostCurve, rows: list[int], *, noise: float = 0.0) -> None:
    random = np.random.default_rng(0)
    for n in rows:
        factor = float(random.uniform(1 - noise, 1 + noise))
        cost.observe(n, factor * float(truth.table[n]), depth=0)


def scaled(curve: CostCurve, factor: float) -> CostCurve:
    return CostCurve(curve.rows, tuple(factor * s for s in curve.seconds))


def test_the_table_of_a_curve_is_linear_between_its_rows() -> None:
    table = CostCurve((1, 3, 4), (1.0, 2.0, 5.0)).table
    assert table[1:].tolist() == [1.0, 1.5, 2.0, 5.0]


@pytest.mark.parametrize("curve", [CPU_CURVE, GPU_CURVE], ids=["cpu", "gpu"])
def test_built_in_curves_are_tables_of_64_rows_that_ascend_from_1(curve: CostCurve) -> None:
    assert curve.rows == SHAPES
    assert len(curve.table) == 65
    assert curve.table[1] == 1.0
    assert (np.diff(curve.table[1:]) > 0).all()
    assert (curve.table[1:] <= np.arange(1, 65)).all()


def test_a_fixed_curve_learns_nothing() -> None:
    curve = CostCurve((1, 2), (1.0, 2.0))
    curve.observe(1, 50.0, depth=0)
    assert curve.table[1:].tolist() == [1.0, 2.0]


def test_a_cost_model_starts_with_its_curve() -> None:
    cost = cost_model()
    assert cost.at(0).table.tolist() == STEPS.table.tolist()
    assert cost.curve == STEPS


def test_a_break_costs_nothing_where_rejected_tokens_are_cut_off() -> None:
    for cost in (STEPS, cost_model()):
        assert cost.at(0).breaks.tolist() == [0.0] * 9


def test_a_break_costs_the_batch_that_reads_again_less_a_plain_step() -> None:
    cost = CostModel(STEPS, in_seconds=True, rereads=True)
    assert cost.at(0).breaks.tolist() == pytest.approx([0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0])
    for _ in range(200):
        cost.observe(2, 3.0, depth=0)
        cost.observe(1, 1.0, depth=0)
    assert cost.at(0).breaks[0] == pytest.approx(2.0, rel=0.2)


def test_a_break_never_costs_less_than_nothing() -> None:
    falling = CostCurve((1, 2, 4), (1.0, 0.9, 2.0))
    assert CostModel(falling, in_seconds=True, rereads=True).at(0).breaks.min() == 0.0


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_first_step_tells_the_unit(rows: int) -> None:
    cost = CostModel(STEPS, in_seconds=False)
    decode(cost, scaled(STEPS, 0.02), [rows])
    assert cost.at(0).table[1:] == pytest.approx(0.02 * STEPS.table[1:])


def test_a_known_unit_is_not_replaced_by_the_first_step() -> None:
    cost = cost_model()
    decode(cost, scaled(STEPS, 1.5), [1])
    assert 1.0 < cost.at(0).table[1] < 1.2


@pytest.mark.parametrize("factor", [0.4, 0.7, 1.5, 2.5])
def test_the_pace_of_the_machine_is_followed(factor: float) -> None:
    cost = cost_model()
    decode(cost, scaled(STEPS, factor), [1, 4, 8, 2] * 40, noise=0.1)
    assert cost.at(0).table[1:] == pytest.approx(factor * STEPS.table[1:], rel=0.1)


@pytest.mark.parametrize("factor", [0.01, 0.1, 0.4, 0.7, 1.5, 2.5, 50.0])
def test_plain_steps_alone_at_another_pace_hardly_change_a_ratio(factor: float) -> None:
    cost = cost_model()
    decode(cost, scaled(STEPS, factor), [1] * 100)
    assert cost.at(0).table[1] == pytest.approx(factor, rel=0.02)
    assert ratios(cost) == pytest.approx(ratios(cost_model()), rel=0.4)


def test_a_first_step_that_was_slow_by_accident_is_corrected_by_the_next() -> None:
    cost = CostModel(STEPS, in_seconds=False)
    decode(cost, scaled(STEPS, 3.0), [1])
    decode(cost, scaled(STEPS, 0.02), [1])
    assert cost.at(0).table[1:] == pytest.approx(0.02 * STEPS.table[1:])


def test_ratios_that_are_wrong_are_learned_from_steps_of_those_rows() -> None:
    truth = CostCurve((1, 2, 4, 8), (1.0, 1.2, 1.3, 4.0))
    cost = cost_model()
    decode(cost, truth, [1, 8, 2, 4] * 100, noise=0.1)
    assert ratios(cost) == pytest.approx((truth.table[1:] / truth.table[1]).tolist(), rel=0.1)


def test_a_shape_that_was_not_used_keeps_its_ratio_nearly() -> None:
    truth = CostCurve((1, 2, 4, 8), (1.0, 1.5, 3.0, 3.0))
    cost = cost_model()
    decode(cost, truth, [1, 4] * 60)
    assert cost.at(0).table[4] / cost.at(0).table[1] == pytest.approx(3.0, rel=0.1)
    assert cost.at(0).table[8] / cost.at(0).table[1] == pytest.approx(3.0, rel=0.25)
    assert cost.at(0).table[2] / cost.at(0).table[1] == pytest.approx(1.5, rel=0.25)


def test_a_step_teaches_its_own_shape_more_than_the_others() -> None:
    cost = cost_model()
    cost.observe(4, 2.0 * 1.5, depth=0)
    change = cost.at(0).table[[1, 2, 4, 8]] / STEPS.table[[1, 2, 4, 8]]
    assert change[2] > change[0] == pytest.approx(change[1]) == pytest.approx(change[3])
    assert change[0] > 1


def test_rows_between_the_shapes_teach_the_nearest() -> None:
    cost = cost_model()
    cost.observe(7, float(STEPS.table[7]) * 2, depth=0)
    change = cost.at(0).table[[1, 2, 4, 8]] / STEPS.table[[1, 2, 4, 8]]
    assert int(np.argmax(change)) == 3


@pytest.mark.parametrize("rows", [9, 1000])
@pytest.mark.parametrize("in_seconds", [True, False])
def test_rows_beyond_the_curve_teach_nothing(rows: int, in_seconds: bool) -> None:
    told: list[float] = []
    cost = CostModel(STEPS, in_seconds=in_seconds, on_step=lambda step: told.append(step.slowness))
    cost.observe(rows, 7.0, depth=0)
    assert cost.curve == STEPS
    assert told == []


@pytest.mark.parametrize("in_seconds", [True, False])
def test_a_clock_that_stood_still_teaches_nothing(in_seconds: bool) -> None:
    cost = CostModel(STEPS, in_seconds=in_seconds)
    cost.observe(1, 0.0, depth=0)
    assert cost.curve == STEPS


@pytest.mark.parametrize("slowness", [3.1, 400.0])
def test_one_outlier_teaches_nothing(slowness: float) -> None:
    cost = cost_model()
    cost.observe(2, 1.5 * slowness, depth=0)
    assert cost.curve == STEPS


def test_outliers_now_and_then_teach_nothing() -> None:
    cost = cost_model()
    for _ in range(100):
        decode(cost, scaled(STEPS, 300.0), [1] * 5)
        decode(cost, STEPS, [1])
    assert cost.at(0).table.tolist() == pytest.approx(STEPS.table.tolist())


@pytest.mark.parametrize("rows", [[1], [1, 4], [8, 1, 2]])
def test_outliers_in_a_row_rescale_the_curve(rows: list[int]) -> None:
    cost = cost_model()
    decode(cost, scaled(STEPS, 100.0), (rows * 31)[:31])
    assert cost.at(0).table[1] == 1.0
    decode(cost, scaled(STEPS, 100.0), [1])
    assert cost.at(0).table[1:] == pytest.approx(100 * STEPS.table[1:])


def test_a_shape_that_alone_is_always_slow_is_learned() -> None:
    truth = CostCurve((1, 2, 4, 8), (1.0, 1.5, 2.0, 15.0))
    cost = cost_model()
    decode(cost, truth, [1, 8] * 10)
    assert ratios(cost) == pytest.approx((truth.table[1:]).tolist(), rel=0.1)


def test_a_wrong_built_in_curve_becomes_the_right_one() -> None:
    for start, truth in ((CPU_CURVE, GPU_CURVE), (GPU_CURVE, CPU_CURVE)):
        cost = CostModel(start, in_seconds=False)
        decode(cost, scaled(truth, 0.01), list(SHAPES) * 80, noise=0.1)
        assert ratios(cost) == pytest.approx((truth.table[1:]).tolist(), rel=0.2)


def told_by(use: Callable[[CostModel], None], *, in_seconds: bool = True) -> list[StepTime]:
    told: list[StepTime] = []
    use(CostModel(STEPS, in_seconds=in_seconds, on_step=told.append))
    return told


@pytest.mark.parametrize("pace", [0.01, 0.7, 1.0, 2.5, 80.0])
def test_each_step_is_told_with_its_slowness_whatever_pace_was_followed(pace: float) -> None:
    told = told_by(lambda cost: decode(cost, scaled(STEPS, pace), [1, 4, 8] * 60))
    assert [step.rows for step in told[:3]] == [1, 4, 8]
    assert [step.seconds for step in told[:3]] == pytest.approx([pace, 2 * pace, 3 * pace])
    assert told[0].slowness == pytest.approx(pace)
    last = [step.slowness for step in told[-3:]]
    # A unit that was wrong is not the machine's pace.
    assert last == pytest.approx([pace if pace > 1 / 3 else 1.0] * 3, rel=0.2)


def test_a_machine_that_was_slow_and_is_free_again_is_as_fast_as_before() -> None:
    def use(cost: CostModel) -> None:
        for pace in (1.0, 80.0, 1.0):
            decode(cost, scaled(STEPS, pace), [1] * 100)

    assert told_by(use)[-1].slowness == pytest.approx(1.0, rel=0.1)


def test_the_step_that_gave_the_unit_is_not_told() -> None:
    told = told_by(lambda cost: decode(cost, STEPS, [1, 4]), in_seconds=False)
    (step,) = told
    assert step.slowness == pytest.approx(1.0)
    assert (step.rows, step.seconds) == (4, 2.0)


DEEPER = CostCurve((1, 2, 4), (1.0, 1.5, 2.0), (0.001, 0.002, 0.004))


@pytest.mark.parametrize("make", [lambda curve: curve, cost_model], ids=["fixed", "followed"])
def test_costs_grow_with_the_context(make: Callable[[CostCurve], MeasuredCosts]) -> None:
    cost = make(DEEPER)
    assert cost.at(0).table[1:].tolist() == [1.0, 1.5, 1.75, 2.0]
    assert cost.at(1000).table[1:] == pytest.approx([2.0, 3.5, 4.75, 6.0])


def test_what_a_long_context_was_expected_to_take_is_no_surprise() -> None:
    cost = cost_model(DEEPER)
    for depth in range(0, 8000, 10):
        cost.observe(2, 1.5 + 0.002 * depth, depth=depth)
    assert cost.at(0).table[1:] == pytest.approx(DEEPER.table[1:], rel=1e-4)
    assert cost.curve.seconds == pytest.approx(DEEPER.at(7990).seconds, rel=1e-4)


def test_a_break_costs_what_its_context_costs() -> None:
    cost = CostModel(DEEPER, in_seconds=True, rereads=True)
    assert cost.at(1000).breaks.tolist() == pytest.approx([1.5, 2.75, 4.0])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 70), st.just(0.0) | st.floats(1e-7, 1e5)), max_size=60),
    st.booleans(),
)
def test_whatever_was_observed_times_stay_positive_and_finite(
    steps: list[tuple[int, float]], in_seconds: bool
) -> None:
    cost = CostModel(CPU_CURVE, in_seconds=in_seconds)
    for rows, seconds in steps:
        cost.observe(rows, seconds, depth=0)
    assert (cost.at(0).table[1:] > 0).all()
    assert np.isfinite(cost.at(0).table).all()
