"""Whether many requests keep memory: the resident size of this process before and after."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

from every_option import any_params
from fuzz_worlds import CHOICES, World

_STATM = Path("/proc/self/statm")
CAN_MEASURE = _STATM.exists()


def resident_bytes() -> int:
    gc.collect()
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(world: World, n_requests: int) -> int:
    """Bytes by which the last three quarters of the requests made the process grow."""
    rng = random.Random(0)
    session, drafter = world.session()
    n_warm = n_requests // 4
    started = 0
    for n in range(n_requests):
        if n == n_warm:
            started = resident_bytes()
        if n % 100 == 0:
            session.close()
            session, drafter = world.session()
        drafter.choice = rng.choice([c for c in CHOICES if c in ("copy", "random", "none")])
        prompt = rng.choices(range(world.vocab.n_tokens), k=rng.choice([1, 4, 12]))
        params = any_params(rng, world.alphabet, grammars=world.grammars and n % 4 == 0)
        answer = session.stream_completion(prompt, params=params)
        for _, _ in zip(answer, range(rng.choice([1, 3, 6])), strict=False):
            pass
        del answer  # some of them unfinished
    grown = resident_bytes() - started
    session.close()
    return grown
