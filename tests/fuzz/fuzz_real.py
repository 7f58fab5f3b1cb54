"""A model of llama.cpp for the fuzzer, with faults in `llama_decode`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np
from fake_engine import Row
from fake_vocab import N_VOCAB as N_PIECES
from fake_vocab import fake_template, fake_vocab
from fuzz_worlds import AnyDrafter, Mishap, elsewhere
from oracle import Reader
from scripted_drafter import FLAT

from copyspec_edge import Session, Settings
from copyspec_edge.arrays import as_tokens
from copyspec_edge.chat.template import ChatTemplate, Message
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.exactness.certificate import Certificate, CertifiedCosts
from copyspec_edge.exactness.certify import load_certified
from copyspec_edge.exactness.exact_engine import ExactEngine
from copyspec_edge.llama.engine import Engine
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.llama.weights import Weights

Call = Callable[[object, object], int]


class FaultyDecode:
    """Stands in for `llama_decode`, and lets single calls of single contexts go wrong."""

    def __init__(self, decode: Call) -> None:
        self.decode = decode
        self.plans: dict[object, tuple[int, Call]] = {}

    def __call__(self, context: object, batch: object) -> int:
        left, fault = self.plans.get(context, (-1, self.decode))
        if left >= 0:
            self.plans[context] = left - 1, fault
        return fault(context, batch) if left == 0 else self.decode(context, batch)


class RealWorld:
    """Sessions of one loaded model, decoded so that the same rows come out of any batch.

    One thread, flash attention off and two rows at least, or whatever is certified. A model
    without a tokenizer, and with as many tokens as the fake vocabulary, speaks that one.
    """

    mishaps: tuple[Mishap, ...] = (
        *("before", "after", "nan", "full", "interrupt"),
        *("cancel", "cancel elsewhere"),
    )
    alphabet = "abcd é한\n"

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int = 64,
        n_batch: int = 64,
        seed: int = 0,
        exact: bool = False,
    ) -> None:
        self._rng = random.Random(seed)
        self._settings = Settings(
            n_ctx=n_ctx,
            n_threads=1,
            flash_attn="off",
            type_k="f32",
            type_v="f32",
            n_batch=n_batch,
            n_ubatch=n_batch,
        )
        self.n_ctx = n_ctx
        self._certificate: Certificate | None = None
        if exact:
            settings = replace(self._settings, exact=True)
            weights, self._certificate = load_certified(path, settings)
            self._settings = self._certificate.apply(settings)
        else:
            weights = Weights(path, self._settings, use_extra_bufts=False)
        self._weights = weights
        self.vocab = Vocab(weights)
        self.grammars = self.vocab.exists
        self._template: ChatTemplate | None = None
        if not self.vocab.exists and self.vocab.n_tokens == N_PIECES:
            self.vocab, self._template = fake_vocab(), fake_template()
        elif self.vocab.exists and weights.chat_template:
            self._template = ChatTemplate(weights.chat_template, self.vocab)
        self.chats = self._template is not None
        is_windowed = llama_cpp.llama_model_n_swa(weights.pointer) > 0
        self.can_truncate = weights.state is None and not is_windowed
        self._faulty = FaultyDecode(llama_cpp.llama_decode)
        llama_cpp.llama_decode = self._faulty

    @classmethod
    def random(cls, path: Path, seed: int, *, exact: bool = False) -> RealWorld:
        rng = random.Random(seed)
        n_ctx, n_batch = rng.choice([48, 160]), rng.choice([16, 64])
        return cls(path, n_ctx=n_ctx, n_batch=n_batch, seed=seed, exact=exact)

    def session(self) -> tuple[Session, AnyDrafter]:
        copy = CopyDrafter(self.n_ctx, self.vocab.eog_tokens)
        eog = min(self.vocab.eog_tokens, default=0)
        seed = self._rng.getrandbits(32)
        drafter = AnyDrafter(copy, n_vocab=self.vocab.n_tokens, eog=eog, seed=seed)
        certificate = self._certificate
        session = Session(
            self._engine(),
            self.vocab,
            self._template,
            CertifiedCosts(FLAT, certificate) if certificate else FLAT,
            drafter,
        )
        return session, drafter

    def _engine(self) -> Engine:
        weights, settings, certificate = self._weights, self._settings, self._certificate
        if certificate:
            return ExactEngine(weights, settings, certificate, n_ctx=self.n_ctx)
        return Engine(weights, settings, n_ctx=self.n_ctx, min_rows=2)

    def reader(self) -> Reader:
        return FreshReader(self._engine())

    def arm(self, session: Session, mishap: Mishap, at: int) -> None:
        self._faulty.plans[session.engine._context] = at, self._fault(session, mishap)

    def disarm(self, session: Session) -> None:
        self._faulty.plans.pop(session.engine._context, None)

    def held(self, session: Session) -> list[int]:
        return list(session.token_ids[: session.engine.n_past])

    def render(self, messages: list[Message]) -> str:
        # Where a tokenizer adds spaces is its own business.
        return "\ufffd"

    def close(self) -> None:
        llama_cpp.llama_decode = self._faulty.decode
        self._weights.close()

    def _fault(self, session: Session, mishap: Mishap) -> Call:
        decode, n_vocab = self._faulty.decode, self.vocab.n_tokens

        def fault(context: object, batch: object) -> int:
            if mishap == "cancel":
                session.cancel()
            elif mishap == "cancel elsewhere":
                elsewhere(session.cancel)
            elif mishap in ("before", "full"):
                return 1 if mishap == "full" else -3
            code = decode(context, batch)
            if mishap == "nan" and code == 0:
                np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (n_vocab,))[0] = np.nan
            if mishap == "interrupt":
                raise KeyboardInterrupt
            return -3 if mishap == "after" else code

        return fault


class FreshReader:
    """The logits behind a growing token sequence, from a context of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, tokens: Sequence[int]) -> Row:
        engine = self._engine
        unread = as_tokens(tokens[engine.n_past :])
        n_rows = min(engine.min_rows, engine.max_rows, engine.n_ctx - engine.n_past)
        pad = max(0, n_rows - len(unread))
        rows = engine.eval(as_tokens([*unread, *unread[-1:].repeat(pad)]), rows=n_rows)
        row: Row = rows[n_rows - pad - 1].copy()
        engine.truncate(len(tokens))
        return row
