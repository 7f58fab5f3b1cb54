"""History: the committed tokens of one conversation.

It knows nothing of who proposed a token. Rejected tokens never get here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.errors import ContextFullError


class History:
    """A growing sequence of at most `capacity` token ids in one preallocated array."""

    def __init__(self, capacity: int) -> None:
        self._buffer = np.empty(capacity, dtype=np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def capacity(self) -> int:
        """The greatest number of tokens."""
        return len(self._buffer)

    @property
    def tokens(self) -> Tokens:
        """View of the committed tokens, shape (len(self),). Do not write to it."""
        return self._buffer[: self._length]

    def extend(self, ids: npt.ArrayLike) -> None:
        """Append tokens.

        Raises:
            ContextFullError: they do not fit; nothing is appended.
        """
        new = as_tokens(ids) if np.size(ids) else np.empty(0, np.int32)
        end = self._length + len(new)
        if end > self.capacity:
            raise ContextFullError(
                f"{end} tokens do not fit into the context of {self.capacity}: "
                "shorten the text or choose a larger context"
            )
        self._buffer[self._length : end] = new
        self._length = end

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot cut {self._length} tokens to {length}")
        self._length = length
