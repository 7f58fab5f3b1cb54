"""Engine: one llama.cpp context that reads tokens and gives rows of logits.

It knows positions and logits, not text, drafts or sampling. What it holds is always the first
`n_past` tokens of the caller's history. Every native return code is checked.
"""

from __future__ import annotations

import llama_cpp
import numpy as np

from copyspec_edge.arrays import MAX_ROWS, Rows, Tokens
from copyspec_edge.errors import (
    CancelledError,
    ContextFullError,
    EngineError,
    InvalidInputError,
    ModelLoadError,
    SessionClosedError,
)
from copyspec_edge.host import printable
from copyspec_edge.llama import log as native_log
from copyspec_edge.llama.abort import ABORT_CALLBACK
from copyspec_edge.llama.batch import Batch
from copyspec_edge.llama.context import context_params, make_context
from copyspec_edge.llama.rollback import choose_rollback
from copyspec_edge.llama.weights import Weights
from copyspec_edge.settings import Settings


class Engine:
    """A context of `n_ctx` positions over loaded weights.

    Attributes:
        n_ctx: most tokens it can hold.
        n_past: tokens it holds.
        n_vocab: width of a row.
        n_threads: threads it computes one token with.
        n_threads_batch: threads it computes several tokens with: a prompt, and a draft.
        min_rows: least rows that `decode` asks it for.
        max_rows: most rows of logits of one `eval`, and the longest draft + 1.
        rollback: how rejected tokens are undone; see `Stats.rollback`.

    Raises:
        EngineError: llama.cpp could not make the context, mostly for lack of memory.
        ModelLoadError: the model does not write text, though its file does not say so.
    """

    def __init__(
        self, weights: Weights, settings: Settings, *, n_ctx: int, min_rows: int = 1
    ) -> None:
        self._weights = weights
        self._n_batch = settings.n_batch
        self.n_ctx = n_ctx
        self.min_rows = min_rows
        self.n_past = 0
        rows = min(MAX_ROWS, settings.n_batch, settings.n_ubatch)
        state = weights.state
        self._cancel = np.zeros(2, np.uint8)
        params = context_params(settings, n_ctx=n_ctx, max_rows=rows)
        params.abort_callback = llama_cpp.ggml_abort_callback(ABORT_CALLBACK)
        params.abort_callback_data = self._cancel.ctypes.data
        if state:
            n_ubatch = min(params.n_ubatch, n_ctx)
            params.n_rs_seq = state.affordable_snapshots(rows - 1, n_ubatch)
        self._context = make_context(weights, params)
        self._free = weights.home.free_with(
            self, _free_context, self._context, self._cancel, weights
        )
        if not llama_cpp.llama_get_memory(self._context):
            self._free()
            raise ModelLoadError(
                f"{printable(weights.path)}: it keeps no memory of what it has read, "
                "so it does not write text"
            )
        vocab = llama_cpp.llama_model_get_vocab(weights.pointer)
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(vocab))
        self._rollback = choose_rollback(
            self._context, n_swa=weights.n_swa, state=state, longest=rows - 1
        )
        self.max_rows = self._rollback.longest + 1
        self.rollback = self._rollback.name
        self._batch = Batch(self._n_batch)
        self.n_threads = int(params.n_threads)
        self.n_threads_batch = int(params.n_threads_batch)

    def eval(self, tokens: Tokens, *, rows: int) -> Rows:
        """Read `tokens` behind the `n_past` ones, and give the logits of the last `rows`.

        Args:
            tokens: token ids, shape (n,), n from 1 to the room left.
            rows: from 1 to min(n, max_rows).

        Returns:
            shape (rows, n_vocab); a view that is valid until the next call.

        Raises:
            InvalidInputError, ContextFullError: nothing was read.
            CancelledError: after `cancel`; what was read before stays read.
            EngineError: llama.cpp failed; `n_past` tells what stays read.
        """
        self._check(tokens, rows)
        while (left := len(tokens)) > self._n_batch:
            # llama.cpp keeps the rows of one batch, so all of them are wanted of the last.
            size = min(self._n_batch, left - rows)
            self._decode(tokens[:size], 0)
            tokens = tokens[size:]
        self._decode(tokens, rows)
        logits = llama_cpp.llama_get_logits(self._context)
        if not logits:
            raise EngineError("llama.cpp returned no logits; reset the session")
        return np.ctypeslib.as_array(logits, (rows, self.n_vocab))

    def truncate(self, length: int) -> None:
        """Forget what is behind the first `length` tokens.

        Afterwards `n_past` is at most `length`. It is less where the memory cannot be cut there
        (a recurrent state, a sliding window that has passed); the caller reads from there anew.
        """
        if length < self.n_past:
            self.require_open()
            self.n_past = self._rollback.cut(length)

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Use this many threads for one token, and for several, from the next `eval` on."""
        self.require_open()
        llama_cpp.llama_set_n_threads(self._context, n_threads, n_threads_batch)
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch

    def cancel(self) -> None:
        """Stop the `eval` that is running, from any thread, and those after it."""
        self._cancel[0] = 1

    def clear_cancel(self) -> None:
        """Allow `eval` again."""
        self._cancel[0] = 0

    def close(self) -> None:
        """Free the context. Idempotent."""
        self._free()

    @property
    def is_open(self) -> bool:
        """Whether it was not closed, and not made before this process was forked."""
        return self._free.alive and self._weights.home.is_here

    def admit(self) -> None:
        """Raise SessionClosedError, which says why, unless an answer may begin."""
        self._weights.admit()
        self.require_open()

    def require_open(self) -> None:
        """Raise SessionClosedError, which says why, unless it is open."""
        self._weights.home.require()
        if not self._free.alive:
            raise SessionClosedError("this session was closed")

    def _check(self, tokens: Tokens, rows: int) -> None:
        self.require_open()
        if not 1 <= rows <= min(len(tokens), self.max_rows):
            raise InvalidInputError(f"cannot give {rows} rows of {len(tokens)} tokens")
        if self.n_past + len(tokens) > self.n_ctx:
            raise ContextFullError(
                f"{self.n_past + len(tokens)} tokens do not fit into the context of {self.n_ctx}"
            )
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.n_vocab:
            raise InvalidInputError(f"token ids must be from 0 to {self.n_vocab - 1}")

    def _decode(self, chunk: Tokens, rows: int) -> None:
        if self._cancel[0]:
            raise CancelledError("cancelled")
        native_log.clear_problems()
        if not self._rollback.prepare(self.n_past, len(chunk), rows):
            self.n_past = 0
            raise EngineError(
                "llama.cpp could not save or restore the state of the model, so it was forgotten: "
                f"{native_log.last_problems() or 'no reason given'}"
            )
        batch = self._batch.fill(chunk, self.n_past, rows)
        code = self._call_decode(batch)
        if code == 0:
            self.n_past += len(chunk)
            return
        n_past, self.n_past = self.n_past, self._rollback.cut(self.n_past)
        if code == 2:
            raise CancelledError("cancelled")
        if code == 1:
            raise ContextFullError(
                f"llama.cpp has no room in its cache behind {n_past} tokens: "
                "reset the session or choose a larger context"
            )
        raise EngineError(
            f"llama_decode failed with code {code} at token {n_past}: "
            f"{native_log.last_problems() or 'no reason given'}"
        )

    def _call_decode(self, batch: llama_cpp.llama_batch) -> int:
        """llama_decode. Ctrl-C is raised once it is over: then all it has read is forgotten."""
        try:
            return int(llama_cpp.llama_decode(self._context, batch))
        except BaseException:
            self.n_past = self._rollback.cut(self.n_past)
            raise


def _free_context(context: object, *_outlive: object) -> None:
    """Free a context. The rest is kept until then: the cancel flag, and the weights."""
    llama_cpp.llama_free(context)
