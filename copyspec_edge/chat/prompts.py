"""Prompts: the tokens of what is asked, and which of it cannot be answered. It knows no chats."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec_edge.arrays import Tokens, checked_tokens
from copyspec_edge.errors import ContextFullError, InvalidInputError
from copyspec_edge.llama import Vocab


class Prompts:
    """Makes prompts for a context of `n_ctx` tokens."""

    def __init__(self, vocab: Vocab, n_ctx: int) -> None:
        self._vocab = vocab
        self._n_ctx = n_ctx

    def tokens(self, prompt: str | Sequence[int] | Tokens) -> Tokens:
        """Token ids of a text or of ids, shape (n,); names of special tokens in a text are text.

        Raises:
            InvalidInputError: empty, not valid Unicode, or no token ids.
            ContextFullError: a text that cannot fit.
        """
        if not isinstance(prompt, str):
            return checked_tokens(prompt, self._vocab.n_tokens)
        if not prompt:
            raise InvalidInputError("the prompt is empty")
        self._refuse_endless(prompt)
        return self._vocab.tokenize(prompt, add_special=True)

    def refuse_unaskable(self, message: object) -> None:
        """Refuse a message that is no question.

        Raises:
            InvalidInputError: it is empty or no text.
            ContextFullError: it cannot fit.
        """
        if not isinstance(message, str) or not message.strip():
            raise InvalidInputError("the message is empty, or not a text")
        self._refuse_endless(message)

    def refuse_unanswerable(self, tokens: Tokens) -> None:
        """Refuse a prompt behind which no answer can begin.

        Raises:
            InvalidInputError: it is empty.
            ContextFullError: it leaves no room.
        """
        if not len(tokens):
            raise InvalidInputError("the prompt is empty: it has no tokens")
        self._refuse_full(f"a prompt of {len(tokens)}", len(tokens))

    def _refuse_endless(self, text: str) -> None:
        """Refuse what would not fit in the longest tokens: tokenizing megabytes takes seconds."""
        longest = self._vocab.longest_piece if len(text) > self._n_ctx else 0
        if longest:
            n_least = len(text) // longest
            self._refuse_full(f"a text of at least {n_least}", n_least)

    def _refuse_full(self, what: str, n_tokens: int) -> None:
        if n_tokens >= self._n_ctx:
            raise ContextFullError(
                f"{what} tokens leaves no room for an answer in the context of {self._n_ctx}: "
                "shorten it, reset the session, or choose a larger context"
            )
