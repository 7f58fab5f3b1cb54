"""Model: a GGUF file, by registry name or path, from which sessions are made."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from copyspec_edge import registry
from copyspec_edge.answer import Answer
from copyspec_edge.arrays import MAX_ROWS, Tokens
from copyspec_edge.chat import ChatTemplate, Message, Reply
from copyspec_edge.drafting import AcceptanceModel, CopyDrafter, Drafter, NoDrafter, warm_up
from copyspec_edge.errors import ChatTemplateError, InvalidInputError, SessionBusyError
from copyspec_edge.exactness import Certificate, CertifiedCosts, ExactEngine, load_certified
from copyspec_edge.llama import Engine, Vocab, Weights, choose_extra_bufts, default_n_ctx
from copyspec_edge.sampling import SamplingParams
from copyspec_edge.session import Session
from copyspec_edge.settings import Settings, check_range
from copyspec_edge.tuning import MeasuredCosts, ModelTuning

_PATIENCE_SECONDS = 0.002


class Model:
    """A loaded model. Its sessions share the weights; each has a context of its own.

    A context manager: it ends unfinished answers and closes.

    Attributes:
        n_ctx: context length of its sessions, in tokens; fixed when it is loaded.
        certificate: what `exact=True` rests on; None without it.
    """

    def __init__(
        self, weights: Weights, settings: Settings, certificate: Certificate | None = None
    ) -> None:
        self.n_ctx = default_n_ctx(weights, settings)
        self.certificate = certificate
        self._weights = weights
        applied = certificate.apply(settings) if certificate else settings
        self._tuning = ModelTuning(weights, applied)
        self._vocab = Vocab(weights)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._completions: Session | None = None
        self._lock = threading.RLock()
        self._accept = AcceptanceModel()
        self._template: ChatTemplate | None = None
        source = weights.chat_template
        if source and self._vocab.exists:
            self._template = ChatTemplate(source, self._vocab)

    @classmethod
    def load(cls, source: str | Path, settings: Settings | None = None) -> Model:
        """Load a model.

        Args:
            source: a name of the registry, fetched if it is not there yet, or a path to a .gguf.
            settings: how to load it and how to make contexts.

        Raises:
            RegistryError: neither a known name nor a file, or fetching failed.
            ModelLoadError: not a file that llama.cpp can decode with.
            NativeBuildError: the installed llama.cpp crashes on this machine.
            ChatTemplateError: its chat template is not valid.
            ExactnessError: `exact=True` cannot be kept; the message says what was seen.
        """
        settings = settings or Settings()
        path = registry.locate(source)
        if settings.exact:
            warm_up()
            weights, certificate = load_certified(path, settings)
            return cls(weights, settings, certificate)
        extra_bufts = settings.use_extra_bufts
        if extra_bufts is None:
            extra_bufts = choose_extra_bufts()
        warm_up()
        return cls(Weights(path, settings, use_extra_bufts=extra_bufts), settings)

    @property
    def path(self) -> Path:
        """The file it was loaded from."""
        return self._weights.path

    @property
    def description(self) -> str:
        """Architecture, size and quantization in a few words."""
        return self._weights.description

    @property
    def eog_tokens(self) -> frozenset[int]:
        """Ids of the tokens that end a generation."""
        return self._vocab.eog_tokens

    @property
    def can_chat(self) -> bool:
        """Whether the file has a chat template."""
        return self._template is not None

    def session(
        self,
        *,
        system: str | None = None,
        copy: bool = True,
        min_rows: int | None = None,
        wait: bool = False,
    ) -> Session:
        """A new conversation with a context of its own.

        Args:
            system: system message of the chat.
            copy: draft by copying; without it every token costs a forward pass.
            min_rows: least number of tokens decoded at once; None: 1, or what the certificate of
                `exact=True` says.
            wait: a second thread that asks waits for the first one's answer to end, instead of
                a SessionBusyError.

        Raises:
            InvalidInputError: another `min_rows` than that of the certificate.
            ChatTemplateError: a system message for a model without a chat template.
            EngineError: the context could not be made, mostly for lack of memory.
        """
        if system is not None and not self.can_chat:
            raise ChatTemplateError("this model has no chat template, so no system message either")
        if self.certificate and min_rows not in (None, self.certificate.min_rows):
            raise InvalidInputError(f"exact=True needs min_rows={self.certificate.min_rows} here")
        check_range("min_rows", min_rows, 1, MAX_ROWS)
        self._weights.admit()
        with self._lock:
            engine, cost = self._engine_and_cost(min_rows or 1)
            drafter: Drafter = NoDrafter()
            if copy:
                drafter = CopyDrafter(engine.n_ctx, self._vocab.eog_tokens, self._accept)
            session = Session(
                engine,
                self._vocab,
                self._template,
                cost,
                drafter,
                system=system,
                wait=wait,
            )
            self._sessions.add(session)
        return session

    def _engine_and_cost(self, min_rows: int) -> tuple[Engine, MeasuredCosts]:
        weights, settings, n_ctx = self._weights, self._tuning.settings, self.n_ctx
        if self.certificate is None:
            engine = Engine(weights, settings, n_ctx=n_ctx, min_rows=min_rows)
            return engine, self._tuning.tune(engine)
        engine = ExactEngine(weights, settings, self.certificate, n_ctx=n_ctx)
        return engine, CertifiedCosts(self._tuning.tune(engine), self.certificate)

    def stream_completion(
        self, prompt: str | Sequence[int] | Tokens, *, params: SamplingParams | None = None
    ) -> Answer:
        """Continue a text without a chat template, chunk by chunk. See `Session`.

        One session is kept for this, so that texts with a common beginning share its reading;
        a second thread waits for the first one's answer to end.
        """
        self._weights.admit()
        with self._lock:
            if self._completions is None:
                self._completions = self.session(wait=True)
        return self._completions.stream_completion(prompt, params=params)

    def complete(
        self, prompt: str | Sequence[int] | Tokens, *, params: SamplingParams | None = None
    ) -> Reply:
        """Continue a text to its end. See `stream_completion`, whose answers can be cancelled."""
        return self.stream_completion(prompt, params=params).finish()

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> Tokens:
        """Token ids of a text, shape (n,).

        Args:
            add_special: put the beginning-of-sequence token in front where the model wants one.
            parse_special: read the names of special tokens as these tokens. Not for users' text.

        Raises:
            InvalidInputError: the text is not valid Unicode.
        """
        return self._vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def tokenize_chat(self, messages: Sequence[Message]) -> Tokens:
        """Token ids of a conversation up to where the assistant is to answer, shape (n,).

        Raises:
            ChatTemplateError: no chat template, or it failed on these messages.
        """
        if self._template is None:
            raise ChatTemplateError("this model has no chat template")
        return self._template.tokenize(self._template.render(list(messages)))

    def detokenize(self, token_ids: Sequence[int] | Tokens) -> str:
        """Text of token ids, without control tokens.

        Raises:
            InvalidInputError: there is no such token.
        """
        return self._vocab.text(token_ids)

    def close(self, *, cancel: bool = False) -> None:
        """Close its sessions and free the weights, or nothing. Idempotent.

        Args:
            cancel: end unfinished answers first, and wait for threads that use the model.

        Raises:
            SessionBusyError: an answer is unfinished, or a text is being tokenized; all can be
                used on. With `cancel`: this is called from within an answer.
        """
        if not self._weights.is_open:
            return
        if not cancel:
            self._close_at_rest()
            return
        with self._weights.retired():
            while self._weights.is_open:
                self._end_answers()
                with suppress(SessionBusyError):
                    self._close_at_rest()
                    return
                time.sleep(_PATIENCE_SECONDS)

    def _close_at_rest(self) -> None:
        with self._lock, ExitStack() as leases:
            sessions = list(self._sessions)
            for session in sessions:
                leases.enter_context(session.lease.held())
            self._weights.close(contexts=[session.engine for session in sessions])

    def _end_answers(self) -> None:
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.cancel()
            session.end_answer(cancel=True)

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(cancel=True)
