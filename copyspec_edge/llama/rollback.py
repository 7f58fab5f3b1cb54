"""Rollback: how rejected tokens are undone in the memory of a llama.cpp context.

It knows positions and states, neither tokens nor logits. An attention cache is cut. A recurrent
state is overwritten by every token: of some models llama.cpp keeps the states within the last
batch, of the others a copy is made before a draft and put back, and of all before a prompt.
"""

from __future__ import annotations

from typing import Protocol

import llama_cpp

from copyspec_edge.llama.batch import SEQUENCE
from copyspec_edge.llama.recurrent_state import State, StateCopy


class Rollback(Protocol):
    """A way to undo tokens.

    Attributes:
        name: what it is called in the statistics.
        longest: most tokens of a draft that can be undone.
    """

    name: str
    longest: int

    def prepare(self, n_past: int, n_tokens: int, rows: int) -> bool:
        """Get the memory ready for a batch behind `n_past` tokens; False: it cannot be trusted."""
        ...

    def cut(self, length: int) -> int:
        """Forget what is behind `length` tokens, or more; returns how many are kept.

        The last batch may have failed half-way: of its tokens none can be kept then.
        """
        ...


def choose_rollback(context: object, *, n_swa: int, state: State | None, longest: int) -> Rollback:
    """The way for a context of a model with this state; None: it keeps attention alone."""
    if state is None:
        return AttentionRollback(context, n_swa, longest)
    return StateRollback(context, state, longest)


class AttentionRollback:
    """Keys and values of single tokens are removed."""

    name = "attention"

    def __init__(self, context: object, n_swa: int, longest: int) -> None:
        self.longest = longest
        self._memory = llama_cpp.llama_get_memory(context)
        self._n_swa = n_swa

    def prepare(self, n_past: int, n_tokens: int, rows: int) -> bool:
        """Nothing has to be kept."""
        return True

    def cut(self, length: int) -> int:
        """Everything is forgotten where the sliding window behind `length` has passed."""
        if length and llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, length, -1):
            # Of a sliding window the cells behind it may be gone, and nothing else would say so.
            oldest = llama_cpp.llama_memory_seq_pos_min(self._memory, SEQUENCE)
            if not self._n_swa or 0 <= oldest <= max(0, length - self._n_swa + 1):
                return length
        llama_cpp.llama_memory_clear(self._memory, False)
        return 0


class StateRollback:
    """Within the last batch llama.cpp goes back by itself, where it can; else a copy is put back.

    This happens when the next batch comes, so that several cuts in a row are one. `seq_rm` would
    also go back further than the last batch, to states of an earlier one, and report success.
    """

    def __init__(self, context: object, state: State, longest: int) -> None:
        self._n_snapshots = int(llama_cpp.llama_n_rs_seq(context))
        self._can_restore = state.can_restore
        if self._n_snapshots:
            self.name, self.longest = "native", min(self._n_snapshots, longest)
        else:
            self.name = "checkpoint" if self._can_restore else "none"
            self.longest = longest if self._can_restore else 0
        self._memory = llama_cpp.llama_get_memory(context)
        self._copy = StateCopy(context)
        # Where the copy was made; from where on llama.cpp can go back; where the memory ends.
        self._saved: int | None = None
        self._start = self._end = 0

    def prepare(self, n_past: int, n_tokens: int, rows: int) -> bool:
        """Go back if a cut has been asked for; copy the state before a draft or a prompt."""
        is_draft = rows == n_tokens
        sound = n_past >= self._end or self._go_back(n_past)
        if sound and self._can_restore and n_tokens > 1 and not (is_draft and self._n_snapshots):
            sound = self._save(n_past)
        if not sound:
            self._forget()
            return False
        self._end = n_past + n_tokens
        self._start = self._end - min(self._n_snapshots, n_tokens - 1)
        return True

    def cut(self, length: int) -> int:
        """Within the last batch, else where the copy was made, else everything is forgotten."""
        if length >= self._start:
            return length
        if self._saved is not None and self._saved <= length:
            return self._saved
        return self._forget()

    def _go_back(self, n_past: int) -> bool:
        if n_past == 0:
            llama_cpp.llama_memory_clear(self._memory, False)
            return True
        # After a copy is put back, what is behind it is still in the attention cache.
        restored = n_past >= self._start or self._copy.restore()
        return restored and bool(llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, n_past, -1))

    def _save(self, n_past: int) -> bool:
        if self._saved == n_past:
            return True
        self._saved = n_past
        return n_past == 0 or self._copy.save()

    def _forget(self) -> int:
        llama_cpp.llama_memory_clear(self._memory, False)
        self._saved, self._start, self._end = None, 0, 0
        return 0
