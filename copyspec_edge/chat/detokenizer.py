"""Turns the bytes of tokens into text, and never splits a character."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Incremental UTF-8: holds back an unfinished character, replaces what can never be one."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        """The text that `piece` completes."""
        return self._decoder.decode(piece)

    @property
    def is_clean(self) -> bool:
        """Whether no character is unfinished."""
        return not self._decoder.getstate()[0]

    def finish(self) -> str:
        """What was held back, as replacement characters."""
        return self._decoder.decode(b"", final=True)
