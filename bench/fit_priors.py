"""Fits what the accept model knows before it has seen anything: python -m bench.fit_priors.

Run it when the features of the accept model change. The model learns over the recorded traces as it
does while decoding, several times over in shuffled order, with nothing learned of single tokens,
since token ids mean something else to every model. `--cross` fits on every other task and replays
the rest, both ways round, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from copyspec_edge import Model, Settings
from copyspec_edge.drafting.acceptance import N_PRIOR, AcceptanceModel
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.evaluation.replay import geometric_mean, replay, replay_all
from copyspec_edge.evaluation.sources import Sources
from copyspec_edge.evaluation.traces import N_CTX, TokenTrace, tokenized
from copyspec_edge.tuning.curves import REPLAY_CURVES

PASSES = 4
# Sums of squared gradients above this would make the prior too stiff to unlearn.
CONFIDENCE = 10.0
PRIOR = Path(__file__).parent.parent / "copyspec_edge" / "drafting" / "acceptance_prior.json"


def blank() -> AcceptanceModel:
    """A model that knows nothing."""
    model = AcceptanceModel()
    model.weights[:] = 0.0
    model.squares[:] = 1.0
    return model


def fit(traces: Sequence[TokenTrace], eog_tokens: frozenset[int]) -> AcceptanceModel:
    """Learn the prior from traces."""
    model, order, shuffle = blank(), list(traces), random.Random(0)
    drafter = CopyDrafter(N_CTX, eog_tokens, model)
    for _ in range(PASSES):
        shuffle.shuffle(order)
        for trace in order:
            model.weights[N_PRIOR:] = 0.0
            model.squares[N_PRIOR:] = np.inf
            drafter.reset()
            replay(drafter, trace, REPLAY_CURVES["1b"])
    return model


def with_prior_of(fitted: AcceptanceModel) -> AcceptanceModel:
    """A model that starts from a fitted prior."""
    model = blank()
    model.weights[:N_PRIOR] = fitted.weights[:N_PRIOR]
    model.squares[:N_PRIOR] = np.clip(fitted.squares[:N_PRIOR], 1.0, CONFIDENCE)
    return model


def cross(traces: Sequence[TokenTrace], eog_tokens: frozenset[int]) -> None:
    """Print geometric means on tasks that were not fitted on."""
    tasks = sorted({trace.task for trace in traces})
    halves = (tasks[::2], tasks[1::2])
    priors = [fit([t for t in traces if t.task not in half], eog_tokens) for half in halves]
    for name, curve in REPLAY_CURVES.items():
        for carried in (False, True):
            speedups: list[float] = []
            for half, prior in zip(halves, priors, strict=True):
                unseen = [trace for trace in traces if trace.task in half]
                tallies = replay_all(
                    lambda prior=prior: CopyDrafter(  # type: ignore[misc]
                        N_CTX, eog_tokens, with_prior_of(prior)
                    ),
                    unseen,
                    curve,
                    carried=carried,
                )
                speedups += [tally.speedup(curve) for tally in tallies.values()]
            learner = "carried" if carried else "fresh"
            print(f"{name:<6}{learner:<9}{geometric_mean(speedups):.3f}", flush=True)


def main() -> None:
    """Parse the command line, fit, and write the prior."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("COPYSPEC_BENCH_DATA"))
    parser.add_argument("--per-task", type=int, default=96)
    parser.add_argument("--cross", action="store_true")
    parser.add_argument("-m", "--model", default="smollm2-135m", help="whose tokens to use")
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("pass --data or set COPYSPEC_BENCH_DATA")
    traces = Sources(data=Path(arguments.data), per_task=arguments.per_task).load()
    with Model.load(arguments.model, Settings(n_ctx=512)) as model:
        tokens, eog_tokens = tokenized(traces, model), model.eog_tokens
    if arguments.cross:
        cross(tokens, eog_tokens)
        return
    fitted = with_prior_of(fit(tokens, eog_tokens))
    prior = {
        "weights": [round(float(w), 4) for w in fitted.weights[:N_PRIOR]],
        "squares": [round(float(s), 3) for s in fitted.squares[:N_PRIOR]],
    }
    PRIOR.write_text(json.dumps(prior) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
