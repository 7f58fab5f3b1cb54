"""A vocabulary of twenty tokens, some of them halves of characters, and a chat template for it."""

from __future__ import annotations

import re
from typing import cast

from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.chat.template import ChatTemplate
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.llama.vocabulary import Vocab

SPECIAL = ("<end>", "<user>", "<bot>")
END, USER, BOT = range(3)
_HAN = "한".encode()
PIECES = (
    b"",
    b"",
    b"",
    *(letter.encode() for letter in "abcdef"),
    b" ",
    b"\n",
    b"ab",
    b"cd ",
    "é".encode(),
    _HAN[:2],
    _HAN[2:],
    b"a" + _HAN[:2],
    _HAN[2:] + b"b",
    b"\xff",
    b".",
)
N_VOCAB = len(PIECES)
TEMPLATE = (
    "{% for m in messages %}"
    "{{ ('<bot>' if m.role == 'assistant' else '<user>') + m.content + '<end>' }}"
    "{% endfor %}<bot>"
)


class BareVocab:
    """A vocabulary of so many tokens without text, as far as samplers use one."""

    exists = False

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens


def bare_vocab(n_tokens: int) -> Vocab:
    return cast(Vocab, BareVocab(n_tokens))


class FakeVocab:
    """What sessions, transcripts and chat templates use of `vocab.Vocab`."""

    exists = True
    n_tokens = N_VOCAB
    eog_tokens = frozenset({END})
    special_text = re.compile("|".join(SPECIAL))
    longest_piece = max(map(len, (*PIECES, *SPECIAL)))

    def special_name(self, kind: str) -> str:
        return SPECIAL[END] if kind == "eos" else ""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return SPECIAL[token].encode() if special and token < len(SPECIAL) else PIECES[token]

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> Tokens:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError("not valid Unicode") from error
        parts = re.split("(<end>|<user>|<bot>)", text) if parse_special else [text]
        ids: list[int] = []
        for part in parts:
            is_special = parse_special and part in SPECIAL
            ids += [SPECIAL.index(part)] if is_special else _spell(part.encode())
        return as_tokens(ids) if ids else as_tokens([])

    def tokenize_after(self, text: str, *, parse_special: bool = False) -> Tokens:
        return self.tokenize(text, parse_special=parse_special)


def _spell(raw: bytes) -> list[int]:
    """The longest pieces from the left; a byte that is none becomes a full stop."""
    ids = []
    while raw:
        fitting = [t for t, piece in enumerate(PIECES) if piece and raw.startswith(piece)]
        token = max(fitting, key=lambda t: len(PIECES[t]), default=N_VOCAB - 1)
        ids.append(token)
        raw = raw[len(PIECES[token]) if fitting else 1 :]
    return ids


def fake_vocab() -> Vocab:
    return cast(Vocab, FakeVocab())


def fake_template(source: str = TEMPLATE) -> ChatTemplate:
    return ChatTemplate(source, fake_vocab())


def ids(text: str) -> list[int]:
    """Token ids of a text in which special names are special."""
    return list(map(int, FakeVocab().tokenize(text, parse_special=True)))
