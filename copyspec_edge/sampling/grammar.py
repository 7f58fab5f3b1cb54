"""Grammar: which tokens may come next by GBNF rules. It does not know what is done with a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Row, Tokens
from copyspec_edge.errors import EngineError
from copyspec_edge.llama import Candidates, NativeSampler, Vocab, gbnf

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
        self._native = gbnf(text, vocab)
        self._vocab = vocab
        self._candidates = Candidates(vocab.n_tokens)
        self._one = Candidates(1)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        return self._allowed(self._native, token)

    def accept(self, token: int) -> None:
        """Go on behind `token`, which it allows."""
        self._native.accept(token)

    def admits(self, draft: Tokens) -> int:
        """How many tokens of a draft may come next, one after the other."""
        if not (len(draft) and self.allows(int(draft[0]))):
            return 0
        ahead = self._native.clone()
        for n, token in enumerate(draft[1:].tolist(), start=1):
            ahead.accept(int(draft[n - 1]))
            if not self._allowed(ahead, token):
                return n
        return len(draft)

    def restrict(self, row: Row, n_decisive: int | None) -> Row:
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

    def _likeliest(self, row: Row, n_decisive: int | None) -> Tokens | None:
        """Some likeliest tokens if enough of them are allowed."""
        if n_decisive is None or (n_asked := _NARROW + 2 * n_decisive) >= len(row):
            return None
        ids = np.argpartition(row, -n_asked)[-n_asked:].astype(np.int32)
        return ids if np.count_nonzero(self._accepts(ids)) >= n_decisive else None

    def _accepts(self, ids: Tokens) -> npt.NDArray[np.bool_]:
        accepts: npt.NDArray[np.bool_] = self._ask(ids, np.zeros(len(ids), np.float32)) == 0
        return accepts

    def _ask(self, ids: Tokens, logits: Row) -> Row:
        self._candidates.apply(self._native, ids, logits)
        return self._candidates.logits(len(ids))

    def _allowed(self, native: NativeSampler, token: int) -> bool:
        self._one.apply(native, np.array([token], np.int32), np.zeros(1, np.float32))
        return bool(self._one.logits(1)[0] == 0)
