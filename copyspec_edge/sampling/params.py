"""SamplingParams: how tokens are chosen and when an answer ends. It knows ranges, not models."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.errors import InvalidInputError

LogitsProcessor = Callable[[Tokens, npt.NDArray[np.float32]], "npt.NDArray[np.float32] | None"]
StoppingCriterion = Callable[[Sequence[int], str], bool]

N_SEEDS = 0xFFFFFFFF
MAX_LOGPROBS = 100
_WHOLE = 1 << 30
_LARGEST = float(np.finfo(np.float32).max)
# Field -> lowest and highest value. Whole numbers have whole limits.
LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "dynatemp_range": (0.0, math.inf),
    "dynatemp_exponent": (0.0, math.inf),
    "top_k": (0, _WHOLE),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "top_n_sigma": (0.0, math.inf),
    "mirostat": (0, 2),
    "mirostat_tau": (0.0, math.inf),
    "mirostat_eta": (0.0, 1.0),
    "repeat_penalty": (0.01, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "penalty_last_n": (-1, _WHOLE),
    "dry_multiplier": (0.0, math.inf),
    "dry_base": (1.0, math.inf),
    "dry_allowed_length": (0, _WHOLE),
    "dry_penalty_last_n": (-1, _WHOLE),
    "seed": (0, N_SEEDS - 1),
    "max_tokens": (1, _WHOLE),
    "logprobs": (0, MAX_LOGPROBS),
}
_MAY_BE_NONE = ("seed", "max_tokens", "logprobs")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when an answer ends. Names and defaults are llama.cpp's.

    What is on acts in llama.cpp's order: logits processors, logit bias, penalties, DRY,
    top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, one draw; a grammar checks what
    was drawn.

    Attributes:
        temperature: 0 takes the likeliest token; higher is more random.
        dynatemp_range: let the temperature vary by so much with the entropy of the row.
        dynatemp_exponent: how entropy maps to temperature there.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens that together have this probability; 1 keeps all.
        min_p: keep tokens at least this likely relative to the likeliest; 0 keeps all.
        typical_p: locally typical sampling (arXiv 2202.00666); 1 is off.
        xtc_probability: how often XTC removes all but the least likely of the tokens above
            `xtc_threshold`; 0 is off.
        xtc_threshold: probability that makes a token one of XTC's.
        top_n_sigma: keep tokens within n standard deviations of the largest logit
            (arXiv 2411.07641); 0 is off.
        mirostat: 1 or 2 replaces all from top-n-sigma to the draw, but the temperature, by
            Mirostat (arXiv 2007.14966); 0 is off, as it is at temperature 0.
        mirostat_tau, mirostat_eta: its target entropy and learning rate.
        repeat_penalty: divides the logits of recent tokens; 1 is off.
        frequency_penalty: subtracted for each time a token is among the recent ones.
        presence_penalty: subtracted once if it is.
        penalty_last_n: how many tokens, prompt included, are recent; -1: all; 0: none.
        dry_multiplier: strength of the DRY penalty on repeating sequences; 0 is off.
        dry_base, dry_allowed_length: it grows by this base with each token of repetition beyond
            this length.
        dry_penalty_last_n: as `penalty_last_n`.
        dry_sequence_breakers: strings that end a sequence.
        logit_bias: added to the logits of these token ids; -inf bans one.
        grammar: GBNF whose `root` the answer must match.
        json_schema: JSON Schema, as a mapping or text, that the answer must match. Objects have no
            properties beyond those it names, unless it joins schemas or says so.
        logits_processors: each is called with the committed tokens, shape (n,), read-only, and a
            copy of the row of logits, shape (n_vocab,), and changes it or returns another.
        stopping: each is called after every token with the token ids, read-only, and the text of
            the answer so far; True ends it there, with finish reason "stop".
        logprobs: give the log-probability of each token and of so many likeliest ones.
        seed: from 0 to 2**32 - 2; None draws one.
        max_tokens: most tokens of an answer; None: up to the context limit.
        stop: strings that end the answer and are not part of it.

    Raises:
        InvalidInputError: a value out of its range.
    """

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    top_n_sigma: float = 0.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: str | Mapping[str, object] | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    stopping: tuple[StoppingCriterion, ...] = ()
    logprobs: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                object.__setattr__(self, name, _number(name, value, low, high))
        for name in ("stop", "dry_sequence_breakers"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        for name in ("logits_processors", "stopping"):
            object.__setattr__(self, name, _callables(name, getattr(self, name)))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.grammar is not None and self.json_schema is not None:
            raise InvalidInputError("choose one of grammar and json_schema")
        if self.grammar is not None and not isinstance(self.grammar, str):
            raise InvalidInputError(f"grammar must be GBNF text, not {self.grammar!r}")

    @property
    def penalizes(self) -> bool:
        """Whether earlier tokens change what is likely."""
        penalties = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty)
        return (penalties != (1.0, 0.0, 0.0) and self.penalty_last_n != 0) or self.uses_dry

    @property
    def uses_dry(self) -> bool:
        """Whether the DRY penalty is on."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0


def _number(name: str, value: object, low: float, high: float) -> int | float:
    """The value as Python's own number, be it a numpy one."""
    whole = isinstance(low, int)
    number = _as_whole(value) if whole else _as_float(value)
    if number is not None and low <= number <= high and math.isfinite(number):
        return number
    wanted = "a whole number" if whole else "a number"
    limits = f"from {low} to {high}" if math.isfinite(high) else f"of at least {low:g}"
    raise InvalidInputError(f"{name} must be {wanted} {limits}, not {value!r}")


def _as_whole(value: object) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _as_float(value: object) -> float | None:
    """As llama.cpp takes it: infinite where it is beyond the range of single precision."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return math.copysign(math.inf, number) if abs(number) > _LARGEST else number


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (tuple, list)):
        raise InvalidInputError(f"{name} must be a tuple of strings, not {value!r}")
    if not all(isinstance(text, str) and text for text in value):
        raise InvalidInputError(f"{name} strings must be text and not empty")
    return tuple(value)


def _callables(name: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, (tuple, list)) or not all(map(callable, value)):
        raise InvalidInputError(f"{name} must be a tuple of callables, not {value!r}")
    return tuple(value)


def _bias(value: object) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"logit_bias must map token ids to numbers, not {value!r}")
    bias: dict[int, float] = {}
    for key, added in value.items():
        token, number = _as_whole(key), _as_float(added)
        if token is None or token < 0 or number is None or not number < math.inf:
            raise InvalidInputError(
                f"logit_bias must map token ids to numbers or -inf, not {key!r} to {added!r}"
            )
        bias[token] = number
    return bias
