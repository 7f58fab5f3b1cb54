"""Models for the fuzzer, with sessions whose drafter and whose faults it governs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

from fake_engine import FakeEngine, Fault, Language, TinyLanguage
from fake_vocab import BOT, END, N_VOCAB, USER, FakeVocab, fake_template, fake_vocab
from oracle import Reader
from scripted_drafter import FLAT, KINDS, Kind, ScriptedDrafter

from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.chat.template import Message
from copyspec_edge.drafting.acceptance import AcceptanceModel
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.drafter import NO_DRAFT, Draft
from copyspec_edge.llama.engine import Engine
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.session import Session
from copyspec_edge.tuning.cost import MeasuredCosts
from copyspec_edge.tuning.curves import CPU_CURVE

# "full": no room in the cache. "interrupt": Ctrl-C while a batch is read. "cancel" and "cancel
# elsewhere": a cancel meanwhile, from this and another thread.
Mishap = Literal[Fault, "full", "interrupt", "cancel", "cancel elsewhere"]
Choice = Literal[Kind, "copy", "none", "any"]
CHOICES: tuple[Choice, ...] = (*KINDS, "copy", "none", "any")


class DrafterError(RuntimeError):
    """A drafter of the user's that fails."""


class AnyDrafter:
    """Drafts well or badly, as it is told for each answer.

    Attributes:
        choice: how it drafts; "any" changes with every draft.
        expected: the whole history as plain decoding leaves it.
        fails_at: the draft of the answer at which it raises.
    """

    def __init__(self, copy: CopyDrafter, *, n_vocab: int, eog: int, seed: int) -> None:
        self.choice: Choice = "copy"
        self.expected = as_tokens([])
        self.fails_at: int | None = None
        self._copy = copy
        self._n_vocab = n_vocab
        self._eog = eog
        self._random = random.Random(seed)

    def draft(self, history: Tokens, limit: int) -> Draft:
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                raise DrafterError("injected: drafting failed")
        choice = self._random.choice(CHOICES) if self.choice == "any" else self.choice
        if choice in ("none", "any"):
            return NO_DRAFT
        if choice == "copy":
            return self._copy.draft(history, limit)
        scripted = ScriptedDrafter(
            cast(Kind, choice),
            self.expected,
            n_vocab=self._n_vocab,
            eog=self._eog,
            seed=self._random.getrandbits(32),
        )
        return scripted.draft(history, min(limit, self._random.choice([1, 2, 3, 8, limit])))

    def reset(self) -> None:
        self._copy.reset()


class World(Protocol):
    """One model. `arm` lets something go wrong in the k-th batch that is read from now on."""

    vocab: Vocab
    n_ctx: int
    alphabet: str
    chats: bool
    grammars: bool
    can_truncate: bool
    mishaps: tuple[Mishap, ...]

    def session(self) -> tuple[Session, AnyDrafter]: ...

    def reader(self) -> Reader: ...

    def arm(self, session: Session, mishap: Mishap, at: int) -> None: ...

    def disarm(self, session: Session) -> None: ...

    def held(self, session: Session) -> list[int]: ...

    def render(self, messages: list[Message]) -> str:
        """A conversation as its template has it, without special tokens."""
        ...

    def close(self) -> None: ...


def elsewhere(action: Callable[[], None]) -> None:
    """Do it in another thread, and wait for it."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@dataclass
class FakeWorld:
    """Sessions on fake engines that speak one tiny language."""

    language: Language
    n_ctx: int = 200
    max_rows: int = 16
    n_batch: int = 32
    can_truncate: bool = True
    checkpoints: bool = False
    min_rows: int = 1
    cost: MeasuredCosts = FLAT
    system: str | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    mishaps: tuple[Mishap, ...] = ("before", "partly", "after", "nan", "cancel", "cancel elsewhere")
    chats = True
    grammars = False
    alphabet = "abcdef é한\n"

    def __post_init__(self) -> None:
        self.vocab = fake_vocab()
        self._accept = AcceptanceModel()

    @classmethod
    def random(cls, seed: int) -> FakeWorld:
        rng = random.Random(seed)
        ends = rng.choice([frozenset({END}), frozenset[int]()])
        order, unlikely = rng.randint(1, 3), ends | {USER, BOT}
        max_rows = rng.choice([1, 2, 5, 16])
        memory = rng.choice(["attention", "attention", "checkpoint", "none"])
        return cls(
            TinyLanguage(N_VOCAB, order=order, seed=seed, unlikely=unlikely),
            n_ctx=rng.choice([24, 64, 200]),
            max_rows=max_rows,
            n_batch=max_rows + rng.choice([1, 7, 30]),
            can_truncate=memory == "attention",
            checkpoints=memory == "checkpoint",
            min_rows=rng.choice([1, 1, 2]),
            cost=rng.choice([FLAT, CPU_CURVE]),
            system=rng.choice([None, "f."]),
            rng=rng,
        )

    def session(self) -> tuple[Session, AnyDrafter]:
        engine = FakeEngine(
            self.language,
            n_ctx=self.n_ctx,
            min_rows=self.min_rows,
            max_rows=self.max_rows,
            n_batch=self.n_batch,
            can_truncate=self.can_truncate,
            checkpoints=self.checkpoints,
        )
        copy = CopyDrafter(self.n_ctx, self.vocab.eog_tokens, self._accept)
        drafter = AnyDrafter(copy, n_vocab=N_VOCAB, eog=END, seed=self.rng.getrandbits(32))
        session = Session(
            cast(Engine, engine),
            self.vocab,
            fake_template(),
            self.cost,
            drafter,
            system=self.system,
        )
        return session, drafter

    def reader(self) -> Reader:
        return self.language.row

    def arm(self, session: Session, mishap: Mishap, at: int) -> None:
        engine = cast(FakeEngine, session.engine)
        if mishap in ("before", "partly", "after", "nan"):
            engine.faults[len(engine.batch_sizes) + at] = mishap
            return
        cancel = session.cancel if mishap == "cancel" else lambda: elsewhere(session.cancel)
        first = engine._n_chunks
        engine.on_chunk = lambda chunk: cancel() if chunk == first + at else None

    def disarm(self, session: Session) -> None:
        engine = cast(FakeEngine, session.engine)
        engine.faults.clear()
        engine.on_chunk = None

    def held(self, session: Session) -> list[int]:
        return list(cast(FakeEngine, session.engine).tokens)

    def render(self, messages: list[Message]) -> str:
        return FakeVocab.special_text.sub("", fake_template().render(messages))

    def close(self) -> None:
        pass
