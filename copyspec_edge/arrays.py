"""The arrays that all rooms pass to each other: token ids, rows of logits, numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyspec_edge.errors import InvalidInputError

Tokens = npt.NDArray[np.int32]
"""Token ids, shape (n,)."""
Row = npt.NDArray[np.float32]
"""Logits behind one token, shape (n_vocab,)."""
Rows = npt.NDArray[np.float32]
"""Logits behind several tokens, shape (n, n_vocab)."""
FloatArray = npt.NDArray[np.float32]
"""Any other numbers: probabilities, costs, weights."""

MAX_ROWS = 64
"""Most rows of logits of one forward pass: the longest draft and the token before it."""


def as_tokens(ids: npt.ArrayLike) -> Tokens:
    """`ids` as a one-dimensional int32 array."""
    return np.atleast_1d(np.asarray(ids, dtype=np.int32))


def checked_tokens(ids: npt.ArrayLike, n_vocab: int) -> Tokens:
    """Token ids from a caller as an int32 array, shape (n,).

    Raises:
        InvalidInputError: not a flat sequence of ids that the vocabulary has.
    """
    try:
        raw = np.asarray(ids)
    except ValueError:
        raw = np.empty((0, 0))
    if raw.ndim != 1 or not raw.size or raw.dtype.kind not in "iu":
        raise InvalidInputError("token ids must be a flat sequence of whole numbers, not empty")
    if raw.min() < 0 or raw.max() >= n_vocab:
        raise InvalidInputError(f"token ids must be from 0 to {n_vocab - 1}")
    return raw.astype(np.int32)


def common_prefix(first: Tokens, second: Tokens) -> int:
    """How many tokens two sequences begin with in common."""
    shortest = min(len(first), len(second))
    different = np.flatnonzero(first[:shortest] != second[:shortest])
    return int(different[0]) if len(different) else shortest
