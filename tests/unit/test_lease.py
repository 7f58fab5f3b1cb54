from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from copyspec_edge.errors import SessionBusyError
from copyspec_edge.lease import Lease


class Flag:
    """What a stop sets."""

    def __init__(self) -> None:
        self.is_set = False

    def lease(self) -> Lease:
        return Lease("taken", stop=self._set, unstop=self._clear)

    def _set(self) -> None:
        self.is_set = True

    def _clear(self) -> None:
        self.is_set = False


def started(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_one_at_a_time_has_it() -> None:
    lease, refusals = Lease("taken"), list[BaseException]()

    def take() -> None:
        with pytest.raises(SessionBusyError, match="taken") as refusal:
            lease.take()
        refusals.append(refusal.value)

    with lease.held():
        take()
        started(take).join()
    assert len(refusals) == 2
    lease.take()


def test_another_thread_may_give_it_back() -> None:
    lease = Lease("taken")
    lease.take()
    started(lease.give_back).join()
    with lease.held():
        pass


def test_an_error_gives_it_back() -> None:
    lease = Lease("taken")
    with pytest.raises(ZeroDivisionError), lease.held():
        1 / 0  # noqa: B018
    lease.take()


def test_who_waits_gets_it_next() -> None:
    lease, got = Lease("taken"), threading.Event()

    def wait() -> None:
        with lease.held(waits=True):
            got.set()

    with lease.held():
        waiting = started(wait)
        assert not got.wait(0.05)
    waiting.join(30)
    assert got.is_set()


def test_nobody_waits_for_itself() -> None:
    lease = Lease("taken")
    with lease.held(), pytest.raises(SessionBusyError):
        lease.take(waits=True)


def test_a_stop_reaches_who_has_it() -> None:
    flag = Flag()
    lease = flag.lease()
    term = lease.take()
    lease.stop()
    assert flag.is_set
    lease.give_back()
    assert lease.take() != term
    assert not flag.is_set


def test_a_stop_without_a_holder_reaches_nobody() -> None:
    flag = Flag()
    lease = flag.lease()
    term = lease.take()
    lease.give_back()
    for of in (None, term):
        lease.stop(of)
        assert not flag.is_set


def test_a_stop_of_a_former_term_does_not_reach_the_next() -> None:
    flag = Flag()
    lease = flag.lease()
    term = lease.take()
    lease.give_back()
    now = lease.take()
    lease.stop(term)
    assert not flag.is_set
    lease.stop(now)
    assert flag.is_set


def test_a_stop_may_end_the_term_at_once() -> None:
    lease = Lease("taken", stop=lambda: lease.give_back())
    lease.take()
    lease.stop()
    lease.take()


def test_stops_of_former_terms_never_reach_one_of_many_holders() -> None:
    flag = Flag()
    lease = flag.lease()
    former: list[int] = []
    reached: list[int] = []
    done = threading.Event()

    def hold() -> None:
        for _ in range(300):
            term = lease.take(waits=True)
            for _ in range(5):
                reached.extend([term] * flag.is_set)
            lease.give_back()
            former.append(term)

    def stop() -> None:
        while not done.is_set():
            for term in former[-3:]:
                lease.stop(term)

    stopping = [started(stop) for _ in range(2)]
    holding = [started(hold) for _ in range(3)]
    for thread in holding:
        thread.join(60)
    done.set()
    for thread in stopping:
        thread.join(60)
    assert len(set(former)) == len(former) == 900
    assert not reached
