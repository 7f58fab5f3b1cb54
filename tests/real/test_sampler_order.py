"""All samplers together, in llama.cpp's order, against an oracle that shares no code with them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_vocab import bare_vocab
from sampler_oracle import ORDER, distribution

from copyspec_edge.arrays import as_tokens
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import make_sampler

N_VOCAB, N_DRAWS, N_CASES = 16, 3000, 60
# What is likelier than this is drawn at least once, but for one time in ten million.
LIKELY = 0.006
Case = tuple[npt.NDArray[np.float32], SamplingParams, list[int]]


def any_case(seed: int) -> Case:
    """A row, most of the samplers together, and tokens that came before."""
    rng = random.Random(seed)
    options: dict[str, Any] = {
        "logit_bias": {rng.randrange(N_VOCAB): rng.uniform(-4, 4) for _ in range(4)},
        "repeat_penalty": rng.uniform(1.1, 2.0),
        "frequency_penalty": rng.uniform(-0.5, 1.0),
        "presence_penalty": rng.uniform(-0.5, 1.0),
        "dry_multiplier": rng.uniform(1.0, 5.0),
        "top_n_sigma": rng.uniform(0.8, 1.6),
        "top_k": rng.randrange(4, N_VOCAB),
        "typical_p": rng.uniform(0.5, 0.98),
        "top_p": rng.uniform(0.6, 0.98),
        "min_p": rng.uniform(0.02, 0.3),
        "xtc_probability": rng.uniform(0.2, 0.8),
    }
    off: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    left_out = rng.sample(list(options), rng.randrange(2, 7))
    params = SamplingParams(
        **{name: value for name, value in options.items() if name not in left_out},
        **{name: value for name, value in off.items() if name in left_out},
        penalty_last_n=rng.choice([3, 8, 64]),
        dry_base=1.5,
        dry_allowed_length=rng.choice([1, 2]),
        dry_sequence_breakers=(),
        xtc_threshold=rng.uniform(0.05, 0.25),
        temperature=rng.uniform(0.6, 1.8),
        seed=seed,
    )
    row = np.random.default_rng(seed).normal(0, 1.5, N_VOCAB).astype(np.float32)
    row[:6] += 1.5
    return row, params, [rng.randrange(6) for _ in range(24)]


@pytest.mark.parametrize("seed", range(N_CASES))
def test_draws_are_distributed_as_the_oracle_says(seed: int) -> None:
    row, params, recent = any_case(seed)
    expected = distribution(row, params, recent)
    sampler = make_sampler(params, bare_vocab(N_VOCAB), as_tokens(recent), 64)
    seen = np.bincount([sampler.choose(row) for _ in range(N_DRAWS)], minlength=N_VOCAB)
    assert set(np.flatnonzero(seen)) <= set(np.flatnonzero(expected))
    assert set(np.flatnonzero(expected > LIKELY)) <= set(np.flatnonzero(seen))
    deviation = np.sqrt(N_DRAWS * expected * (1 - expected)) + 1
    assert np.all(np.abs(seen - N_DRAWS * expected) < 6 * deviation)


@pytest.mark.parametrize("at", range(len(ORDER) - 1))
def test_the_cases_notice_when_two_neighbours_are_swapped(at: int) -> None:
    swapped = list(ORDER)
    swapped[at : at + 2] = reversed(swapped[at : at + 2])
    far = 0
    for seed in range(N_CASES):
        expected, other = (distribution(*any_case(seed), order) for order in (ORDER, swapped))
        deviation = np.sqrt(N_DRAWS * expected * (1 - expected)) + 1
        far += bool(np.any(N_DRAWS * np.abs(other - expected) > 12 * deviation))
    assert far
