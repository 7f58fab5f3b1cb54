"""Session: one conversation with a model. It owns engine, history and drafter."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from copyspec_edge.answer import Answer
from copyspec_edge.arrays import Tokens, as_tokens, checked_tokens, common_prefix
from copyspec_edge.chat import ChatTemplate, Conversation, Message, Reply, Transcript, Turn
from copyspec_edge.decoding import History, decode, fold
from copyspec_edge.drafting import Drafter
from copyspec_edge.errors import (
    ChatTemplateError,
    ContextFullError,
    InvalidInputError,
    SessionBusyError,
)
from copyspec_edge.llama import Engine, Vocab
from copyspec_edge.sampling import SamplingParams, make_sampler
from copyspec_edge.tuning import MeasuredCosts

_BUSY = (
    "an answer of this session is unfinished: read it to its end, close() it, "
    "or use another session"
)


class Session:
    """One conversation. Made by `Model.session`; a context manager that frees its context.

    What the model has read stays in the KV cache, so a new turn reads its new tokens only. After
    an error or a cancel the session is at its last committed token and can be used on.

    Attributes:
        engine, drafter, cost, min_rows: its parts, for measurements; not for use while an answer
            runs.
    """

    def __init__(
        self,
        engine: Engine,
        vocab: Vocab,
        template: ChatTemplate | None,
        cost: MeasuredCosts,
        drafter: Drafter,
        *,
        system: str | None = None,
        min_rows: int = 1,
        wait: bool = False,
    ) -> None:
        self.engine = engine
        self._vocab = vocab
        self.cost = cost
        self.min_rows = min_rows
        self._history = History(engine.n_ctx)
        self.drafter = drafter
        self._conversation = Conversation(template, system) if template else None
        self._busy = threading.Lock()
        self._wait = wait
        self._asking: int | None = None
        self._answer: weakref.ref[Answer] | None = None

    @property
    def n_ctx(self) -> int:
        """Most tokens of the conversation."""
        return self._history.capacity

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All committed tokens, prompts included."""
        return tuple(map(int, self._history.tokens))

    @property
    def messages(self) -> tuple[Message, ...]:
        """The chat so far: the system message if there is one, questions and answers."""
        return tuple(self._conversation.messages) if self._conversation else ()

    def stream(self, message: str, *, params: SamplingParams | None = None) -> Answer:
        """Ask, and get the answer chunk by chunk.

        Raises:
            InvalidInputError: the message is empty or not valid Unicode.
            ChatTemplateError: the model has no chat template, or it failed.
            ContextFullError: the conversation does not fit; nothing has changed.
            SessionBusyError: an earlier answer is unfinished.
        """
        if self._conversation is None:
            raise ChatTemplateError(
                "this model has no chat template: it continues text and cannot chat. "
                "Use complete(), or --raw on the command line"
            )
        if not isinstance(message, str) or not message.strip():
            raise InvalidInputError("the message is empty, or not a text")
        self._refuse_endless(message)
        return self._begin(message, params or SamplingParams())

    def send(self, message: str, *, params: SamplingParams | None = None) -> Reply:
        """Ask, and get the whole answer. Raises as `stream`, and EngineError."""
        return self.stream(message, params=params).finish()

    def stream_completion(
        self, prompt: str | Sequence[int] | Tokens, *, params: SamplingParams | None = None
    ) -> Answer:
        """Continue a text or token sequence as it is, without a chat template.

        It takes the place of the whole history; what both begin with is not read again. Names of
        special tokens in a text are text; pass ids from `Model.tokenize` to use them.

        Raises:
            InvalidInputError: the prompt is empty, not valid Unicode, or no token ids.
            ContextFullError: it does not fit; nothing has changed.
            SessionBusyError: an earlier answer is unfinished.
        """
        if isinstance(prompt, str):
            if not prompt:
                raise InvalidInputError("the prompt is empty")
            self._refuse_endless(prompt)
            tokens = self._vocab.tokenize(prompt, add_special=True)
        else:
            tokens = checked_tokens(prompt, self.engine.n_vocab)
        return self._begin(tokens, params or SamplingParams())

    def complete(
        self, prompt: str | Sequence[int] | Tokens, *, params: SamplingParams | None = None
    ) -> Reply:
        """Continue a text or token sequence to its end. Raises as `stream_completion`."""
        return self.stream_completion(prompt, params=params).finish()

    def cancel(self) -> None:
        """Stop the running answer, from any thread: it ends with finish reason "cancelled"."""
        self.engine.cancel()

    def reset(self) -> None:
        """Start over: forget all turns but the system message.

        Raises:
            SessionBusyError: an answer is being read in another thread.
        """
        with self._at_rest():
            self._rewind(0)
            if self._conversation:
                self._conversation.clear()

    def close(self) -> None:
        """Free the context. Idempotent.

        Raises:
            SessionBusyError: an answer is being read in another thread.
        """
        with self._at_rest():
            self.engine.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """End the answer that is left, and let no other begin meanwhile."""
        answer = self._answer() if self._answer else None
        if answer is not None:
            answer.close()
        if not self._busy.acquire(blocking=False):
            raise SessionBusyError(_BUSY)
        try:
            yield
        finally:
            self._release()

    def _begin(self, asked: str | Tokens, params: SamplingParams) -> Answer:
        this_thread = threading.get_ident()
        waits = self._wait and self._asking != this_thread
        if not self._busy.acquire(blocking=waits):
            raise SessionBusyError(_BUSY)
        self._asking = this_thread
        try:
            answer = self._start(asked, params)
        except BaseException:
            self._release()
            raise
        self._answer = weakref.ref(answer)
        return answer

    def _start(self, asked: str | Tokens, params: SamplingParams) -> Answer:
        turn = None
        if isinstance(asked, str) and self._conversation:
            turn = self._conversation.ask(asked, self._history.tokens)
        prompt = turn.tokens if turn else as_tokens(asked)
        if not len(prompt):
            raise InvalidInputError("the prompt is empty: it has no tokens")
        self._refuse_full(f"a prompt of {len(prompt)}", len(prompt))
        room = self.n_ctx - len(prompt)
        sampler = make_sampler(params, self._vocab, prompt, self.n_ctx)
        cached = self._take_prompt(prompt)
        self.engine.clear_cancel()
        max_tokens = min(params.max_tokens or room, room)
        steps = decode(
            self.engine,
            self._history,
            drafter=self.drafter,
            sampler=sampler,
            cost=self.cost,
            eog=self._vocab.eog_tokens,
            max_tokens=max_tokens,
            min_rows=self.min_rows,
            logprobs=params.logprobs,
        )
        return Answer(
            steps,
            Transcript(self._vocab, params.stop, params.stopping),
            max_tokens=max_tokens,
            summarize=lambda steps: fold(
                steps,
                prompt_tokens=len(prompt),
                cached_tokens=cached,
                threads=self.engine.n_threads,
                rollback=self.engine.rollback,
            ),
            on_end=lambda answer: self._settle(answer, turn, len(prompt)),
        )

    def _refuse_endless(self, text: str) -> None:
        """Refuse a text that cannot fit: a tokenizer spends many seconds on some megabytes."""
        longest = self._vocab.longest_piece if len(text) > self.n_ctx else 0
        if longest:
            n_least = len(text) // longest
            self._refuse_full(f"a text of at least {n_least}", n_least)

    def _refuse_full(self, what: str, n_tokens: int) -> None:
        if n_tokens >= self.n_ctx:
            raise ContextFullError(
                f"{what} tokens leaves no room for an answer in the context of {self.n_ctx}: "
                "shorten it, reset the session, or choose a larger context"
            )

    def _take_prompt(self, prompt: Tokens) -> int:
        """Make `prompt` the history, and return how much of it need not be read."""
        self._rewind(common_prefix(self._history.tokens, prompt))
        self._history.extend(prompt[len(self._history) :])
        self.engine.truncate(len(prompt) - 1)
        return self.engine.n_past

    def _settle(self, answer: Answer, turn: Turn | None, n_prompt: int) -> None:
        """Keep of an ended answer what its text shows, and take the turn into the chat."""
        n_kept, spelled = answer.transcript.spelled()
        try:
            if answer.stopped:
                self._rewind(n_prompt + n_kept)
            reply = answer.reply
            if self._conversation and turn and reply and reply.token_ids:
                self._conversation.answer(
                    turn, reply.text, spelled=spelled, n_spelled=n_prompt + n_kept
                )
        finally:
            self._release()

    def _release(self) -> None:
        self._asking = None
        self._busy.release()

    def _rewind(self, length: int) -> None:
        """Cut history, engine and drafter to the first `length` tokens."""
        if length < len(self._history):
            self._history.truncate(length)
            self.engine.truncate(length)
            self.drafter.reset()
        if self._conversation and length < self._conversation.n_spelled:
            self._conversation.forget_tokens()
