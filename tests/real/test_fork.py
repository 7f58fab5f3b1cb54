"""A process that forks after it has loaded a model, as preforking servers do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import RunPython

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

# Loads a model and answers, so that llama.cpp's threads run. Then each argument is run in a child.
SCRIPT = """
import os, sys
from copyspec_edge import CopySpecError, Model, SamplingParams, Settings

extra_bufts = sys.argv[2] == "True"
settings = Settings(n_threads=2, calibrate=False, n_ctx=64, use_extra_bufts=extra_bufts)
model = Model.load(sys.argv[1], settings)
params = SamplingParams(temperature=0, max_tokens=4)
session, other = model.session(), model.session(wait=True)
session.complete([1, 2, 3], params=params)
model.complete([1, 2, 3], params=params)
unfinished = other.stream_completion([1, 2, 3], params=params)
next(unfinished)

def attempt(action):
    try:
        action()
    except CopySpecError as error:
        print(type(error).__name__, error)

for script in sys.argv[3:]:
    child = os.fork()
    if not child:
        exec(script)
        sys.exit()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, (script, status)
print("parent", len(unfinished.finish().token_ids))
model.close()
"""

USES = """
attempt(lambda: session.complete([4, 5], params=params))
attempt(lambda: other.complete([4, 5], params=params))
attempt(lambda: model.complete([4, 5], params=params))
attempt(lambda: next(unfinished))
attempt(lambda: model.session())
attempt(lambda: model.tokenize("a"))
attempt(lambda: model.detokenize([1]))
attempt(lambda: model.description)
"""

ENDS = (
    "session.close(); other.close(); model.close(); model.close()",
    "model.close(cancel=True)",
    "unfinished.close()",
    "del session, other, unfinished; del model",
    "model.__exit__(None, None, None); sys.exit(0)",
    "pass",
)


@pytest.fixture
def run_children(
    run_python: RunPython, tiny_path: Path, extra_bufts: bool
) -> Callable[..., list[str]]:
    """Run scripts in forked children, and get what they print."""

    def run(*children: str) -> list[str]:
        done = run_python("-W", "ignore", "-c", SCRIPT, str(tiny_path), str(extra_bufts), *children)
        assert (done.returncode, done.stderr) == (0, "")
        *said, parent = done.stdout.splitlines()
        assert parent == "parent 4"
        return said

    return run


def test_every_use_in_a_forked_child_says_what_to_do(
    run_children: Callable[..., list[str]],
) -> None:
    said = run_children(USES)
    assert len(said) == USES.count("attempt")
    for line in said:
        assert line.startswith("SessionClosedError")
        assert "load it there, or start the process with multiprocessing's 'spawn'" in line


def test_a_forked_child_can_close_or_just_end(run_children: Callable[..., list[str]]) -> None:
    assert run_children(*ENDS) == []
