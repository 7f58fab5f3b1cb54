"""One session under the fuzzer: does things to it, and knows what must have come of them."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from every_option import Hiccup, HiccupError, any_params
from fuzz_worlds import CHOICES, AnyDrafter, DrafterError, World
from oracle import Said, plainly, said, whole_characters

from copyspec_edge.answer import Answer
from copyspec_edge.arrays import as_tokens, common_prefix
from copyspec_edge.chat.reply import Chunk, Reply
from copyspec_edge.errors import (
    ContextFullError,
    EngineError,
    InvalidInputError,
    SessionBusyError,
    SessionClosedError,
)
from copyspec_edge.sampling.params import SamplingParams

NOTHING = Said("", (), "length")


@dataclass
class Asked:
    """A question that is being answered, and what it should lead to."""

    answer: Answer
    prompt: list[int]
    params: SamplingParams
    expected: Said
    message: str | None
    may_fail: bool = False
    may_cancel: bool = False
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.token_ids)


class Talker:
    """A session, the answer it is giving if there is one, and the chat as it should be."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.seen: Counter[str] = Counter()
        self.log: list[str] = []
        self._processor, self._criterion = Hiccup(), Hiccup()
        self._open: Asked | None = None
        self._former: Answer | None = None
        self._begin()

    def _begin(self) -> None:
        self._session, self._drafter = self._world.session()
        self._breakable: list[AnyDrafter | Hiccup] = [
            self._drafter,
            self._processor,
            self._criterion,
        ]
        self._messages = list(self._session.messages)
        self._system = list(self._messages)

    def act(self) -> None:
        """One random operation and all checks."""
        if self._open is None:
            choices = [self.ask] * 12 + [self.refuse, self.reset, self.reopen, self.cancel_idle]
        else:
            choices = [self.go_on, self.go_on, self.leave, self.reset, self.reopen, self.disturb]
        operation = self._rng.choice(choices)
        self._note(operation.__name__)
        operation()
        self._check()

    def close(self) -> None:
        """End what is open and free the context."""
        self._open = None
        self._session.close()

    # Asking.

    def ask(self) -> None:
        params = self._params()
        held = self._world.held(self._session)
        message, prompt = None, None
        try:
            if self._world.chats and self._rng.random() < 0.5:
                message = self._text()
                answer = self._session.stream(message, params=params)
            else:
                prompt = self._prompt()
                answer = self._session.stream_completion(prompt, params=params)
        except ContextFullError:
            self._note("context full")
            return
        committed = list(self._session.token_ids)
        if prompt is None:
            self._check_rendering(committed, str(message))
        else:
            assert committed == prompt
        if self._former is not None and self._rng.random() < 0.3:
            self._note("the former answer cancelled")
            self._former.cancel()
        asked = self._asked(answer, committed, params, message)
        self._check_cached(asked, held)
        self._open = asked
        self._prepare(asked)
        self.go_on()

    def _params(self) -> SamplingParams:
        world = self._world
        params = any_params(self._rng, world.alphabet, grammars=world.grammars)
        if self._rng.random() < 0.7:
            return params
        return replace(
            params,
            logits_processors=(*params.logits_processors, self._processor),
            stopping=(*params.stopping, self._criterion),
        )

    def _asked(
        self, answer: Answer, prompt: list[int], params: SamplingParams, message: str | None
    ) -> Asked:
        expected = plainly(
            self._world.reader(), self._world.vocab, prompt, params, self._world.n_ctx
        )
        self._note(f"prompt {prompt}, {params}, expected {expected}")
        return Asked(answer, prompt, params, expected, message)

    def _prepare(self, asked: Asked) -> None:
        """Choose drafts and mishaps for an answer."""
        self._drafter.choice = self._rng.choice(CHOICES)
        self._drafter.expected = as_tokens([*asked.prompt, *asked.expected.token_ids])
        self._note(f"drafts: {self._drafter.choice}")
        if self._rng.random() < 0.3:
            mishap = self._rng.choice(self._world.mishaps)
            self._world.arm(self._session, mishap, at := self._rng.choice([0, 0, 1, 2, 5, 9]))
            asked.may_cancel = mishap.startswith("cancel")
            asked.may_fail = not asked.may_cancel
            self._note(f"mishap: {mishap} at {at}")
        elif self._rng.random() < 0.1:
            at = self._rng.choice([0, 1, 3])
            failing = self._rng.choice(self._breakable)
            failing.fails_at = at + (len(asked.prompt) if failing is self._processor else 0)
            asked.may_fail = True
            self._note(f"{type(failing).__name__} fails at {failing.fails_at}")

    def _text(self) -> str:
        size = self._rng.choice([1, 3, 8, 8, 8, 60])
        return "".join(self._rng.choices(self._world.alphabet, k=size)) + "."

    def _prompt(self) -> list[int]:
        """Token ids that begin with none, some or all of the history."""
        history = list(self._session.token_ids)
        kept = history[: self._rng.choice([0, len(history), self._rng.randint(0, len(history))])]
        size = self._rng.choice([0, 1, 2, 5, 20]) if kept else self._rng.choice([1, 2, 9, 50])
        n_vocab = self._world.vocab.n_tokens
        few = self._rng.sample(range(n_vocab), 3)  # so that something repeats
        tokens = self._rng.choices(few if self._rng.random() < 0.5 else range(n_vocab), k=size)
        return [*kept, *tokens] or [few[0]]

    # Reading.

    def go_on(self) -> None:
        """Read the open answer: some of it or all, here or in another thread."""
        assert self._open
        asked = self._open
        most = self._rng.choice([None, None, None, 1, 3])
        read: Callable[[], None] = lambda: self._read(asked, most)  # noqa: E731
        failures: list[BaseException] = []
        canceller = self._cancel_soon(asked) if self._rng.random() < 0.05 else None
        if self._rng.random() < 0.1:
            in_thread(read, failures)
        else:
            caught(read, failures)
        if canceller:
            canceller.join()
        if failures:
            self._failed(asked, failures[0])
        elif asked.answer.reply is not None:
            self._ended(asked, asked.answer.reply)

    def _cancel_soon(self, asked: Asked) -> threading.Thread:
        """A cancel at any moment; of all that happens here only its time is not repeatable."""
        asked.may_cancel = True
        cancel = self._rng.choice([self._session.cancel, asked.answer.cancel])
        timer = threading.Timer(self._rng.random() / 200, cancel)
        timer.start()
        self._note("cancelled soon")
        return timer

    def _read(self, asked: Asked, most: int | None) -> None:
        for chunk in asked.answer:
            asked.chunks.append(chunk)
            if most is not None and len(asked.chunks) >= most:
                return

    def leave(self) -> None:
        """Close or drop the open answer."""
        assert self._open
        asked, self._open = self._open, None
        asked.may_cancel = True
        if self._rng.random() < 0.5:
            asked.answer.close()
            assert asked.answer.reply
            self._open = asked
            self._ended(asked, asked.answer.reply, to_its_end=False)
            return
        self._note("dropped")
        self._disarm()
        partial = self._partial(asked, len(asked.token_ids))
        tokens, prompt, message = asked.token_ids, asked.prompt, asked.message
        del asked
        gc.collect()
        assert self._session.token_ids == (*prompt, *tokens)
        self._take_turn(message, partial)

    def disturb(self) -> None:
        """What is not allowed while an answer is open, and a cancel."""
        assert self._open
        with pytest.raises(SessionBusyError):
            self._session.complete([1])
        if self._rng.random() < 0.5:
            self._open.may_cancel = True
            self._rng.choice([self._session.cancel, self._open.answer.cancel])()
            self.go_on()

    def _partial(self, asked: Asked, n_tokens: int) -> Said:
        """What the first tokens of the expected answer say."""
        if not n_tokens:
            return NOTHING
        params = replace(asked.params, max_tokens=n_tokens)
        reader, vocab = self._world.reader(), self._world.vocab
        return plainly(reader, vocab, asked.prompt, params, self._world.n_ctx)

    # What came of it.

    def _ended(self, asked: Asked, reply: Reply, *, to_its_end: bool = True) -> None:
        self._open, self._former = None, asked.answer
        self._disarm()
        self.seen[reply.finish_reason] += 1
        self.seen["tokens"] += len(reply.token_ids)
        self.seen["accepted"] += reply.stats.accepted_tokens
        if reply.finish_reason == "cancelled":
            assert asked.may_cancel
            partial = self._partial(asked, len(reply.token_ids))
            assert partial.finish_reason == "length"
            assert said(reply) == replace(partial, finish_reason="cancelled")
        else:
            assert said(reply) == asked.expected
        shown = "".join(chunk.text for chunk in asked.chunks)
        assert reply.text.startswith(shown)
        assert reply.text == shown or not to_its_end
        assert reply.token_ids == asked.token_ids
        assert reply.logprobs == tuple(of for chunk in asked.chunks for of in chunk.logprobs)
        check_stats(asked, reply)
        self._check_kept(asked, reply)
        self._take_turn(asked.message, said(reply))

    def _failed(self, asked: Asked, error: BaseException) -> None:
        may_fail = asked.may_fail or asked.expected.finish_reason == "error"
        injected = (EngineError, ContextFullError, DrafterError, HiccupError, KeyboardInterrupt)
        if not (may_fail and isinstance(error, injected)):
            raise error
        self._open = None
        self._disarm()
        self.seen["errors"] += 1
        tokens = asked.token_ids
        assert asked.answer.reply is None
        assert tokens == asked.expected.token_ids[: len(tokens)]
        committed = self._session.token_ids[len(asked.prompt) :]
        assert committed[: len(tokens)] == tokens
        if not isinstance(error, HiccupError):
            assert committed == tokens
            return
        # A stopping criterion looks at tokens that are committed.
        endless = replace(asked, params=replace(asked.params, stop=(), stopping=()))
        assert committed == self._partial(endless, len(committed)).token_ids

    def _check_kept(self, asked: Asked, reply: Reply) -> None:
        """The history ends with the most tokens that spell nothing but the text."""
        kept = self._session.token_ids[len(asked.prompt) :]
        assert (*asked.prompt, *kept) == self._session.token_ids
        assert kept == reply.token_ids[: len(kept)]
        is_eog = bool(kept) and kept[-1] in self._world.vocab.eog_tokens
        if reply.finish_reason != "stop" or is_eog:
            assert kept == reply.token_ids
            return
        self.seen["rewinds"] += 1
        raw = b"".join(map(self._world.vocab.piece, kept))
        assert reply.text.startswith(whole_characters(raw))
        assert is_whole(raw)
        for n_more in range(len(kept) + 1, len(reply.token_ids) + 1):
            raw = b"".join(map(self._world.vocab.piece, reply.token_ids[:n_more]))
            assert not (is_whole(raw) and reply.text.startswith(whole_characters(raw)))

    def _take_turn(self, message: str | None, answer: Said) -> None:
        if message is not None and answer.token_ids:
            self._messages.append({"role": "user", "content": message})
            self._messages.append({"role": "assistant", "content": answer.text})

    # Other operations.

    def refuse(self) -> None:
        """Input that must change nothing."""
        before = self._session.token_ids
        n_vocab = self._world.vocab.n_tokens
        for bad in ([], [-1], [n_vocab], "", "\ud800"):
            with pytest.raises(InvalidInputError):
                self._session.complete(bad)
        with pytest.raises(ContextFullError):
            self._session.complete([1] * self._world.n_ctx)
        assert self._session.token_ids == before

    def reset(self) -> None:
        self._session.reset()
        self._abandoned()
        assert self._session.token_ids == ()
        self._messages = list(self._system)

    def reopen(self) -> None:
        """Close the session and go on with a new one."""
        self._session.close()
        self._abandoned()
        with pytest.raises(SessionClosedError):
            self._session.complete([1])
        self._begin()

    def cancel_idle(self) -> None:
        self._session.cancel()

    def _abandoned(self) -> None:
        asked, self._open = self._open, None
        self._disarm()
        if asked:
            reply = asked.answer.reply
            assert reply
            assert reply.finish_reason == "cancelled"
            assert reply.token_ids == asked.token_ids
            assert reply.text == self._partial(asked, len(reply.token_ids)).text

    # Checks.

    def _check(self) -> None:
        committed = list(self._session.token_ids)
        held = self._world.held(self._session)
        assert held == committed[: len(held)]
        assert list(self._session.messages) == self._messages

    def _check_rendering(self, tokens: list[int], message: str) -> None:
        rendered = self._world.render([*self._messages, {"role": "user", "content": message}])
        if "\ufffd" not in rendered:
            raw = b"".join(map(self._world.vocab.piece, tokens))
            assert raw.decode("utf-8", "replace") == rendered

    def _check_cached(self, asked: Asked, held: list[int]) -> None:
        """Nothing is read twice that need not be."""
        same = min(common_prefix(np.array(held), np.array(asked.prompt)), len(asked.prompt) - 1)
        n_past = self._session.engine.n_past
        assert n_past == same or (n_past < same < len(held) and not self._world.can_truncate)

    def _disarm(self) -> None:
        self._world.disarm(self._session)
        for failing in self._breakable:
            failing.fails_at = None

    def _note(self, line: str) -> None:
        self.log.append(line)


def check_stats(asked: Asked, reply: Reply) -> None:
    """The identities that `Stats` promises."""
    stats = reply.stats
    steps = [chunk for chunk in asked.chunks if chunk.token_ids]
    ended_drafted = sum(chunk.copied == len(chunk.token_ids) for chunk in steps)
    assert stats.prompt_tokens == len(asked.prompt)
    assert 0 <= stats.cached_tokens < stats.prompt_tokens
    assert stats.generated_tokens == len(reply.token_ids)
    assert stats.verify_steps == len(steps)
    assert stats.accepted_tokens == sum(chunk.copied for chunk in steps) <= stats.drafted_tokens
    assert stats.generated_tokens == stats.verify_steps + stats.accepted_tokens - ended_drafted
    assert ended_drafted <= 1


def is_whole(raw: bytes) -> bool:
    """Whether no character is unfinished."""
    return whole_characters(raw) == raw.decode("utf-8", "replace")


def caught(action: Callable[[], None], failures: list[BaseException]) -> None:
    try:
        action()
    except BaseException as error:
        failures.append(error)


def in_thread(action: Callable[[], None], failures: list[BaseException]) -> None:
    thread = threading.Thread(target=caught, args=(action, failures))
    thread.start()
    thread.join()
