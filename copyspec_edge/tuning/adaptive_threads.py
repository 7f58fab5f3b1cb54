"""Finds the number of threads that is fastest now. It knows times, not models.

llama.cpp's threads spin: with as many threads as cores, one other busy process makes every step
hundreds of times slower, and fewer threads are then much faster than more. A run of steps far
slower than usual starts a trial of fewer threads; later a trial of more is made, rarer the more
often it failed, so that trials cost a few per cent at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from statistics import median

_SLOW = 1.7
_VERY_SLOW = 25.0
# The same slow step may take four times as long once as another time.
_FAR = 8.0
_PATIENCE = 3
# Tokens that one step may add to the context.
_GRADUAL = 64
# Stalls now and then, which the typical step does not show: mean against typical slowness.
_STALLING = 1.75
_AVERAGE = 0.05
_FOLLOW = 0.2
_TRIAL_STEPS = 3
_BETTER = 0.8
_FIRST_WAIT_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 300.0
# Waiting times in multiples of what a trial took, by whether it failed.
_WAIT_AFTER_SUCCESS = 5.0
_WAIT_AFTER_FAILURE = 20.0
_logger = logging.getLogger("copyspec_edge")


def _counts(most: int) -> list[int]:
    """The thread counts to try, from `most` to 1: one core less, then half as many each time."""
    counts = [most, most - 1] if most > 2 else [most]
    while counts[-1] > 1:
        most //= 2
        counts.append(most)
    return counts


class AdaptiveThreads:
    """Watches how slow steps are against what was expected, and sets the thread count.

    What is usual is known for each depth of the context by itself (in powers of two), from the
    steps made there: attention to a long context may make all of them slower than was expected.

    Args:
        set_threads: applies a count to the live context.
        most: never to be exceeded.
        start: the count in use, if it is not `most`.
        trusted: whether what is expected was measured at full speed; else it may be that of a
            busy machine, and fewer threads are tried at once, and now and then.

    Attributes:
        n_threads: the count in use.
    """

    def __init__(
        self,
        set_threads: Callable[[int], None],
        most: int,
        *,
        start: int | None = None,
        trusted: bool = True,
    ) -> None:
        self._set_threads = set_threads
        self._counts = _counts(most)
        self.n_threads = start or most
        self._usual = self._mean = most / self.n_threads
        self._usual_at: dict[int, float] = {}
        self._depth = 0
        self._unjudged = 0
        self._slow_run = 0
        self._trusted = trusted
        self._doubtful = not trusted
        self._wait = _FIRST_WAIT_SECONDS if trusted else 0.0
        self._since_trial = self._wait if self.n_threads == most else 0.0
        # While a trial is on: the count before it, its slowness and that of those tried.
        self._before: int | None = None
        self._found: dict[int, float] = {}
        self._trial: list[float] = []
        self._trial_seconds = 0.0

    @property
    def settled(self) -> int:
        """The count in use, or the one before a trial that is on."""
        return self._before or self.n_threads

    def observe(self, slowness: float, seconds: float, depth: int) -> None:
        """Take in one step.

        Args:
            slowness: its duration over what was expected at full speed.
            seconds: its duration.
            depth: tokens that were in the context before it.
        """
        self._go_to(depth)
        if self._before is not None:
            self._observe_trial(self._before, slowness, seconds)
            return
        self._since_trial += seconds
        if self._unjudged and slowness <= _VERY_SLOW * self._usual:
            self._get_used_to(slowness)
            return
        self._judge(slowness, seconds)

    def _go_to(self, depth: int) -> None:
        """After a jump to another depth, what is usual there counts, or has to be learned."""
        before, now = self._depth.bit_length(), depth.bit_length()
        jumped = before != now and abs(depth - self._depth) > _GRADUAL
        self._depth = depth
        if not jumped:
            return
        if self._before is not None:
            # What was tried cannot be compared any more.
            self._apply(self._before)
            self._before = None
        self._usual_at[before] = self._usual
        self._unjudged = 0 if now in self._usual_at else _PATIENCE
        self._usual = self._mean = self._usual_at.get(now, self._usual)
        self._slow_run = 0

    def _get_used_to(self, slowness: float) -> None:
        """Learn what is usual at a new depth: the fastest of its first steps."""
        first = self._unjudged == _PATIENCE
        self._usual = self._mean = slowness if first else min(self._usual, slowness)
        self._unjudged -= 1

    def _judge(self, slowness: float, seconds: float) -> None:
        self._mean += _AVERAGE * (min(slowness, _FAR * self._usual) - self._mean)
        is_slow = slowness > _SLOW * self._usual
        self._slow_run = max(0, self._slow_run + (1 if is_slow else -1))
        is_due = self._since_trial > self._wait
        urgent = slowness > _VERY_SLOW * self._usual or self._slow_run >= _PATIENCE
        stalls = is_due and self._mean > _STALLING * self._usual
        if self.n_threads > 1 and (urgent or stalls or (is_due and self._doubtful)):
            level = self._mean if stalls and not urgent else slowness
            self._begin_trial(level, seconds, self._neighbour(1))
        elif self.n_threads < self._counts[0] and is_due:
            self._begin_trial(self._usual, 0.0, self._neighbour(-1))
        elif not is_slow or self.n_threads == 1:
            self._usual += _FOLLOW * (min(slowness, _SLOW * self._usual) - self._usual)

    def _neighbour(self, offset: int) -> int:
        return self._counts[self._counts.index(self.n_threads) + offset]

    def _begin_trial(self, slowness: float, seconds: float, n_threads: int) -> None:
        self._before, self._found = self.n_threads, {self.n_threads: slowness}
        self._trial_seconds = seconds
        self._try(n_threads)

    def _try(self, n_threads: int) -> None:
        self._trial = []
        self._apply(n_threads)

    def _observe_trial(self, before: int, slowness: float, seconds: float) -> None:
        self._trial.append(slowness)
        self._trial_seconds += seconds
        is_beyond = slowness > self._trial_limit(before)
        if len(self._trial) < _TRIAL_STEPS and not is_beyond:
            return
        fastest = min(self._found.values())
        result = slowness if is_beyond else median(self._trial)
        self._found[self.n_threads] = result
        goes_down = 1 < self.n_threads < before
        if goes_down and self._goes_on(result, fastest, is_beyond):
            self._try(self._neighbour(1))
        else:
            self._end_trial(before)

    def _trial_limit(self, before: int) -> float:
        """A step slower than this says enough of a count."""
        goes_down = self.n_threads < before
        if goes_down and not self._compares_all:
            return _VERY_SLOW * self._usual
        return (_FAR if goes_down else _SLOW) * min(self._found.values())

    @property
    def _compares_all(self) -> bool:
        """Whether it is in doubt what slow is at all."""
        return self._doubtful and not self._trusted

    def _goes_on(self, result: float, fastest: float, is_beyond: bool) -> bool:
        """Whether still fewer threads are tried, after a count and the `fastest` before it.

        Not where a step is no longer slow, nor where fewer threads made it no faster; but threads
        that spin are not faster before the last of them is gone. Where it is in doubt what slow
        is, until one is slower by far than the fastest.
        """
        if self._compares_all:
            return not is_beyond
        spins = is_beyond or result > _VERY_SLOW
        is_slow = result > _SLOW * self._usual
        return spins or (is_slow and result < _BETTER * fastest)

    def _end_trial(self, before: int) -> None:
        """Keep the count that was clearly the fastest."""
        fastest = min(self._found, key=lambda n_threads: self._found[n_threads])
        if self._found[fastest] < _BETTER * self._found[before]:
            _logger.info("decoding with %d threads: faster than %d now", fastest, before)
            affordable = _WAIT_AFTER_SUCCESS * self._trial_seconds
            self._wait = min(_LONGEST_WAIT_SECONDS, max(_FIRST_WAIT_SECONDS, affordable))
        else:
            fastest = before
            affordable = _WAIT_AFTER_FAILURE * self._trial_seconds
            doubled = min(_LONGEST_WAIT_SECONDS, max(_FIRST_WAIT_SECONDS, 2 * self._wait))
            self._wait = max(affordable, doubled)
        self._usual = self._mean = self._found[fastest]
        self._usual_at.clear()
        in_doubt = self._doubtful or self._usual > _SLOW
        self._doubtful = in_doubt and fastest == self._counts[0]
        self._before = None
        self._slow_run, self._since_trial = 0, 0.0
        if fastest != self.n_threads:
            self._apply(fastest)

    def _apply(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._set_threads(n_threads)
