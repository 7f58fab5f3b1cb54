"""Finds the number of threads that is fastest now. It knows times, not models.

llama.cpp's threads spin: with as many threads as cores, one other busy process makes every step
hundreds of times slower, and fewer threads are then much faster than more. A run of steps far
slower than expected starts a trial with fewer threads; later a trial with more is made, rarer the
more often it failed, so that trials cost a few per cent at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_SLOW = 4.0
_VERY_SLOW = 25.0
_PATIENCE = 3
_TRIAL_STEPS = 3
_BETTER = 0.8
_FIRST_WAIT_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 300.0
_TRIAL_SHARE = 20.0
_logger = logging.getLogger("copyspec_edge")


class ThreadGovernor:
    """Watches how slow steps are against what was expected, and sets the thread count.

    Args:
        set_threads: applies a count to the live context.
        most: the count to start with and never to exceed.

    Attributes:
        n_threads: the count in use.
    """

    def __init__(self, set_threads: Callable[[int], None], most: int) -> None:
        self._set_threads = set_threads
        self._most = most
        self.n_threads = most
        self._usual = 1.0
        self._slow_run = 0
        self._trial: list[float] = []
        self._trial_from: int | None = None
        self._trial_seconds = 0.0
        self._wait = _FIRST_WAIT_SECONDS
        self._since_trial = 0.0

    def observe(self, slowness: float, seconds: float) -> None:
        """Take in one step.

        Args:
            slowness: its duration over what was expected at full speed.
            seconds: its duration.
        """
        if self._trial_from is not None:
            self._observe_trial(slowness, seconds)
            return
        self._since_trial += seconds
        self._usual += 0.2 * (min(slowness, 4 * self._usual) - self._usual)
        is_slow = slowness > _SLOW * (1.0 if self.n_threads == self._most else self._usual)
        self._slow_run = self._slow_run + 1 if is_slow else 0
        urgent = is_slow and slowness > _VERY_SLOW
        if self.n_threads > 1 and (urgent or self._slow_run >= _PATIENCE):
            self._usual = max(self._usual, slowness)
            self._start_trial(max(1, self.n_threads // 2))
        elif self.n_threads < self._most and self._since_trial > self._wait:
            self._start_trial(min(self._most, self.n_threads * 2))

    def _start_trial(self, n_threads: int) -> None:
        self._trial_from = self.n_threads
        self._trial, self._trial_seconds = [], 0.0
        self._apply(n_threads)

    def _observe_trial(self, slowness: float, seconds: float) -> None:
        self._trial.append(slowness)
        self._trial_seconds += seconds
        hopeless = slowness > 2 * self._usual
        if len(self._trial) < _TRIAL_STEPS and not hopeless:
            return
        median = sorted(self._trial)[len(self._trial) // 2]
        assert self._trial_from is not None
        before, self._trial_from = self._trial_from, None
        self._slow_run, self._since_trial = 0, 0.0
        if not hopeless and median < _BETTER * self._usual:
            _logger.info("decoding with %d threads: faster than %d now", self.n_threads, before)
            self._usual = median
            self._wait = _FIRST_WAIT_SECONDS
            return
        self._apply(before)
        affordable = max(self._wait * 2, _TRIAL_SHARE * self._trial_seconds)
        self._wait = min(_LONGEST_WAIT_SECONDS, affordable)

    def _apply(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._set_threads(n_threads)
