"""llama.cpp's samplers through the chain: what each does, and that no value of them can crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_vocab import bare_vocab

from copyspec_edge import Model
from copyspec_edge.arrays import as_tokens
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import make_sampler
from copyspec_edge.sampling.selectors import ChainSampler, is_greedy

Row = npt.NDArray[np.float32]
N_VOCAB = 12
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
GREEDY = SamplingParams(temperature=0)
OPEN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
EXTREME: list[dict[str, Any]] = [
    {"temperature": 1e-5},
    {"temperature": 2e-4},
    {"temperature": 1e30},
    {"dynatemp_range": 1e30},
    {"dynatemp_range": 2.0, "dynatemp_exponent": 1e30},
    {"top_n_sigma": 1e-30},
    {"top_n_sigma": 1e30},
    {"typical_p": 0.0},
    {"typical_p": 0.999},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0, "temperature": 0.0},
    {"mirostat": 1, "mirostat_tau": 0.0},
    {"mirostat": 1, "mirostat_tau": 1e30, "mirostat_eta": 1.0},
    {"mirostat": 2, "mirostat_tau": 0.0},
    {"mirostat": 2, "mirostat_tau": 1e30, "mirostat_eta": 1.0},
    {"repeat_penalty": 100.0, "penalty_last_n": -1},
    {"repeat_penalty": 0.01},
    {"frequency_penalty": 100.0, "presence_penalty": -100.0, "penalty_last_n": 1 << 30},
    {"dry_multiplier": 1e30, "dry_base": 1e30, "dry_allowed_length": 0},
    {"dry_multiplier": 1.0, "dry_penalty_last_n": 1 << 30},
    {"dry_multiplier": 1.0, "dry_allowed_length": 1 << 30},
]


def rows(n: int, seed: int = 0) -> Row:
    return np.random.default_rng(seed).normal(0, 3, (n, N_VOCAB)).astype(np.float32)


def sampler(params: SamplingParams, prompt: list[int] = PROMPT, n_ctx: int = 64) -> ChainSampler:
    return ChainSampler(params, bare_vocab(N_VOCAB), as_tokens(prompt), n_ctx)


def draw(params: SamplingParams, n: int = 200, bias: Row | None = None) -> list[int]:
    chosen, chain = [], sampler(params)
    for row in rows(n):
        chosen.append(chain.choose(row if bias is None else row + bias))
        chain.accept(chosen[-1])
    return chosen


@pytest.mark.parametrize("extreme", EXTREME, ids=str)
@pytest.mark.parametrize("banned", [False, True])
def test_the_ends_of_all_ranges_give_tokens(extreme: dict[str, Any], banned: bool) -> None:
    bias = np.zeros(N_VOCAB, np.float32)
    if banned:
        bias[:4] = -np.inf
        bias[4:6] = -1e9
    chosen = draw(replace(OPEN, **extreme), bias=bias)
    assert all(0 <= token < N_VOCAB for token in chosen)
    assert not (banned and {0, 1, 2, 3} & set(chosen))


ON: dict[str, dict[str, Any]] = {
    "dynatemp": {"dynatemp_range": 0.9},
    "typical": {"typical_p": 0.3},
    "xtc": {"xtc_probability": 0.9, "xtc_threshold": 0.05},
    "top-n-sigma": {"top_n_sigma": 0.5},
    "mirostat": {"mirostat": 1, "mirostat_tau": 1.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 1.0},
    "repeat": {"repeat_penalty": 2.0},
    "frequency": {"frequency_penalty": 2.0},
    "presence": {"presence_penalty": 2.0},
    "dry": {"dry_multiplier": 5.0, "dry_allowed_length": 1},
}


@pytest.mark.parametrize("name", ON)
def test_each_sampler_changes_what_is_drawn(name: str) -> None:
    assert draw(replace(OPEN, **ON[name])) != draw(OPEN)


@pytest.mark.parametrize("name", ON)
def test_the_same_seed_and_tokens_give_the_same_draws(name: str) -> None:
    params = replace(OPEN, **ON[name])
    assert draw(params) == draw(params)


def penalized(row: Row, recent: list[int], params: SamplingParams) -> Row:
    """The penalties as llama.cpp documents them."""
    row = row.copy()
    for token in set(recent):
        row[token] *= params.repeat_penalty if row[token] <= 0 else 1 / params.repeat_penalty
        row[token] -= recent.count(token) * params.frequency_penalty + params.presence_penalty
    return row


@pytest.mark.parametrize("last_n", [1, 3, 64, -1])
def test_penalties_count_the_recent_tokens_the_prompt_included(last_n: int) -> None:
    params = replace(
        GREEDY,
        repeat_penalty=1.5,
        frequency_penalty=0.7,
        presence_penalty=0.4,
        penalty_last_n=last_n,
    )
    chain, seen = sampler(params), list(PROMPT)
    for row in rows(100):
        token = chain.choose(row)
        recent = seen if last_n < 0 else seen[-last_n:]
        assert token == int(penalized(row, recent[-64:], params).argmax())
        chain.accept(token)
        seen.append(token)


def test_dry_penalizes_what_would_repeat_a_sequence() -> None:
    row = np.zeros(N_VOCAB, np.float32)
    row[3], row[5] = 3.0, 2.0
    dry = replace(GREEDY, dry_multiplier=5.0, dry_allowed_length=2)
    assert sampler(GREEDY).choose(row) == 3
    assert sampler(dry).choose(row) == 5
    assert sampler(replace(dry, dry_allowed_length=9)).choose(row) == 3


def test_a_sequence_breaker_ends_what_dry_looks_at(smollm2: Model) -> None:
    text = " one two three. one two"
    prompt = smollm2.tokenize(text)
    three = int(smollm2.tokenize(" three")[0])
    row = np.zeros(smollm2._vocab.n_tokens, np.float32)
    row[three], row[100] = 3.0, 2.0
    dry = replace(GREEDY, dry_multiplier=5.0, dry_allowed_length=2)
    for breakers, chosen in (((), 100), ((" two",), three)):
        params = replace(dry, dry_sequence_breakers=breakers)
        assert make_sampler(params, smollm2._vocab, prompt, 64).choose(row) == chosen


@pytest.mark.parametrize("breaker", ["x" * 41, "a\0"])
def test_breakers_llama_cpp_would_cut_are_refused(smollm2: Model, breaker: str) -> None:
    params = replace(GREEDY, dry_multiplier=1.0, dry_sequence_breakers=(breaker,))
    with pytest.raises(InvalidInputError, match="breaker"):
        make_sampler(params, smollm2._vocab, as_tokens([]), 64)


def test_more_breakers_than_can_be_looked_for_are_refused(smollm2: Model) -> None:
    params = replace(GREEDY, dry_multiplier=1.0, dry_sequence_breakers=tuple(map(str, range(65))))
    with pytest.raises(InvalidInputError, match="64 DRY sequence breakers"):
        make_sampler(params, smollm2._vocab, as_tokens([]), 64)


def test_what_looks_back_is_not_greedy_at_temperature_0() -> None:
    assert is_greedy(GREEDY)
    assert is_greedy(replace(GREEDY, mirostat=2, top_k=1, dynatemp_range=1.0))
    assert not is_greedy(replace(GREEDY, presence_penalty=0.1))
    assert not is_greedy(replace(GREEDY, dry_multiplier=0.1))
    assert is_greedy(replace(GREEDY, presence_penalty=0.1, penalty_last_n=0))


def test_at_temperature_0_the_likeliest_that_is_left_is_taken() -> None:
    for row in rows(50):
        assert sampler(replace(GREEDY, frequency_penalty=-0.5), prompt=[]).choose(row) == int(
            row.argmax()
        )


@pytest.mark.parametrize(
    ("on", "n_decisive"),
    [
        ({}, 40),
        ({"top_k": 0}, None),
        ({"temperature": 0.0}, 1),
        ({"repeat_penalty": 1.2}, 104),
        ({"repeat_penalty": 1.2, "penalty_last_n": -1}, None),
        ({"frequency_penalty": -1.0}, None),
        ({"top_n_sigma": 1.0}, None),
        ({"dry_multiplier": 1.0}, None),
        ({"mirostat": 2}, None),
    ],
    ids=str,
)
def test_a_choice_depends_on_so_many_likeliest_tokens(
    on: dict[str, Any], n_decisive: int | None
) -> None:
    params = SamplingParams(**{"seed": 3, **on})
    vocab, n_vocab = bare_vocab(400), 400
    row = np.random.default_rng(1).normal(0, 3, n_vocab).astype(np.float32)
    prompt = as_tokens(np.argsort(-row)[:30])
    assert ChainSampler(params, vocab, prompt, 64).n_decisive == n_decisive
    if n_decisive:
        others = row.copy()
        others[np.argsort(-row)[n_decisive:]] = -np.inf
        first, second = (ChainSampler(params, vocab, prompt, 64) for _ in range(2))
        assert [first.choose(row) for _ in range(50)] == [second.choose(others) for _ in range(50)]
