"""Session: one conversation with a model. It owns engine, history and drafter."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType

from copyspec_edge.answer import Answer
from copyspec_edge.arrays import Tokens, common_prefix
from copyspec_edge.chat import ChatTemplate, Conversation, Message, Prompts, Reply, Transcript, Turn
from copyspec_edge.decoding import History, decode, fold
from copyspec_edge.drafting import Drafter
from copyspec_edge.lease import Lease
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
        engine, drafter, cost: its parts, for measurements; not for use while an answer runs.
        lease: who has them; an answer from its beginning to its end.
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
        wait: bool = False,
    ) -> None:
        self.engine = engine
        self.cost = cost
        self.drafter = drafter
        self.lease = Lease(_BUSY, stop=engine.cancel, unstop=engine.clear_cancel)
        self._waits = wait
        self._vocab = vocab
        self._prompts = Prompts(vocab, engine.n_ctx)
        self._history = History(engine.n_ctx)
        self._conversation = Conversation(template, system)
        self._last: weakref.ref[Answer] | None = None

    @property
    def n_ctx(self) -> int:
        """Most tokens of the conversation."""
        return self._history.capacity

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All committed tokens, prompts included."""
        return tuple(self._history.tokens.tolist())

    @property
    def messages(self) -> tuple[Message, ...]:
        """The chat so far: the system message if there is one, questions and answers."""
        return tuple(self._conversation.messages)

    def stream(self, message: str, *, params: SamplingParams | None = None) -> Answer:
        """Ask, and get the answer chunk by chunk.

        Raises:
            InvalidInputError: the message is empty or not valid Unicode.
            ChatTemplateError: the model has no chat template, or it failed.
            ContextFullError: the conversation does not fit; nothing has changed.
            SessionBusyError: an earlier answer is unfinished.
        """
        self._prompts.refuse_unaskable(message)
        return self._begin(lambda: self._conversation.ask(message, self._history.tokens), params)

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
        return self._begin(lambda: self._prompts.tokens(prompt), params)

    def complete(
        self, prompt: str | Sequence[int] | Tokens, *, params: SamplingParams | None = None
    ) -> Reply:
        """Continue a text or token sequence to its end. Raises as `stream_completion`."""
        return self.stream_completion(prompt, params=params).finish()

    def cancel(self) -> None:
        """Stop the answer that is running, and no later one, from any thread: it is "cancelled"."""
        self.lease.stop()

    def reset(self) -> None:
        """Start over: forget all turns but the system message. Ends an answer nobody reads.

        Raises:
            SessionBusyError: an answer is being read in another thread.
        """
        self.end_answer()
        with self.lease.held():
            self._rewind(0)
            self._conversation.clear()

    def close(self) -> None:
        """Free the context. Ends an answer nobody reads. Idempotent.

        Raises:
            SessionBusyError: an answer is being read in another thread.
        """
        if self.engine.is_open:
            self.end_answer()
            with self.lease.held():
                self.engine.close()

    def end_answer(self, *, cancel: bool = False) -> None:
        """End the answer that was left unfinished. `cancel`, and raises, as `Answer.close`."""
        answer = self._last() if self._last else None
        if answer is not None:
            answer.close(cancel=cancel)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, ask: Callable[[], Turn | Tokens], params: SamplingParams | None) -> Answer:
        """An answer to what `ask` gives, called under the lease, which the answer then has."""
        self.engine.admit()
        term = self.lease.take(waits=self._waits)
        try:
            self.engine.admit()  # it may have been closed while this waited
            answer = self._answer(ask(), params or SamplingParams(), term)
        except BaseException:
            self.lease.give_back()
            raise
        self._last = weakref.ref(answer)
        return answer

    def _answer(self, asked: Turn | Tokens, params: SamplingParams, term: int) -> Answer:
        turn = asked if isinstance(asked, Turn) else None
        prompt = asked.tokens if isinstance(asked, Turn) else asked
        self._prompts.refuse_unanswerable(prompt)
        room = self.n_ctx - len(prompt)
        max_tokens = min(params.max_tokens or room, room)
        sampler = make_sampler(params, self._vocab, prompt, self.n_ctx)
        cached = self._take_prompt(prompt)
        steps = decode(
            self.engine,
            self._history,
            drafter=self.drafter,
            sampler=sampler,
            cost=self.cost,
            eog=self._vocab.eog_tokens,
            max_tokens=max_tokens,
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
            cancel=lambda: self.lease.stop(term),
            on_end=lambda answer: self._settle(answer, turn, len(prompt)),
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
            if turn and reply and reply.token_ids:
                n_spelled = n_prompt + n_kept
                self._conversation.answer(turn, reply.text, spelled=spelled, n_spelled=n_spelled)
        finally:
            self.lease.give_back()

    def _rewind(self, length: int) -> None:
        """Cut history, engine and drafter to the first `length` tokens."""
        if length < len(self._history):
            self._history.truncate(length)
            self.engine.truncate(length)
            self.drafter.reset()
        if length < self._conversation.n_spelled:
            self._conversation.forget_tokens()
