"""Tokens per second beside busy processes: python -m bench.busy.

Run it when the choice of threads changes. llama.cpp's threads spin, and one other busy process
stalls a decode on all cores. Each run is a process of its own: the command line as it is, without
copying so that only the threads matter, and llama.cpp as it is, with one thread for each core and
nothing else set.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from copyspec_edge.host import machine

_PROMPT = "Explain how a bicycle stays upright."
_PLAIN = """
import json, sys
from copyspec_edge import Model, SamplingParams, Settings
settings = Settings(n_threads=int(sys.argv[3]), n_ctx=1024, calibrate=False, flash_attn="off")
with Model.load(sys.argv[1], settings) as model, model.session(copy=False) as session:
    params = SamplingParams(temperature=0, max_tokens=int(sys.argv[2]))
    print(json.dumps({"stats": session.send(sys.argv[4], params=params).stats.as_dict()}))
"""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` processes computing."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def speed(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Tokens per second and threads at the end, of a command that prints the statistics."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    stats = json.loads(done.stdout)["stats"]
    return {"tokens_per_second": stats["tokens_per_second"], "threads": stats["threads"]}


def plain(model: str, n_tokens: int, threads: int) -> dict[str, float]:
    """llama.cpp with a fixed number of threads."""
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    arguments = [model, str(n_tokens), str(threads), _PROMPT]
    return speed([sys.executable, "-c", _PLAIN, *arguments], environment)


def ours(model: str, n_tokens: int) -> dict[str, float]:
    """The command line, choosing its threads by itself."""
    command = [sys.executable, "-m", "copyspec_edge", "generate", "-m", model, "--no-copy"]
    options = ["--ctx", "1024", "--temperature", "0", "--max-tokens", str(n_tokens), "--json"]
    return speed([*command, *options, "-p", _PROMPT], dict(os.environ))


def main() -> None:
    """Measure beside zero, one and two busy processes, and print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--plain-tokens", type=int, default=8, help="a stalled step takes seconds")
    arguments = parser.parse_args()
    cores = machine.physical_cores()
    ours(arguments.model, 8)
    one_core = plain(arguments.model, arguments.tokens, 1)["tokens_per_second"]
    print(json.dumps({"one_thread_alone": one_core}), flush=True)
    for count in range(3):
        with busy_processes(count):
            result = {
                "busy": count,
                "ours": ours(arguments.model, arguments.tokens),
                "llama.cpp": plain(arguments.model, arguments.plain_tokens, cores),
            }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
