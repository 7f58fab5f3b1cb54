"""Is exact=True exact over long conversations, and at what cost? python -m bench.exactness MODEL.

Run it, on all the files there are, when batches, certificates or the version of llama.cpp change.
Recorded answers (scripted edits of Python's own sources) are decoded as conversations of several
turns, from 16 tokens of context up to its end. All logits rows are compared between decoding
without copying and with it; every second conversation has forced drafts that are often wrong. The
speed is taken apart from that: exact and default settings, without and with copying, in turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path

import numpy as np

from copyspec_edge import Model, Session, Settings, Step
from copyspec_edge.arrays import Tokens
from copyspec_edge.decoding.history import History
from copyspec_edge.decoding.loop import decode
from copyspec_edge.drafting.drafter import Drafter, NoDrafter
from copyspec_edge.evaluation.built_in import built_in
from copyspec_edge.evaluation.live import RecordedSampler
from copyspec_edge.evaluation.traces import TokenTrace, tokenized
from copyspec_edge.exactness import ForcedDrafter, Turn, Twins, summarize

_FIRST_PROMPT = 16


def recorded(prompt: Tokens, answer: Tokens, n_ctx: int) -> Turn:
    """A turn whose answer is known; its last token ends it."""
    return Turn(prompt, lambda: RecordedSampler(answer), {int(answer[-1])}, n_ctx)


def conversations(
    traces: Iterable[TokenTrace], *, n_ctx: int, n_tokens: int, end: int
) -> Iterator[list[Turn]]:
    """Conversations that nearly fill the context, until they have `n_tokens` of answers."""
    said, used, turns = 0, 0, list[Turn]()
    for trace in cycle(traces):
        answer = np.append(trace.output, np.int32(end))
        prompt = trace.prompt if turns else trace.prompt[-_FIRST_PROMPT:]
        if used + len(prompt) + len(answer) >= n_ctx:
            yield turns
            used, turns = 0, []
            if said >= n_tokens:
                return
            prompt = trace.prompt[-_FIRST_PROMPT:]
        turns.append(recorded(prompt, answer, n_ctx))
        used += len(prompt) + len(answer)
        said += len(answer)


def run(session: Session, turns: list[Turn], drafter: Drafter) -> list[Step]:
    """Decode a conversation from its beginning; what is in the cache stays there between turns."""
    history = History(session.n_ctx)
    session.engine.truncate(0)
    drafter.reset()
    steps: list[Step] = []
    for turn in turns:
        history.extend(turn.prompt)
        steps += decode(
            session.engine,
            history,
            drafter=drafter,
            sampler=turn.sampler(),
            cost=session.cost,
            eog=turn.eog,
            max_tokens=turn.max_tokens,
        )
    return steps


def compare(model: Model, talks: list[list[Turn]]) -> dict[str, object]:
    """Compare the rows of all conversations without copying and with it."""
    found = []
    with model.session(copy=False) as plain, model.session() as other:
        twins = Twins(plain, other, model.detokenize)
        for index, turns in enumerate(talks):
            twins.begin()
            for turn in turns:
                said = twins.ask(turn)
                if index % 2:
                    forced = ForcedDrafter(said, other.engine.n_vocab, seed=index)
                    found.append(twins.repeat("forced", forced, other.cost))
                else:
                    found.append(twins.repeat("copied", other.drafter, other.cost))
    return {
        **summarize(found),
        "drafted": sum(comparison.drafted for comparison in found),
        "accepted": sum(comparison.accepted for comparison in found),
    }


def speeds(sessions: dict[str, Session], talks: list[list[Turn]]) -> dict[str, float]:
    """Tokens per second behind the prompts, of each session without and with copying, in turns."""
    seconds: dict[str, float] = {}
    tokens: dict[str, int] = {}
    names = [(name, copies) for name in sessions for copies in (False, True)]
    for index, turns in enumerate(talks):
        for turn in range(len(names)):
            name, copies = names[(turn + index) % len(names)]
            session = sessions[name]
            drafter = session.drafter if copies else NoDrafter()
            steps = run(session, turns, drafter)
            later = [step for step in steps if step.evaluated == 1]
            key = f"{name}, {'copying' if copies else 'plain'}"
            seconds[key] = seconds.get(key, 0.0) + sum(step.seconds for step in later)
            tokens[key] = tokens.get(key, 0) + sum(len(step.tokens) for step in later)
    return {key: tokens[key] / seconds[key] for key in seconds}


def measure(path: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Everything about one model."""
    started = time.perf_counter()
    settings = Settings(n_ctx=arguments.ctx, n_threads=arguments.threads)
    exact = Settings(n_ctx=arguments.ctx, n_threads=arguments.threads, exact=True)
    with Model.load(path, exact) as model, Model.load(path, settings) as default:
        loading = time.perf_counter() - started
        end = min(model.eog_tokens, default=0)
        traces = tokenized(built_in(6), model, arguments.ctx // 2)
        n_ctx = arguments.ctx
        if not traces:
            raise SystemExit(f"no recorded answer fits into a context of {n_ctx}")

        def talks(n_tokens: int) -> list[list[Turn]]:
            return list(conversations(traces, n_ctx=n_ctx, n_tokens=n_tokens, end=end))

        found = compare(model, talks(arguments.tokens))
        with model.session() as session, default.session() as other:
            rates = speeds({"exact": session, "default": other}, talks(arguments.speed_tokens))
        certificate = model.certificate
        return {
            "model": path.name,
            "description": model.description,
            "loading_seconds": loading,
            "certificate": certificate.as_dict() if certificate else None,
            **found,
            "tokens_per_second": rates,
        }


def main() -> None:
    """Parse the command line and print one JSON line a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ctx", type=int, default=3072)
    parser.add_argument("--tokens", type=int, default=5000, help="rows to compare; default: 5000")
    parser.add_argument("--speed-tokens", type=int, default=2000)
    arguments = parser.parse_args()
    for path in arguments.models:
        print(json.dumps(measure(path, arguments)), flush=True)


if __name__ == "__main__":
    main()
