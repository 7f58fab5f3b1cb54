"""One set of parameters for each sampler and each option, and random mixtures of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from fake_engine import Row

from copyspec_edge.arrays import Tokens
from copyspec_edge.sampling.params import SamplingParams

_OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
_PENALTIES = {"repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.4}
_DRY = {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_sequence_breakers": ()}

SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "default": {},
    "temperature": {"temperature": 1.4, **_OPEN},
    "dynamic temperature": {"dynatemp_range": 0.6, "dynatemp_exponent": 1.5, **_OPEN},
    "top k": {**_OPEN, "top_k": 3},
    "top p": {**_OPEN, "top_p": 0.6},
    "min p": {**_OPEN, "min_p": 0.3},
    "typical p": {**_OPEN, "typical_p": 0.6},
    "xtc": {**_OPEN, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    "top n sigma": {**_OPEN, "top_n_sigma": 1.0},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 2.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 2.0},
    "repeat penalty": {"repeat_penalty": 1.5},
    "frequency penalty": {"frequency_penalty": 2.0},
    "presence penalty": {"presence_penalty": 1.5, "penalty_last_n": -1},
    "dry": _DRY,
    "greedy with penalties": {"temperature": 0.0, **_PENALTIES, "penalty_last_n": 5},
    "greedy with dry": {"temperature": 0.0, **_DRY, "dry_penalty_last_n": 20},
    "mirostat 2 with penalties": {"mirostat": 2, **_PENALTIES},
    "all filters": {
        **_PENALTIES,
        **_DRY,
        "top_n_sigma": 3.0,
        "top_k": 12,
        "typical_p": 0.95,
        "top_p": 0.95,
        "min_p": 0.01,
        "xtc_probability": 0.3,
        "dynatemp_range": 0.3,
    },
}


def nudge(tokens: Tokens, row: Row) -> None:
    """Makes likelier what all committed tokens decide."""
    row[int(tokens.sum()) % len(row)] += 4.0


def roll(tokens: Tokens, row: Row) -> Row:
    """Another row, by the number of committed tokens."""
    return np.roll(row, len(tokens) % 3)


def after(n_tokens: int) -> Callable[[tuple[int, ...], str], bool]:
    """Stops after so many tokens, or behind a text of as many characters."""
    return lambda token_ids, text: len(token_ids) >= n_tokens or len(text) >= n_tokens


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing else": {"max_tokens": 16},
    "limits": {"max_tokens": 7, "logprobs": 0},
    "logprobs": {"max_tokens": 16, "logprobs": 3},
    "stop strings": {"max_tokens": 16, "stop": ("ab", "c", "\n"), "logprobs": 1},
    "processors": {"max_tokens": 16, "logits_processors": (nudge, roll)},
    "bias": {"max_tokens": 16, "logit_bias": {3: 2.5, 5: -np.inf, 7: -1.0}},
    "stopping": {"max_tokens": 16, "stopping": (after(9),)},
}
# Of models with a real vocabulary.
GRAMMAR = 'root ::= ([a-d ]+ ("," | "é" | "한"))+ [a-z]+ "."'
SCHEMA = {"type": "array", "items": {"enum": ["ab", "cd", 1]}}
GRAMMAR_OPTIONS: dict[str, dict[str, Any]] = {
    "grammar": {"max_tokens": 16, "grammar": GRAMMAR, "logprobs": 2},
    "schema": {"max_tokens": 16, "json_schema": SCHEMA},
    "grammar and processors": {
        "max_tokens": 16,
        "grammar": GRAMMAR,
        "logits_processors": (nudge,),
        "logit_bias": {3: 1.0},
    },
}


class HiccupError(RuntimeError):
    """A callback of the user's that fails."""


class Hiccup:
    """A logits processor or stopping criterion that does nothing until it fails.

    Attributes:
        fails_at: with how many tokens.
    """

    def __init__(self) -> None:
        self.fails_at: int | None = None

    def __call__(self, tokens: Sequence[int] | Tokens, row_or_text: object) -> Any:
        if self.fails_at is not None and len(tokens) >= self.fails_at:
            raise HiccupError("injected: a callback failed")


def any_params(rng: random.Random, alphabet: str, *, grammars: bool) -> SamplingParams:
    """Any samplers and options together."""
    mixture: dict[str, Any] = {"temperature": rng.choice([0.0, 0.7, 1.0, 2.0])}
    for name in rng.sample(list(SAMPLERS), rng.choice([0, 1, 1, 2, 3])):
        mixture |= SAMPLERS[name]
    for name in rng.sample(list(OPTIONS), rng.choice([0, 0, 1, 2, 3])):
        mixture |= OPTIONS[name]
    if grammars and rng.random() < 0.2:
        mixture |= GRAMMAR_OPTIONS[rng.choice(list(GRAMMAR_OPTIONS))]
    stops = ["".join(rng.choices(alphabet, k=rng.choice([1, 2, 2, 3]))) for _ in range(3)]
    return replace(
        SamplingParams(**mixture),
        seed=rng.randrange((1 << 32) - 1),
        max_tokens=rng.choice([None, 1, 2, 8, 30]),
        stop=tuple(stops[: rng.choice([0, 0, 1, 2, 3])]),
    )
