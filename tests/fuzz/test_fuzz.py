"""The fuzzer for a short time; `fuzz.py` itself runs for hours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fake_vocab import N_VOCAB
from fuzz import run_episode
from fuzz_real import RealWorld
from fuzz_worlds import FakeWorld, World
from memory_use import CAN_MEASURE, growth, resident_bytes
from tiny_archs import write_tiny_arch
from tiny_gguf import write_spelling_model, write_tiny_model

from copyspec_edge.arrays import Tokens
from copyspec_edge.decoding import loop as decoder
from copyspec_edge.sampling.grammar import Grammar
from copyspec_edge.sampling.sampler import Sampler
from copyspec_edge.sampling.verify import verify

MET = ("accepted", "cancelled", "errors", "length", "rewinds", "stop")
# 1,500 requests that each kept one native sampler would take 10 MB.
FLAT_BYTES = 4_000_000


def episodes(make_world: Callable[[int], World], seeds: range) -> Counter[str]:
    return sum((run_episode(make_world(seed), seed) for seed in seeds), Counter[str]())


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_random_sessions_on_the_fake_engine_say_what_plain_decoding_says(first_seed: int) -> None:
    met = episodes(FakeWorld.random, range(first_seed, first_seed + 10))
    assert min(met[what] for what in MET) > 3


@pytest.fixture(scope="module")
def chat_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama that can chat, with room for long contexts."""
    folder = tmp_path_factory.mktemp("fuzz")
    write_tiny_model(folder / "tiny.gguf", context=512)
    write_spelling_model(folder / "tiny.gguf", folder / "chat.gguf")
    return folder / "chat.gguf"


@pytest.mark.parametrize("first_seed", [0, 5])
def test_random_sessions_on_a_tiny_model_say_what_plain_decoding_says(
    chat_path: Path, first_seed: int
) -> None:
    met = episodes(partial(RealWorld.random, chat_path), range(first_seed, first_seed + 5))
    assert min(met[what] for what in MET) > 0


@pytest.mark.parametrize("arch", ["gemma3", "lfm2", "mamba2"])
def test_random_sessions_on_other_architectures_say_what_plain_decoding_says(
    arch: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{arch}.gguf"
    write_tiny_arch(path, arch, extra={"vocab_size": N_VOCAB})
    met = episodes(partial(RealWorld.random, path), range(4))
    assert min(met[what] for what in ("accepted", "length", "stop")) > 0


def test_the_fuzzer_notices_a_verifier_that_believes_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def believe(draft: Tokens, rows: np.ndarray, sampler: Sampler, eog: Container[int]) -> Tokens:
        new = verify(draft, rows, sampler, eog)
        return draft[:1] if len(draft) and len(new) == 1 else new

    monkeypatch.setattr(decoder, "verify", believe)
    with pytest.raises(AssertionError, match="repeat: --minutes 0 --seed 3"):
        run_episode(FakeWorld.random(3), 3)


def test_the_fuzzer_notices_a_decode_that_ignores_what_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fake_engine.FakeEngine.truncate", lambda engine, length: None)
    with pytest.raises(AssertionError, match="repeat:"):
        episodes(FakeWorld.random, range(5))


needs_measure = pytest.mark.skipif(not CAN_MEASURE, reason="no /proc/self/statm to read here")


@needs_measure
def test_2000_requests_on_the_fake_engine_keep_no_memory() -> None:
    assert growth(FakeWorld.random(2), 2000) < FLAT_BYTES


@needs_measure
def test_2000_requests_on_a_tiny_model_keep_no_memory(chat_path: Path) -> None:
    world = RealWorld.random(chat_path, 0)
    try:
        assert growth(world, 2000) < FLAT_BYTES
    finally:
        world.close()


@needs_measure
def test_grammars_keep_no_memory(chat_path: Path) -> None:
    world = RealWorld(chat_path)
    rules = "".join(f'r{n} ::= "{n}" [a-z]+ | r{n + 1}\n' for n in range(200))
    draft = world.vocab.tokenize("7abc")
    started = 0
    for n in range(400):
        if n == 100:
            started = resident_bytes()
        Grammar(f'root ::= r0\n{rules}r200 ::= "."', world.vocab).admits(draft)
    world.close()
    assert resident_bytes() - started < FLAT_BYTES
