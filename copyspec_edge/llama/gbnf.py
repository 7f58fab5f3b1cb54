"""GBNF: a grammar's text as llama.cpp's sampler, once llama.cpp can be given it without a crash."""

from __future__ import annotations

import re

import llama_cpp
import numpy as np

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.llama import log as native_log
from copyspec_edge.llama.samplers import NativeSampler
from copyspec_edge.llama.vocabulary import Vocab

# llama.cpp reads rules by recursion: beyond, the small stack of a thread would overflow.
_MOST_RULES = 2000
_DEEPEST = 500
_LONGEST = 1 << 20
# It takes time by the square of this.
_MOST_ALTERNATIVES = 20_000
# Strings and classes, of which one that is not closed goes on to the end, and comments.
_QUOTED = re.compile(
    r'"(?:\\.|[^"\\])*(?:"|\\?\Z)|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)|#[^\r\n]*', re.DOTALL
)
_REPETITION = re.compile(r"\{([^{}]*)\}")
# llama.cpp makes a rule of each, and writes a repeated string out as often.
_MOST_REPEATS = 20_000
_MOST_REPEATED = 2_000_000


def gbnf(text: str, vocab: Vocab) -> NativeSampler:
    """A sampler that sets to -inf what cannot come next by the rules, of which `root` is the first.

    Raises:
        InvalidInputError: not a grammar, or one llama.cpp cannot take.
    """
    encoded = _checked(text)
    native_log.clear_problems()
    pointer = llama_cpp.llama_sampler_init_grammar(vocab.native, encoded, b"root")
    if not pointer:
        reason = native_log.last_problems() or "no reason given"
        raise InvalidInputError(
            f"llama.cpp cannot use this grammar: {reason} (it prints where to stderr)"
        )
    return NativeSampler(pointer)


def _checked(text: str) -> bytes:
    """The grammar encoded, if llama.cpp can be given it without a crash or an endless loop."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"the grammar is not valid Unicode: {error}") from error
    if b"\0" in encoded or not text.strip() or len(encoded) > _LONGEST:
        raise InvalidInputError(f"a grammar is text of 1 to {_LONGEST} bytes without NUL")
    bare = _QUOTED.sub("", text)
    depth = np.cumsum([(c == "(") - (c == ")") for c in bare if c in "()"] or [0])
    if depth.max() > _DEEPEST or bare.count("::=") > _MOST_RULES:
        raise InvalidInputError(
            f"a grammar has at most {_MOST_RULES} rules and {_DEEPEST} nested parentheses"
        )
    if "<" in bare:
        raise InvalidInputError("a rule cannot name a token by <...>; spell its text")
    if bare.count("|") > _MOST_ALTERNATIVES:
        raise InvalidInputError(f"a grammar has at most {_MOST_ALTERNATIVES} alternatives")
    _check_repetitions(bare, longest=max(map(len, _QUOTED.findall(text)), default=1))
    return encoded


def _check_repetitions(bare: str, *, longest: int) -> None:
    """Refuse those that are too many for strings of up to `longest` characters."""
    total = 0
    for inside in _REPETITION.findall(bare):
        counts = re.findall(r"\d+", inside)
        if any(len(count) > len(str(_MOST_REPEATS)) for count in counts):
            total += _MOST_REPEATS + 1
        elif counts:
            total += int(counts[-1])
            if int(counts[0]) > int(counts[-1]):
                raise InvalidInputError("a repetition {m,n} in the grammar has m greater than n")
    if total > _MOST_REPEATS or total * longest > _MOST_REPEATED:
        raise InvalidInputError(
            f"repetitions in a grammar count to {_MOST_REPEATS} at most, and to less where its "
            "strings are long"
        )
