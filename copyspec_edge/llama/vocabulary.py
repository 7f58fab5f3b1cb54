"""Vocab: the tokenizer facts of a model. It knows text and token ids, not conversations."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import islice

import llama_cpp
import numpy as np
from llguidance import LLTokenizer

from copyspec_edge.arrays import Tokens
from copyspec_edge.errors import EngineError, InvalidInputError
from copyspec_edge.llama.prefixes import Prefixes
from copyspec_edge.llama.token_trie import token_trie
from copyspec_edge.llama.weights import Weights

# Characters that no tokenizer merges across from the left in all of the vocabularies we know; one
# of them in front of a text keeps a SentencePiece tokenizer from adding its space to the text.
_ANCHORS = ("\n", "0", "a")
_UNPARSED = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN


class Vocab:
    """The vocabulary of a loaded model. After its close all raise SessionClosedError."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.n_tokens: int = llama_cpp.llama_vocab_n_tokens(self.native)
        self._pieces: dict[int, bytes] = {}

    @property
    def native(self) -> object:
        """llama.cpp's vocabulary."""
        return llama_cpp.llama_model_get_vocab(self._weights.pointer)

    @property
    def exists(self) -> bool:
        """Whether the file has a tokenizer at all."""
        return bool(llama_cpp.llama_vocab_type(self.native) != llama_cpp.LLAMA_VOCAB_TYPE_NONE)

    @cached_property
    def eog_tokens(self) -> frozenset[int]:
        """All tokens that end a generation."""
        is_eog, pointer = llama_cpp.llama_vocab_is_eog, self.native
        return frozenset(t for t in range(self.n_tokens) if is_eog(pointer, t))

    @cached_property
    def special_text(self) -> re.Pattern[str] | None:
        """Matches text that would be parsed as a special token; None where there is none."""
        texts = {
            self.piece(token, special=True).decode("utf-8", "replace") for token in self._special
        } - {""}
        if not texts:
            return None
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))

    @cached_property
    def prefixes(self) -> Prefixes:
        """Which tokens begin with which, control tokens spelled out, ends of generation not."""
        pieces = self._all_pieces()
        for token in self.eog_tokens:
            pieces[token] = b""
        return Prefixes(pieces)

    @cached_property
    def trie(self) -> LLTokenizer:
        """The tokens as llguidance takes them."""
        with self._weights.in_use():
            return token_trie(self._all_pieces(), self._special, self.eog_tokens)

    @cached_property
    def _special(self) -> list[int]:
        """Tokens that have no text."""
        attributes, pointer = llama_cpp.llama_vocab_get_attr, self.native
        return [t for t in range(self.n_tokens) if attributes(pointer, t) & _UNPARSED]

    @cached_property
    def longest_piece(self) -> int:
        """Most bytes of text that one token stands for; 0 without a tokenizer."""
        if not self.exists:
            return 0
        with self._weights.in_use():
            return max(map(len, self._all_pieces()), default=0)

    def _all_pieces(self) -> list[bytes]:
        """What `_piece` gives for each token, with one buffer for all."""
        size = 256
        buffer = ctypes.create_string_buffer(size)
        spell, pointer = llama_cpp.llama_token_to_piece, self.native
        lengths = (spell(pointer, t, buffer, size, 0, True) for t in range(self.n_tokens))
        return [
            ctypes.string_at(buffer, length) if length >= 0 else self._piece(token, special=True)
            for token, length in enumerate(lengths)
        ]

    def special_name(self, kind: str) -> str:
        """Text of the "bos" or "eos" token, empty where the model has none."""
        token = getattr(llama_cpp, f"llama_vocab_{kind}")(self.native)
        return "" if token < 0 else self.piece(token, special=True).decode("utf-8", "replace")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """UTF-8 bytes of one token, possibly a part of a character; empty without a tokenizer.

        Args:
            special: spell control tokens out; otherwise they have no text.

        Raises:
            InvalidInputError: no such token.
        """
        if special:
            return self._piece(token, special=True)
        if token not in self._pieces:
            self._pieces[token] = self._piece(token, special=False)
        return self._pieces[token]

    def text(self, tokens: Sequence[int] | Tokens) -> str:
        """Text of a token sequence without its control tokens."""
        with self._weights.in_use():
            return b"".join(map(self.piece, map(int, tokens))).decode("utf-8", "replace")

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> Tokens:
        """Token ids of `text`, shape (n,).

        Args:
            add_special: put the beginning-of-sequence token in front where the model wants one
                and the text does not begin with it.
            parse_special: read the names of special tokens as these tokens. Not for users' text.

        Raises:
            InvalidInputError: the text is not valid Unicode, or the model has no tokenizer or one
                that cannot spell it.
        """
        if not self.exists:
            raise InvalidInputError("this model file has no tokenizer; pass token ids instead")
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"the text is not valid Unicode: {error}") from error
        unspelled = self._unspelled(text, parse_special=parse_special)
        if unspelled:
            raise InvalidInputError(f"this model's tokenizer has no token for {unspelled!r}")
        size = len(raw) + 2
        ids = np.empty(size, np.int32)
        with self._weights.in_use():
            count = llama_cpp.llama_tokenize(
                self.native,
                raw,
                len(raw),
                ids.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token)),
                size,
                add_special,
                parse_special,
            )
        if count < 0:
            raise EngineError(f"llama.cpp could not tokenize a text of {len(raw)} bytes")
        first = int(add_special and self._begins_twice(ids[:count]))
        tokens: Tokens = ids[first:count].copy()
        return tokens

    @cached_property
    def _only_pieces(self) -> frozenset[bytes] | None:
        """What a SentencePiece tokenizer without all 256 bytes can spell; else None."""
        if llama_cpp.llama_vocab_type(self.native) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return None
        attributes, pointer = llama_cpp.llama_vocab_get_attr, self.native
        is_byte = (
            attributes(pointer, t) & llama_cpp.LLAMA_TOKEN_ATTR_BYTE for t in range(self.n_tokens)
        )
        has_all = len(list(islice(filter(None, is_byte), 256))) == 256
        return None if has_all else frozenset(self._all_pieces())

    def _unspelled(self, text: str, *, parse_special: bool) -> str:
        """The characters that no token spells: at these llama.cpp would end the process."""
        pieces = self._only_pieces
        if pieces is None:
            return ""
        if parse_special and self.special_text:
            text = self.special_text.sub("", text)
        bytewise = {c for c in set(text) if {bytes([byte]) for byte in c.encode()} <= pieces}
        return "".join(sorted(c for c in set(text) - bytewise if c.encode() not in pieces))

    def _begins_twice(self, ids: Tokens) -> bool:
        """Whether a beginning-of-sequence token was put in front of one that the text has."""
        bos = llama_cpp.llama_vocab_bos(self.native)
        is_added = llama_cpp.llama_vocab_get_add_bos(self.native)
        return bool(is_added and len(ids) > 1 and ids[0] == ids[1] == bos)

    def tokenize_after(self, text: str, *, parse_special: bool = False) -> Tokens:
        """Token ids of `text` as it stands behind other text, without a space put in front."""
        for anchor in _ANCHORS:
            if self._unspelled(anchor, parse_special=False):
                continue
            prefix = self.tokenize(anchor)
            ids = self.tokenize(anchor + text, parse_special=parse_special)
            if np.array_equal(ids[: len(prefix)], prefix):
                return ids[len(prefix) :]
        return self.tokenize(text, parse_special=parse_special)

    def _piece(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.n_tokens:
            raise InvalidInputError(f"token ids must be from 0 to {self.n_tokens - 1}, not {token}")
        if not self.exists:
            return b""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama_cpp.llama_token_to_piece(self.native, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count
