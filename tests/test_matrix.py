"""Model kind × sampler × option, with every kind of draft forced: the answer is the plain one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from every_option import GRAMMAR_OPTIONS, OPTIONS, SAMPLERS
from fake_engine import TinyLanguage
from fake_vocab import BOT, END, N_VOCAB, USER
from fuzz_real import RealWorld
from fuzz_worlds import AnyDrafter, Choice, FakeWorld, World
from oracle import plainly, said

from copyspec_edge import SamplingParams, Session
from copyspec_edge.history import as_tokens

PROMPT = [3, 4, 5, 6, 11, 3, 4, 5]
LANGUAGE = TinyLanguage(N_VOCAB, seed=3, unlikely=frozenset({END, USER, BOT}))
# The last one mixes the first two with others, of ends and of copies.
DRAFTS: tuple[Choice, ...] = ("right", "wrong", "any")
MODELS = ("attention", "no rollback", "two rows at least", "llama")

Open = tuple[World, Session, AnyDrafter]


def make_world(model: str, llama_path: Path) -> World:
    match model:
        case "llama":
            return RealWorld(llama_path)
        case "no rollback":
            return FakeWorld(LANGUAGE, n_ctx=64, can_truncate=False)
        case "two rows at least":
            return FakeWorld(LANGUAGE, n_ctx=64, min_rows=2, max_rows=4)
        case _:
            return FakeWorld(LANGUAGE, n_ctx=64)


@pytest.fixture(scope="module", params=MODELS)
def opened(request: pytest.FixtureRequest, spelling_path: Path) -> Iterator[Open]:
    """One session for all answers of a model, so that each begins where another ended."""
    world = make_world(request.param, spelling_path)
    session, drafter = world.session()
    yield world, session, drafter
    session.close()
    world.close()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_drafts_change_nothing_of_an_answer(opened: Open, sampler: str) -> None:
    world, session, drafter = opened
    options = {**OPTIONS, **GRAMMAR_OPTIONS} if world.grammars else OPTIONS
    for option in options.values():
        params = SamplingParams(**{"seed": 7, **SAMPLERS[sampler], **option})
        expected = plainly(world.reader(), world.vocab, PROMPT, params, world.n_ctx)
        drafter.expected = as_tokens([*PROMPT, *expected.token_ids])
        for drafter.choice in DRAFTS:
            reply = session.complete(PROMPT, params=params)
            assert said(reply) == expected, option
            assert len(reply.logprobs) == (0 if params.logprobs is None else len(reply.token_ids))


def test_the_matrix_meets_accepted_and_rejected_drafts_and_every_end(opened: Open) -> None:
    world, session, drafter = opened
    met = {"accepted": 0, "rejected": 0, "stop": 0, "length": 0}
    for option in OPTIONS.values():
        params = SamplingParams(**{"seed": 7, **option})
        expected = plainly(world.reader(), world.vocab, PROMPT, params, world.n_ctx)
        drafter.expected = as_tokens([*PROMPT, *expected.token_ids])
        for drafter.choice in DRAFTS:
            reply = session.complete(PROMPT, params=params)
            met["accepted"] += reply.stats.accepted_tokens
            met["rejected"] += reply.stats.drafted_tokens - reply.stats.accepted_tokens
            met[reply.finish_reason] += 1
    assert min(met.values()) > 2
