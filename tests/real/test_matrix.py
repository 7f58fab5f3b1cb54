"""Model kind × sampler × option, with every kind of draft forced: the answer is the plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from every_option import GRAMMAR_OPTIONS, OPTIONS, SAMPLERS
from fake_engine import TinyLanguage
from fake_vocab import BOT, END, N_VOCAB, USER
from fuzz_real import RealWorld
from fuzz_worlds import AnyDrafter, Choice, FakeWorld, World
from oracle import plainly, said
from tiny_archs import write_tiny_arch

from copyspec_edge import SamplingParams, Session
from copyspec_edge.arrays import as_tokens

PROMPT = [3, 4, 5, 6, 11, 3, 4, 5]
LANGUAGE = TinyLanguage(N_VOCAB, seed=3, unlikely=frozenset({END, USER, BOT}))
# The last one mixes the first two with others, of ends and of copies.
DRAFTS: tuple[Choice, ...] = ("right", "wrong", "any")
FAKES = ("attention", "no rollback", "checkpoints", "two rows at least")
# One of each way to undo tokens, and a llama with a tokenizer.
ARCHS = ("qwen3", "gemma3", "lfm2", "qwen35", "mamba2", "jamba", "rwkv7")
MODELS = (*FAKES, "llama", *ARCHS)
# What a sampler remembers has nothing to do with how tokens are undone.
FEW_SAMPLERS = ("greedy", "temperature", "mirostat 2 with penalties", "all filters")
CELLS = [
    *((model, sampler) for model in (*FAKES, "llama") for sampler in SAMPLERS),
    *((model, sampler) for model in ARCHS for sampler in FEW_SAMPLERS),
]

Open = tuple[World, Session, AnyDrafter]


def make_fake(model: str) -> World:
    match model:
        case "no rollback":
            return FakeWorld(LANGUAGE, n_ctx=64, can_truncate=False)
        case "checkpoints":
            return FakeWorld(LANGUAGE, n_ctx=64, can_truncate=False, checkpoints=True)
        case "two rows at least":
            return FakeWorld(LANGUAGE, n_ctx=64, min_rows=2, max_rows=4)
        case _:
            return FakeWorld(LANGUAGE, n_ctx=64)


@pytest.fixture(scope="module")
def arch_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny model of an architecture, for the fake vocabulary."""
    folder = tmp_path_factory.mktemp("matrix")

    def write(arch: str) -> Path:
        path = folder / f"{arch}.gguf"
        write_tiny_arch(path, arch, extra={"vocab_size": N_VOCAB})
        return path

    return write


@pytest.fixture(scope="module")
def opened(
    request: pytest.FixtureRequest, spelling_path: Path, arch_path: Callable[[str], Path]
) -> Iterator[Open]:
    """One session for all answers of a model, so that each begins where another ended."""
    if request.param in FAKES:
        world = make_fake(request.param)
    else:
        llama = request.param == "llama"
        world = RealWorld(spelling_path if llama else arch_path(request.param))
    session, drafter = world.session()
    yield world, session, drafter
    session.close()
    world.close()


@pytest.mark.parametrize(("opened", "sampler"), CELLS, indirect=["opened"])
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


@pytest.mark.parametrize("opened", MODELS, indirect=True)
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
