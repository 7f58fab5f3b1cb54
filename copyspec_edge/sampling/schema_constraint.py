"""SchemaConstraint: which tokens may come next in JSON that matches a schema, by llguidance."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from copyspec_edge.arrays import Row, Tokens
from copyspec_edge.errors import EngineError, InvalidInputError
from copyspec_edge.llama import Vocab
from copyspec_edge.sampling.json_schema import find_unusable, parse_schema, to_grammar

# Eight times what chains of as many references as a schema may have were seen to need.
_DEEP_STACK = 64 << 20
# Ways to go on at a time, of which each property that may be left out is some.
_MOST_ITEMS = 20_000
_PATIENCE_SECONDS = 20.0
_REASONS = {
    "NoExtension": "nothing matches it",
    "oneOf constraints": "a value may match two schemas of a 'oneOf', which is not found out while "
    "writing: say 'anyOf', or tell them apart by a required constant",
}
_LONGEST_REASON = 200
_LISTING = re.compile(r"\n *1 \| |<state>")
_stack_size = threading.Lock()


class SchemaConstraint:
    """A JSON Schema and how far the answer has come in it.

    Args:
        schema: as a mapping or text.
        vocab: of the model whose tokens spell the answer.

    Raises:
        InvalidInputError: not a JSON Schema, or one that cannot be kept to; the message says
            which part of it.
    """

    def __init__(self, schema: str | Mapping[str, object], vocab: Vocab) -> None:
        parsed = parse_schema(schema)
        grammar, trie = to_grammar(parsed), vocab.trie
        self._eog = vocab.eog_tokens
        self._mask = np.zeros((vocab.n_tokens + 31) // 32, np.uint32)
        self._matcher = _on_deep_stack(lambda: self._made(grammar, trie))
        if self._matcher.is_error():
            path, reason = find_unusable(parsed)
            named = f"the JSON Schema's '{path}'" if path else "this JSON Schema"
            reason = reason or self._matcher.get_error()
            raise InvalidInputError(f"{named} cannot be used: {_short(reason)}")

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        if token in self._eog:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1

    def accept(self, token: int) -> None:
        """Go on behind `token`, which it allows.

        Raises:
            EngineError: llguidance gave up.
        """
        if not self._matcher.consume_token(token):
            raise EngineError(
                f"the JSON Schema cannot be kept to: {_short(self._matcher.get_error())}"
            )

    def admits(self, draft: Tokens) -> int:
        """How many tokens of a draft may come next, one after the other."""
        ids = draft.tolist()
        n = self._matcher.validate_tokens(ids)
        if n < len(ids) and ids[n] in self._eog:
            ahead = self._matcher.deep_copy()
            n += ahead.consume_tokens(ids[:n]) and ahead.is_accepting()
        return n

    def restrict(self, row: Row, n_decisive: int | None) -> Row:
        """A row of logits, shape (n_vocab,), with -inf for all tokens it does not allow.

        Args:
            n_decisive: makes no difference, since all tokens are found at once.

        Raises:
            EngineError: no token of the model can follow, or the schema is too complex.
        """
        self._fill_mask(self._matcher)
        if self._matcher.is_error():
            raise EngineError(
                f"the JSON Schema cannot be kept to: {_short(self._matcher.get_error())}"
            )
        allowed = np.unpackbits(self._mask.view(np.uint8), count=len(row), bitorder="little")
        restricted: Row = np.where(allowed, row, np.float32(-np.inf))
        if restricted.max() == -np.inf:
            raise EngineError("no token of this model can follow in the JSON Schema; change it")
        return restricted

    def _made(self, grammar: str, trie: LLTokenizer) -> LLMatcher:
        """A matcher in error where the grammar is unusable or nothing can begin an answer."""
        limits = LLParserLimits(max_items_in_row=_MOST_ITEMS)
        matcher = LLMatcher(trie, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            self._fill_mask(matcher)
        return matcher

    def _fill_mask(self, matcher: LLMatcher) -> None:
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)


def _short(reason: str) -> str:
    """llguidance's reason without its own grammar and state."""
    for begin, meaning in _REASONS.items():
        if begin in reason:
            return meaning
    told = reason.rpartition("failed to compile JSON schema: ")[2]
    return " ".join(_LISTING.split(told)[0].split())[:_LONGEST_REASON]


def _on_deep_stack(make: Callable[[], LLMatcher]) -> LLMatcher:
    """What `make` gives, made where recursion cannot end the process."""
    made: list[LLMatcher] = []
    with _stack_size:
        usual = threading.stack_size(_DEEP_STACK)
        try:
            thread = threading.Thread(target=lambda: made.append(make()), daemon=True)
            thread.start()
        except RuntimeError as error:
            raise EngineError(f"no thread to make a grammar in: {error}") from error
        finally:
            threading.stack_size(usual)
    thread.join(_PATIENCE_SECONDS)
    if not made:
        raise InvalidInputError("this JSON Schema is too complex to make a grammar of; simplify it")
    return made[0]
