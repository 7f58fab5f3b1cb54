"""Prefixes: which tokens' texts begin with another token's. It knows bytes, not grammars.

What refuses a text refuses all that begin with it, so that of a large vocabulary only the tokens
behind accepted prefixes have to be asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens

_NO_PREFIX = -1


class Prefixes:
    """The longest prefix of each token among the others.

    Args:
        pieces: the text of each token; empty for one that is to be asked about by itself.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._prefix = np.full(len(pieces), _NO_PREFIX, np.int32)
        depth = np.zeros(len(pieces), np.int32)
        open_: list[int] = []
        for token in sorted(range(len(pieces)), key=pieces.__getitem__):
            piece = pieces[token]
            while open_ and not piece.startswith(pieces[open_[-1]]):
                open_.pop()
            if open_ and piece:
                self._prefix[token] = open_[-1]
                depth[token] = len(open_)
            if piece:
                open_.append(token)
        self._levels = [
            np.flatnonzero(depth == level).astype(np.int32)
            for level in range(int(depth.max(initial=0)) + 1)
        ]

    def accepted(self, accepts: Callable[[Tokens], npt.NDArray[np.bool_]]) -> Tokens:
        """All tokens that `accepts` takes, shape (n,).

        Args:
            accepts: for token ids, shape (m,), which are taken. What begins with a text it does
                not take is not asked about.
        """
        taken = np.zeros(len(self._prefix) + 1, np.bool_)
        taken[_NO_PREFIX] = True
        for level in self._levels:
            asked = level[taken[self._prefix[level]]]
            if len(asked):
                taken[asked] = accepts(asked)
        return np.flatnonzero(taken[:_NO_PREFIX]).astype(np.int32)
