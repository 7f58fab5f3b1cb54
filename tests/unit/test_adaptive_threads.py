from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from copyspec_edge.tuning.adaptive_threads import AdaptiveThreads
from copyspec_edge.tuning.cost import CostCurve, CostModel, StepTime
from copyspec_edge.tuning.curves import CPU_CURVE

Schedule = Callable[[float], int]
STEP = 0.011


def never(_: float) -> int:
    return 0


def always(_: float) -> int:
    return 1


@dataclass
class Machine:
    """Cores, other processes that are busy on a schedule, and a model that decodes.

    A step takes `step` seconds with all cores, in proportion more with fewer threads. Where
    threads and busy processes outnumber the cores it takes 100 to 400 times as long, at most until
    the others rest; with one thread it only has its share of a core. A context of a thousand tokens
    makes steps longer by `growth`, and each step adds a token to it.
    """

    n_cores: int = 2
    busy: Schedule = never
    step: float = STEP
    growth: float = 0.0
    slowdown: Callable[[float], float] = lambda _: 1.0
    noise: float = 0.05
    now: float = 0.0
    depth: int = 0
    n_threads: int = field(init=False)
    set_calls: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.n_threads = self.n_cores
        self._random = random.Random(self.n_cores)

    def set_threads(self, n_threads: int) -> None:
        assert 1 <= n_threads <= self.n_cores
        self.set_calls.append(n_threads)
        self.n_threads = n_threads

    def seconds(self, n_threads: int, now: float, penalty: float) -> float:
        deep = 1 + self.growth * self.depth / 1000
        work = self.step * deep * self.slowdown(now) * self.n_cores / n_threads
        n_busy = self.busy(now)
        if n_threads + n_busy <= self.n_cores:
            return work
        if n_threads == 1:
            return work * (1 + n_busy) / self.n_cores
        spun = 0.0
        while spun < work * penalty and n_threads + self.busy(now + spun) > self.n_cores:
            spun += self.step
        return work + spun

    def decode(self, seconds: float, tell: Callable[[float], None]) -> int:
        """Decode for some time; returns how many steps were made."""
        end, n_steps = self.now + seconds, 0
        while self.now < end:
            penalty = self._random.uniform(100, 400)
            took = self.seconds(self.n_threads, self.now, penalty)
            took *= self._random.uniform(1 - self.noise, 1 + self.noise)
            self.now += took
            n_steps += 1
            tell(took)
            self.depth += 1
        return n_steps

    def best(self, start: float, end: float) -> float:
        """The steps that one who knows the schedule makes."""
        n_steps, now = 0.0, start
        while now < end:
            fastest = min(self.seconds(n, now, 250.0) for n in range(1, self.n_cores + 1))
            tick = max(fastest, 0.02)
            n_steps += tick / fastest
            now += tick
        return n_steps


class Governed:
    """A machine under a governor; `learns` puts the cost model in between, as in a session."""

    def __init__(self, machine: Machine, *, learns: bool = False, trusted: bool = True) -> None:
        self.machine = machine
        self.governor = AdaptiveThreads(machine.set_threads, machine.n_cores, trusted=trusted)
        self._cost: CostModel | None = None
        if learns:
            table = CPU_CURVE.seconds
            curve = CostCurve(CPU_CURVE.rows, tuple(machine.step * s for s in table))
            self._cost = CostModel(curve, in_seconds=trusted, on_step=self._observe)

    def run(self, seconds: float) -> float:
        """Decode for some time; returns the share of the steps that were possible."""
        start = self.machine.now
        n_steps = self.machine.decode(seconds, self._tell)
        assert self.governor.n_threads == self.machine.n_threads
        return n_steps / self.machine.best(start, self.machine.now)

    def _tell(self, seconds: float) -> None:
        if self._cost:
            self._cost.observe(1, seconds, depth=self.machine.depth)
        else:
            self.governor.observe(seconds / self.machine.step, seconds, self.machine.depth)

    def _observe(self, step: StepTime) -> None:
        self.governor.observe(step.slowness, step.seconds, step.depth)


learners = pytest.mark.parametrize("learns", [False, True], ids=["fixed", "learned"])
cores = pytest.mark.parametrize("n_cores", [2, 4, 6, 16])


@learners
@cores
def test_a_free_machine_never_changes_threads(n_cores: int, learns: bool) -> None:
    governed = Governed(Machine(n_cores, noise=0.3), learns=learns)
    governed.run(60)
    assert governed.machine.set_calls == []


def test_one_core_is_left_alone_whatever_happens() -> None:
    governed = Governed(Machine(1, busy=lambda now: int(now) % 7))
    governed.run(60)
    assert governed.machine.set_calls == []


@learners
@cores
def test_beside_a_busy_process_threads_go_down_at_once_and_stay(n_cores: int, learns: bool) -> None:
    governed = Governed(Machine(n_cores, always), learns=learns)
    steps: list[int] = []

    def tell(took: float) -> None:
        governed._tell(took)
        steps.append(governed.machine.n_threads)

    governed.machine.decode(0.1, tell)
    assert steps[0] == n_cores - 1
    governed.run(30)
    assert governed.governor.n_threads == n_cores - 1


@pytest.mark.parametrize("step", [0.04, 0.15])
@pytest.mark.parametrize(("n_cores", "n_busy"), [(2, 1), (2, 2), (4, 1), (4, 3), (8, 1), (8, 6)])
def test_beside_busy_processes_half_of_what_is_free_is_used(
    n_cores: int, n_busy: int, step: float
) -> None:
    governed = Governed(Machine(n_cores, lambda _: n_busy, step=step), learns=True)
    governed.run(60)
    assert governed.run(6_000 * step) >= 0.5


@learners
def test_when_the_machine_is_free_again_threads_come_back_up(learns: bool) -> None:
    governed = Governed(Machine(4, lambda now: 3 * (20 < now < 60)), learns=learns)
    governed.run(20)
    governed.run(30)
    assert governed.governor.n_threads == 1
    governed.run(120)
    assert governed.governor.n_threads == 4
    assert governed.run(60) > 0.95


@pytest.mark.parametrize("period", [3.0, 20.0, 120.0, 600.0])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_half_of_what_is_possible_is_made_beside_one_who_comes_and_goes(
    period: float, share: float
) -> None:
    machine = Machine(2, lambda now: int(now % period < share * period), step=0.08)
    assert Governed(machine, learns=True).run(1200) >= 0.5


@learners
@cores
@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_a_machine_that_is_slower_altogether_keeps_its_threads(
    factor: float, n_cores: int, learns: bool
) -> None:
    machine = Machine(n_cores, slowdown=lambda now: factor if now > 5 else 1.0)
    governed = Governed(machine, learns=learns)
    governed.run(10)
    assert governed.run(120) > 0.9
    assert governed.governor.n_threads == n_cores


def test_a_deeper_and_deeper_context_is_not_even_tried_with_fewer_threads() -> None:
    machine = Machine(4, slowdown=lambda now: 1 + now / 20)
    Governed(machine).run(200)
    assert machine.set_calls == []


def test_a_single_hiccup_is_forgotten_soon() -> None:
    machine = Machine(2, slowdown=lambda now: 200.0 if 5 < now < 5.05 else 1.0)
    governed = Governed(machine)
    governed.run(30)
    assert governed.governor.n_threads == 2
    assert len(machine.set_calls) <= 2


def test_one_slow_step_that_is_not_very_slow_changes_nothing() -> None:
    machine = Machine(2)
    governor = AdaptiveThreads(machine.set_threads, 2)
    for slowness in [1.0, 5.0, 5.0, 1.0, 20.0, 1.0]:
        governor.observe(slowness, STEP * slowness, 0)
    assert machine.set_calls == []
    for _ in range(3):
        governor.observe(5.0, STEP * 5, 0)
    assert machine.set_calls == [1]


def trial_share(governed: Governed, seconds: float) -> float:
    """Share of the time that was spent with other threads than most of the time."""
    spent: dict[int, float] = {}

    def tell(took: float) -> None:
        threads = governed.machine.n_threads
        spent[threads] = spent.get(threads, 0.0) + took
        governed._tell(took)

    governed.machine.decode(seconds, tell)
    return 1 - max(spent.values()) / sum(spent.values())


@pytest.mark.parametrize("step", [0.011, 0.3])
def test_trials_that_fail_become_rare(step: float) -> None:
    governed = Governed(Machine(2, always, step=step))
    governed.run(60)
    assert 0 < trial_share(governed, 3000) < 0.11
    assert 0 < trial_share(governed, 3000) < 0.11


def lowered() -> tuple[Machine, AdaptiveThreads]:
    """A governor that has just gone from two threads to one."""
    machine = Machine(2)
    governor = AdaptiveThreads(machine.set_threads, 2)
    for slowness in [300.0, 2.0, 2.0, 2.0]:
        governor.observe(slowness, 0.02, 0)
    assert machine.set_calls == [1]
    return machine, governor


@pytest.mark.parametrize(("slowness", "n_threads"), [(1.5, 2), (1.9, 1)])
def test_only_a_count_that_is_clearly_faster_is_kept(slowness: float, n_threads: int) -> None:
    machine, governor = lowered()
    while machine.n_threads == 1:
        governor.observe(2.0, 0.02, 0)
    for _ in range(3):
        governor.observe(slowness, 0.02, 0)
    assert governor.n_threads == machine.n_threads == n_threads


def test_cheap_trials_that_fail_become_rare_too() -> None:
    machine, governor = lowered()
    for _ in range(30_000):
        governor.observe(2.0, 0.02, 0)
    assert 6 <= machine.set_calls.count(2) <= 8


def test_where_no_count_is_fast_the_trials_go_on_but_rarely() -> None:
    machine = Machine(4, slowdown=lambda _: 40.0)
    governed = Governed(machine)
    governed.run(60)
    machine.set_calls.clear()
    assert governed.run(600) > 0.85
    assert machine.set_calls
    assert governed.governor.n_threads == 4


@pytest.mark.parametrize(("n_cores", "n_busy"), [(2, 1), (4, 1), (4, 3), (8, 6), (16, 1)])
def test_an_unknown_pace_is_compared_with_fewer_threads_at_once(n_cores: int, n_busy: int) -> None:
    machine = Machine(n_cores, lambda _: n_busy, step=0.04)
    governed = Governed(machine, learns=True, trusted=False)
    governed.run(60)
    assert governed.run(300) >= 0.5


@cores
def test_an_unknown_pace_of_a_free_machine_costs_few_trials(n_cores: int) -> None:
    governed = Governed(Machine(n_cores), learns=True, trusted=False)
    assert governed.run(120) > 0.95
    assert governed.machine.set_calls
    assert governed.governor.n_threads == n_cores


def test_the_log_says_which_count_is_used_and_why(caplog: pytest.LogCaptureFixture) -> None:
    governed = Governed(Machine(2, lambda now: int(10 < now < 20)))
    with caplog.at_level(logging.INFO, "copyspec_edge"):
        governed.run(60)
    assert caplog.messages == [
        "decoding with 1 threads: faster than 2 now",
        "decoding with 2 threads: faster than 1 now",
    ]


def test_stalls_now_and_then_that_a_typical_step_does_not_show_lower_the_count() -> None:
    machine = Machine(2)
    governor = AdaptiveThreads(machine.set_threads, 2)
    for step in range(80):
        if governor.n_threads == 1:
            break
        governor.observe(8.0 if step % 6 == 5 else 1.2, STEP, 0)
    assert machine.set_calls == [1]


@learners
@cores
@pytest.mark.parametrize("growth", [0.5, 2.0])
def test_a_long_prompt_is_not_taken_for_a_busy_machine(
    n_cores: int, growth: float, learns: bool
) -> None:
    governed = Governed(Machine(n_cores, growth=growth), learns=learns)
    for depth in (10, 4_000, 50, 7_000, 100, 3_900, 20):
        governed.machine.depth = depth
        governed.run(2)
    assert governed.machine.set_calls == []


@learners
@pytest.mark.parametrize("depth", [10, 4_000])
def test_behind_a_long_prompt_a_busy_machine_is_noticed(depth: int, learns: bool) -> None:
    machine = Machine(4, lambda now: int(now > 8), growth=1.0)
    governed = Governed(machine, learns=learns)
    for prompt in (10, 4_000, depth):
        machine.depth = prompt
        governed.run(2)
    machine.depth = 4_000
    governed.run(10)
    assert governed.governor.n_threads == 3


@learners
def test_a_machine_that_gets_busy_while_a_long_prompt_is_read_is_noticed(learns: bool) -> None:
    machine = Machine(2, lambda now: int(now > 2), growth=1.0)
    governed = Governed(machine, learns=learns)
    governed.run(2)
    machine.depth = 4_000
    governed.run(10)
    assert governed.governor.n_threads == 1


@learners
@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_going_down_ends_where_a_step_down_is_no_faster(factor: float, learns: bool) -> None:
    machine = Machine(16, slowdown=lambda now: factor if now > 5 else 1.0)
    Governed(machine, learns=learns).run(60)
    assert machine.set_calls
    assert min(machine.set_calls) == 15


def test_a_trial_that_a_new_prompt_interrupts_decides_nothing() -> None:
    machine = Machine(4)
    governor = AdaptiveThreads(machine.set_threads, 4)
    for slowness in [1.0, 300.0, 1.2]:
        governor.observe(slowness, STEP * slowness, 10)
    assert (machine.n_threads, governor.settled) == (3, 4)
    for slowness in [1.1, 1.2, 1.1, 1.2]:
        governor.observe(slowness, STEP * slowness, 5_000)
    assert (machine.n_threads, governor.settled) == (4, 4)


def test_one_that_starts_with_fewer_threads_tries_more_after_a_while() -> None:
    governed = Governed(Machine(4, noise=0.01))
    machine = governed.machine
    governed.governor = AdaptiveThreads(machine.set_threads, 4, start=2)
    machine.n_threads = 2
    governed.run(4)
    assert machine.set_calls == []
    governed.run(60)
    assert machine.n_threads == 4
