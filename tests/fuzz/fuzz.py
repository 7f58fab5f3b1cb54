"""Random sessions against a plain oracle: turns, rewinds, cancels, limits, drafts and faults.

    export PYTHONPATH=.:tests/support
    python tests/fuzz/fuzz.py --minutes 60 [--real MODEL.gguf [--exact]] [--seed N] [--requests N]

An episode is one model with a few sessions and some dozens of operations on them. Whatever happens,
each answer must be the one that `oracle.plainly` gives for the same prompt and parameters, as far
as it got; messages, history, cache and statistics must fit to it. An episode depends on its seed
only, so the command printed with a failure repeats it.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fuzz_real import RealWorld
from fuzz_talker import Talker, caught
from fuzz_worlds import FakeWorld, World
from memory_use import growth

N_OPERATIONS = 30


def run_episode(world: World, seed: int) -> Counter[str]:
    """Some dozens of operations on up to three sessions; how often what came about."""
    rng = random.Random(seed)
    talkers = [Talker(world, random.Random(seed + n)) for n in range(rng.randint(1, 3))]
    try:
        if rng.random() < 0.2:
            in_parallel([partial(act_often, talker) for talker in talkers])
        else:
            for _ in range(N_OPERATIONS):
                rng.choice(talkers).act()
    except Exception as error:
        history = "\n".join(line for talker in talkers for line in ["", *talker.log[-12:]])
        raise AssertionError(f"{error!r}\nrepeat: --minutes 0 --seed {seed}\n{history}") from error
    finally:
        for talker in talkers:
            talker.close()
        world.close()
    return sum((talker.seen for talker in talkers), Counter({"episodes": 1}))


def act_often(talker: Talker) -> None:
    for _ in range(N_OPERATIONS // 3):
        talker.act()


def in_parallel(actions: list[Callable[[], None]]) -> None:
    """Each in a thread of its own; raises the first failure."""
    failures: list[BaseException] = []
    threads = [threading.Thread(target=caught, args=(action, failures)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def fuzz(make_world: Callable[[int], World], *, seed: int, seconds: float) -> Counter[str]:
    """Episodes from `seed` on until the time is over, at least one; what they met."""
    seen: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    while not seen or time.monotonic() < ends:
        seen += run_episode(make_world(seed), seed)
        seed += 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=1.0, help="0: one episode")
    parser.add_argument("--seed", type=int, default=None, help="of the first episode")
    parser.add_argument("--real", type=Path, help="a small GGUF file instead of the fake engine")
    parser.add_argument("--exact", action="store_true", help="with --real: certified settings")
    parser.add_argument("--requests", type=int, help="measure the memory that so many keep instead")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"first seed: {seed}", flush=True)
    make_world = (
        partial(RealWorld.random, options.real, exact=options.exact)
        if options.real
        else FakeWorld.random
    )
    if options.requests:
        print(f"grown by {growth(make_world(seed), options.requests):,} bytes")
        return
    seen = fuzz(make_world, seed=seed, seconds=60 * options.minutes)
    print(", ".join(f"{n} {what}" for what, n in sorted(seen.items())))


if __name__ == "__main__":
    main()
