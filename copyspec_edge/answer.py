"""Answer: one answer being written, as an iterator of chunks. It ends by itself, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from copyspec_edge.chat import Chunk, FinishReason, Reply, Transcript
from copyspec_edge.decoding import Stats, Step
from copyspec_edge.errors import CancelledError, SessionBusyError
from copyspec_edge.lease import Lease


class Answer(Iterator[Chunk]):
    """Chunks of one answer; made by `Session.stream`.

    Leaving it unfinished (`close`, or dropping it) ends the answer as a cancel does. An error of
    the model ends it without a reply. Read by a second thread at the same time, or by a callback,
    it raises SessionBusyError and goes on.

    Attributes:
        reply: the whole answer once it has ended, else None.
        stopped: whether a stop string or a stopping criterion ended it.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        transcript: Transcript,
        *,
        max_tokens: int,
        summarize: Callable[[list[Step]], Stats],
        cancel: Callable[[], None],
        on_end: Callable[[Answer], None],
    ) -> None:
        self._steps = steps
        self._max_tokens = max_tokens
        self._summarize = summarize
        self._cancel = cancel
        self._on_end: Callable[[Answer], None] | None = on_end
        self._reading = Lease("this answer is being read; cancel() it to end it")
        self._is_closing = False
        self.transcript = transcript
        self.reply: Reply | None = None
        self.stopped = False

    def __next__(self) -> Chunk:
        self._begin_reading()
        try:
            if self._on_end is None:
                raise StopIteration
            return self._advance()
        finally:
            self._reading.give_back()

    def finish(self) -> Reply:
        """Read the answer to its end.

        Raises:
            EngineError: llama.cpp failed; the session can be used on.
        """
        for _ in self:
            pass
        if self.reply is None:
            raise SessionBusyError("this answer was ended by an error; ask again")
        return self.reply

    def cancel(self) -> None:
        """Stop it, from any thread: whoever reads it sees it end, as "cancelled". Idempotent."""
        self._cancel()

    def close(self, *, cancel: bool = False) -> None:
        """End the answer where it is, with finish reason "cancelled". Idempotent.

        Args:
            cancel: stop another thread that is reading it, and wait until it has ended.

        Raises:
            SessionBusyError: another thread is reading it, or, with `cancel`, this one is.
        """
        if cancel:
            self._is_closing = True
            self.cancel()
        with self._reading.held(waits=cancel):
            if self._on_end is not None:
                self.transcript.rest()
                self._end("cancelled")

    def __del__(self) -> None:
        if getattr(self, "_on_end", None) is not None:
            self.close()

    def _begin_reading(self) -> None:
        try:
            self._reading.take()
        except SessionBusyError:
            if not self._is_closing:
                raise
            self._reading.take(waits=True)

    def _advance(self) -> Chunk:
        try:
            self.stopped = self.transcript.add(next(self._steps))
        except CancelledError:
            rest = self.transcript.rest()
            self._end("cancelled")
            if rest is None:
                raise StopIteration from None
            return rest
        except BaseException:
            self._end(None)
            raise
        reason = self._reason()
        chunk = self.transcript.chunk(final=reason is not None)
        if reason:
            self._end(reason)
        return chunk

    def _reason(self) -> FinishReason | None:
        if self.stopped or self.transcript.ended:
            return "stop"
        return "length" if len(self.transcript.token_ids) >= self._max_tokens else None

    def _end(self, reason: FinishReason | None) -> None:
        if reason:
            steps = self.transcript.steps
            self.reply = Reply(
                self.transcript.text,
                tuple(self.transcript.token_ids),
                reason,
                self._summarize(steps),
                tuple(chain.from_iterable(step.logprobs for step in steps)),
            )
        on_end, self._on_end = self._on_end, None
        if on_end:
            on_end(self)
