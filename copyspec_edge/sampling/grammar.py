"""Grammar: which tokens may come next. It knows GBNF, not what is done with a row."""

from __future__ import annotations

import re
import weakref

import llama_cpp
import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens
from copyspec_edge.errors import EngineError, InvalidInputError
from copyspec_edge.llama import Candidates, Vocab
from copyspec_edge.llama import log as native_log
from copyspec_edge.sampling.json_schema import schema_to_gbnf
from copyspec_edge.sampling.params import SamplingParams

# llama.cpp reads rules by recursion: beyond, the small stack of a thread would overflow.
_MOST_RULES = 2000
_DEEPEST = 500
_LONGEST = 1 << 20
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\r\n]*', re.DOTALL)
_REPETITION = re.compile(r"\{\s*(\d*)\s*,\s*(\d+)\s*\}")
_COUNT = re.compile(r"\{[\d\s,]*?(\d+)\s*,?\s*\}")
# llama.cpp makes a rule of each.
_MOST_REPEATS = 20_000
_NARROW = 64


class Grammar:
    """A GBNF grammar and how far the answer has come in it.

    Args:
        text: rules, one of them named `root`.
        vocab: of the model whose tokens spell the answer.

    Raises:
        InvalidInputError: not a grammar, or one llama.cpp cannot take.
    """

    def __init__(self, text: str, vocab: Vocab) -> None:
        if not vocab.exists:
            raise InvalidInputError("this model has no tokenizer, so no grammar can be applied")
        native_log.clear_problems()
        self._own(llama_cpp.llama_sampler_init_grammar(vocab.native, _checked(text), b"root"))
        self._vocab = vocab
        self._candidates = Candidates(vocab.n_tokens)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        return bool(_allowed(self._native, self._one, token))

    def accept(self, token: int) -> None:
        """Go on behind `token`, which it allows."""
        llama_cpp.llama_sampler_accept(self._native, token)

    def admits(self, draft: Tokens) -> int:
        """How many tokens of a draft may come next, one after the other."""
        ahead = llama_cpp.llama_sampler_clone(self._native)
        try:
            for n, token in enumerate(draft.tolist()):
                if not _allowed(ahead, self._one, token):
                    return n
                llama_cpp.llama_sampler_accept(ahead, token)
        finally:
            llama_cpp.llama_sampler_free(ahead)
        return len(draft)

    def restrict(
        self, row: npt.NDArray[np.float32], n_decisive: int | None
    ) -> npt.NDArray[np.float32]:
        """A row of logits, shape (n_vocab,), with -inf for all tokens it does not allow.

        Args:
            n_decisive: only so many of the likeliest allowed tokens matter, so that others may
                be left out too, which saves asking for each token of a large vocabulary.

        Raises:
            EngineError: no token of the model can follow.
        """
        ids = self._likeliest(row, n_decisive)
        if ids is None:
            ids = self._vocab.prefixes.accepted(self._accepts)
        restricted = np.full_like(row, -np.inf)
        restricted[ids] = self._ask(ids, row[ids])
        if restricted.max() == -np.inf:
            raise EngineError("no token of this model can follow in the grammar; change it")
        return restricted

    def _own(self, native: object) -> None:
        if not native:
            reason = native_log.last_problems() or "no reason given"
            raise InvalidInputError(
                f"llama.cpp cannot use this grammar: {reason} (it prints where to stderr)"
            )
        self._native = native
        self._free = weakref.finalize(self, llama_cpp.llama_sampler_free, native)
        self._one = Candidates(1)

    def _likeliest(self, row: npt.NDArray[np.float32], n_decisive: int | None) -> Tokens | None:
        """Some likeliest tokens if enough of them are allowed."""
        if n_decisive is None or (n_asked := _NARROW + 2 * n_decisive) >= len(row):
            return None
        ids = np.argpartition(row, -n_asked)[-n_asked:].astype(np.int32)
        return ids if np.count_nonzero(self._accepts(ids)) >= n_decisive else None

    def _accepts(self, ids: Tokens) -> npt.NDArray[np.bool_]:
        accepts: npt.NDArray[np.bool_] = self._ask(ids, np.zeros(len(ids), np.float32)) == 0
        return accepts

    def _ask(self, ids: Tokens, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        self._candidates.apply(self._native, ids, logits)
        return self._candidates.logits(len(ids))


def _allowed(native: object, one: Candidates, token: int) -> bool:
    one.apply(native, np.array([token], np.int32), np.zeros(1, np.float32))
    return bool(one.logits(1)[0] == 0)


def gbnf(params: SamplingParams) -> str | None:
    """The grammar of an answer, that of its JSON Schema where it has one.

    Raises:
        InvalidInputError: not a JSON Schema, or one that cannot be made a grammar.
    """
    return params.grammar if params.json_schema is None else schema_to_gbnf(params.json_schema)


def _checked(text: str) -> bytes:
    """The grammar encoded, if llama.cpp can be given it without a crash or an endless loop."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"the grammar is not valid Unicode: {error}") from error
    if b"\0" in encoded or not text.strip() or len(encoded) > _LONGEST:
        raise InvalidInputError(f"a grammar is text of 1 to {_LONGEST} bytes without NUL")
    bare = _bare(text)
    depth = np.cumsum([(c == "(") - (c == ")") for c in bare if c in "()"] or [0])
    if depth.max() > _DEEPEST or bare.count("::=") > _MOST_RULES:
        raise InvalidInputError(
            f"a grammar has at most {_MOST_RULES} rules and {_DEEPEST} nested parentheses"
        )
    if "<" in bare:
        raise InvalidInputError("a rule cannot name a token by <...>; spell its text")
    if sum(map(int, _COUNT.findall(bare))) > _MOST_REPEATS:
        raise InvalidInputError(f"repetitions in a grammar count to {_MOST_REPEATS} at most")
    if any(int(low or 0) > int(high) for low, high in _REPETITION.findall(bare)):
        raise InvalidInputError("a repetition {m,n} in the grammar has m greater than n")
    return encoded


def _bare(text: str) -> str:
    """A grammar without its strings, character classes and comments."""
    return _QUOTED.sub("", text)
