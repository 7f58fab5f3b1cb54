from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from fake_engine import FakeEngine, Fault, Language, RecitingLanguage, TinyLanguage
from fake_vocab import (
    BOT,
    END,
    N_VOCAB,
    PIECES,
    SPECIAL,
    TEMPLATE,
    USER,
    FakeVocab,
    fake_template,
    fake_vocab,
    ids,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_drafter import FLAT

from copyspec_edge.answer import Answer
from copyspec_edge.arrays import common_prefix
from copyspec_edge.chat.reply import Chunk, Reply
from copyspec_edge.chat.template import ChatTemplate, Message
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.drafter import NoDrafter
from copyspec_edge.errors import (
    ChatTemplateError,
    ContextFullError,
    EngineError,
    InvalidInputError,
    SessionBusyError,
    SessionClosedError,
)
from copyspec_edge.llama.engine import Engine
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.session import Session

GREEDY = SamplingParams(temperature=0, max_tokens=40)
SAMPLED = SamplingParams(temperature=0.9, seed=0, max_tokens=40)


class Chat:
    """A session on a fake engine, with both at hand."""

    def __init__(
        self,
        *,
        language: Language | None = None,
        seed: int = 0,
        copy: bool = True,
        template: str | None = TEMPLATE,
        system: str | None = None,
        wait: bool = False,
        **options: Any,
    ) -> None:
        language = language or TinyLanguage(N_VOCAB, seed=seed, unlikely=frozenset({USER, BOT}))
        self.engine = FakeEngine(language, **{"n_ctx": 400, "n_batch": 16, **options})
        self.session = Session(
            cast(Engine, self.engine),
            fake_vocab(),
            fake_template(template) if template else None,
            FLAT,
            CopyDrafter(self.engine.n_ctx, fake_vocab().eog_tokens) if copy else NoDrafter(),
            system=system,
            wait=wait,
        )

    def check(self) -> None:
        held = self.engine.tokens
        committed = list(self.session.token_ids)
        assert held == committed[: len(held)]
        assert len(held) <= len(committed)

    def send(self, message: str = "ab cd", params: SamplingParams = GREEDY) -> Reply:
        reply = self.session.send(message, params=params)
        self.check()
        return reply


def reciting(script: list[int], **options: Any) -> Chat:
    """A session whose model says `script[n]` at position n of the context."""
    return Chat(language=RecitingLanguage(N_VOCAB, script), template=None, **options)


def recite(
    prompt: list[int], says: list[int], params: SamplingParams = GREEDY, **options: Any
) -> tuple[Chat, list[Chunk], Reply]:
    chat = reciting([*prompt, *says], **options)
    answer = chat.session.stream_completion(prompt, params=params)
    chunks = list(answer)
    chat.check()
    return chat, chunks, finished(answer)


def finished(answer: Answer) -> Reply:
    assert answer.reply is not None
    return answer.reply


def said(reply: Reply) -> tuple[str, tuple[int, ...], str]:
    return reply.text, reply.token_ids, reply.finish_reason


def stopping(*stops: str) -> SamplingParams:
    return replace(GREEDY, stop=stops)


def text_of(tokens: tuple[int, ...]) -> str:
    return b"".join(PIECES[t] for t in tokens).decode("utf-8", "replace")


seeds = st.integers(0, 100_000)
messages = st.text("abcdef é한.\n", min_size=1, max_size=8).filter(lambda m: bool(m.strip()))


@settings(max_examples=150, deadline=None)
@given(seeds, messages, st.booleans(), st.booleans())
def test_streamed_chunks_make_up_the_reply(
    seed: int, message: str, copy: bool, sampled: bool
) -> None:
    chat = Chat(seed=seed, copy=copy)
    params = replace(SAMPLED if sampled else GREEDY, stop=("cd", "ab\n"))
    answer = chat.session.stream(message, params=params)
    chunks = list(answer)
    reply = finished(answer)
    assert "".join(chunk.text for chunk in chunks) == reply.text
    assert tuple(t for chunk in chunks for t in chunk.token_ids) == reply.token_ids
    assert sum(chunk.copied for chunk in chunks) == reply.stats.accepted_tokens
    assert text_of(reply.token_ids).startswith(reply.text)
    assert not any(stop in reply.text for stop in params.stop)


COPIED = [*ids("a.b.c.d.e.f"), *ids("\n")]


def test_a_stop_string_inside_an_accepted_draft_ends_the_text_there() -> None:
    chat, chunks, reply = recite([*COPIED, *COPIED[:3]], COPIED[3:] * 2, stopping("d."))
    assert (reply.text, reply.finish_reason) == (".c.", "stop")
    assert any(chunk.copied for chunk in chunks)
    assert reply.token_ids == tuple(ids(".c.d."))
    assert reply.stats.generated_tokens == 5
    assert list(chat.session.token_ids) == [*COPIED, *ids("a.b.c.")]


def test_a_stop_string_across_the_border_of_two_steps_is_not_shown() -> None:
    _, chunks, reply = recite(ids("f"), ids("a.bcd"), stopping(".bc"))
    assert [chunk.text for chunk in chunks] == ["a", "", "", ""]
    assert reply.text == "a"


def test_a_stop_string_in_the_middle_of_a_token_keeps_what_is_before_it_in_the_text() -> None:
    chat, _, reply = recite(ids("f"), [*ids("e"), PIECES.index(b"cd "), *ids("f")], stopping("d"))
    assert (reply.text, reply.finish_reason) == ("ec", "stop")
    assert list(chat.session.token_ids) == ids("fe")


def test_of_two_stop_strings_in_one_draft_the_first_one_said_wins() -> None:
    _, _, reply = recite([*COPIED, *COPIED[:3]], COPIED[3:] * 2, stopping("e.", "c."))
    assert reply.text == "."


def test_half_a_character_behind_a_stop_string_is_not_shown() -> None:
    half = PIECES.index(b"a" + "한".encode()[:2])
    _, chunks, reply = recite(ids("f"), [*ids("e"), half, *ids("f")], stopping("a"))
    assert (reply.text, reply.finish_reason) == ("e", "stop")
    assert "".join(chunk.text for chunk in chunks) == "e"


def test_a_stop_string_that_never_completes_is_text_in_the_end() -> None:
    _, chunks, reply = recite(ids("f"), [*ids("ea"), END], stopping("abc"))
    assert (reply.text, reply.finish_reason) == ("ea", "stop")
    assert [chunk.text for chunk in chunks] == ["e", "", "a"]


def test_a_character_split_over_tokens_appears_whole() -> None:
    head, tail = PIECES.index("한".encode()[:2]), PIECES.index("한".encode()[2:])
    _, chunks, reply = recite(ids("f"), [*ids("e"), head, tail, END])
    assert [chunk.text for chunk in chunks] == ["e", "", "한", ""]
    assert reply.text == "e한"


def test_half_a_character_at_the_end_is_replaced() -> None:
    head = PIECES.index("한".encode()[:2])
    _, chunks, reply = recite(ids("f"), [*ids("e"), head, END])
    assert reply.text == "e�"
    assert "".join(chunk.text for chunk in chunks) == "e�"


def test_a_stop_string_of_a_split_character_leaves_no_half_of_it_in_the_history() -> None:
    head, tail = PIECES.index("한".encode()[:2]), PIECES.index("한".encode()[2:])
    chat, _, reply = recite(ids("f"), [*ids("e"), head, tail, *ids("f")], stopping("한"))
    assert (reply.text, reply.finish_reason) == ("e", "stop")
    assert list(chat.session.token_ids) == ids("fe")


def test_the_end_of_generation_is_a_token_of_the_reply_without_text() -> None:
    chat, _, reply = recite(ids("f"), [*ids("ab."), END, *ids("f")])
    assert (reply.text, reply.finish_reason) == ("ab.", "stop")
    assert reply.token_ids[-1] == END
    assert chat.session.token_ids[-1] == END


@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_max_tokens_ends_the_answer_exactly(most: int) -> None:
    params = replace(GREEDY, max_tokens=most)
    _, _, reply = recite([*COPIED, *COPIED[:3]], COPIED[3:] * 3, params)
    assert (len(reply.token_ids), reply.finish_reason) == (most, "length")
    assert reply.stats.generated_tokens == most


def test_the_context_ends_the_answer_exactly() -> None:
    params = replace(GREEDY, max_tokens=None)
    chat, _, reply = recite(COPIED, COPIED * 9, params, n_ctx=40)
    assert len(chat.session.token_ids) == 40 == chat.session.n_ctx
    assert (len(reply.token_ids), reply.finish_reason) == (40 - len(COPIED), "length")


def test_an_end_of_generation_as_the_last_wanted_token_is_a_stop() -> None:
    _, _, reply = recite(ids("f"), [*ids("e"), END], replace(GREEDY, max_tokens=2))
    assert reply.finish_reason == "stop"


def test_a_stop_string_with_the_last_wanted_token_is_a_stop() -> None:
    _, _, reply = recite(ids("f"), ids("e.f"), replace(stopping("."), max_tokens=2))
    assert (reply.text, reply.finish_reason) == ("e", "stop")


def test_counts_of_a_reply_add_up() -> None:
    _, _, reply = recite([*COPIED, *COPIED[:3]], [*COPIED[3:], END])
    stats = reply.stats
    assert stats.prompt_tokens == len(COPIED) + 3
    assert stats.cached_tokens == 0
    assert (stats.verify_steps, stats.accepted_tokens) == (2, len(COPIED) - 4)
    assert stats.generated_tokens == len(COPIED) - 2 == len(reply.token_ids)


# Cancelling and abandoning.


def test_a_cancel_between_two_chunks_ends_with_what_was_said() -> None:
    chat = reciting([*ids("f"), *ids("abcdef") * 5], copy=False)
    answer = chat.session.stream_completion(ids("f"), params=GREEDY)
    first = next(answer)
    chat.session.cancel()
    assert list(answer) == []
    reply = finished(answer)
    assert (reply.text, reply.finish_reason) == (first.text, "cancelled")
    assert list(chat.session.token_ids) == [*ids("f"), *reply.token_ids]
    chat.check()


def test_a_cancel_shows_what_was_held_back() -> None:
    chat = reciting([*ids("f"), *ids("a.bcd")])
    answer = chat.session.stream_completion(ids("f"), params=stopping("a.x"))
    shown = [next(answer).text, next(answer).text]
    chat.session.cancel()
    shown += [chunk.text for chunk in answer]
    assert shown == ["", "", "a."]
    assert finished(answer).text == "a."


def test_a_cancel_before_the_first_chunk_ends_without_text() -> None:
    chat = Chat()
    answer = chat.session.stream("ab", params=GREEDY)
    chat.session.cancel()
    assert list(answer) == []
    assert (finished(answer).text, finished(answer).token_ids) == ("", ())
    assert finished(answer).finish_reason == "cancelled"
    assert chat.session.messages == ()


def test_a_cancel_without_an_answer_does_not_stop_the_next_one() -> None:
    chat = Chat()
    chat.session.cancel()
    assert chat.send().finish_reason != "cancelled"


def test_a_cancel_in_the_middle_of_a_prompt_keeps_the_chunks_that_were_read() -> None:
    chat = Chat(n_batch=16)
    chat.engine.on_chunk = lambda chunk: chat.engine.cancel() if chunk == 2 else None
    message = "a.b.c.d.e.f." * 5
    assert chat.session.send(message, params=GREEDY).finish_reason == "cancelled"
    assert chat.engine.n_past == 32
    chat.engine.on_chunk = None
    reply = chat.send(message)
    assert reply.stats.cached_tokens == 32
    assert reply.token_ids == Chat().send(message).token_ids


def test_a_cancel_from_another_thread_stops_an_answer() -> None:
    chat = Chat(copy=False)
    reached, cancelled = threading.Event(), threading.Event()

    def wait_for_cancel(chunk: int) -> None:
        if chunk == 4:
            reached.set()
            assert cancelled.wait(30)

    def cancel() -> None:
        assert reached.wait(30)
        chat.session.cancel()
        cancelled.set()

    chat.engine.on_chunk = wait_for_cancel
    thread = threading.Thread(target=cancel)
    thread.start()
    reply = chat.send(params=replace(GREEDY, max_tokens=30))
    thread.join()
    assert (reply.finish_reason, len(reply.token_ids)) == ("cancelled", 4)
    assert chat.session.messages[-1]["content"] == reply.text


def test_a_cancelled_answer_ends_and_the_next_one_does_not() -> None:
    chat = Chat(language=TALKATIVE)
    first, _ = read_some(chat, 2)
    first.cancel()
    assert first.finish().finish_reason == "cancelled"
    second = chat.session.stream("cd", params=GREEDY)
    first.cancel()
    assert second.finish().finish_reason == "length"


def test_a_cancel_while_an_answer_is_begun_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(language=TALKATIVE)
    render = ChatTemplate.render

    def cancelled_meanwhile(template: ChatTemplate, messages: list[Message]) -> str:
        assert not attempt_elsewhere(chat.session.cancel)
        return render(template, messages)

    with monkeypatch.context() as patch:
        patch.setattr(ChatTemplate, "render", cancelled_meanwhile)
        assert chat.session.send("ab", params=GREEDY).finish_reason == "cancelled"
    assert said(chat.send("ab")) == said(Chat(language=TALKATIVE).send("ab"))


def test_a_cancel_reaches_the_running_answer_and_not_who_waits_behind_it() -> None:
    chat = Chat(language=TALKATIVE, wait=True)
    waiting = threading.Event()
    replies: list[Reply] = []

    def ask() -> None:
        waiting.set()
        replies.append(chat.session.complete(ids("cd"), params=GREEDY))

    def cancel(chunk: int) -> None:
        if chunk == 3:
            other.start()
            assert waiting.wait(30)
            time.sleep(0.02)
            attempt_elsewhere(chat.session.cancel)

    other = threading.Thread(target=ask)
    chat.engine.on_chunk = cancel
    reply = chat.session.complete(ids("ab"), params=GREEDY)
    other.join(60)
    assert reply.finish_reason == "cancelled"
    assert [r.finish_reason for r in replies] == ["length"]


def test_of_many_answers_those_end_that_are_cancelled_while_they_run() -> None:
    chat = Chat(language=TALKATIVE, wait=True)
    params = replace(GREEDY, max_tokens=5)
    ended: list[tuple[bool, str]] = []
    over: list[Answer] = []

    def ask(index: int) -> None:
        for turn in range(12):
            answer = chat.session.stream_completion(ids("ab"), params=params)
            next(answer)
            if is_cancelled := (index + turn) % 3 == 0:
                attempt_elsewhere(answer.cancel)
            for former in over[-4:]:
                attempt_elsewhere(former.cancel)
            ended.append((is_cancelled, answer.finish().finish_reason))
            over.append(answer)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(ended) == 36
    assert set(ended) == {(True, "cancelled"), (False, "length")}


def cancel_at(answer: Answer, at: int, chunk: int) -> None:
    if chunk == at:
        answer.cancel()


def test_a_prompt_that_was_cancelled_half_read_is_read_to_its_end_later() -> None:
    chat, message = Chat(language=TALKATIVE, n_batch=16), "a.b.c.d.e.f." * 6
    n_read = 0
    for turn in range(2):
        answer = chat.session.stream(message, params=GREEDY)
        chat.engine.on_chunk = partial(cancel_at, answer, 2 * turn + 1)
        reply = answer.finish()
        assert (reply.finish_reason, reply.stats.cached_tokens) == ("cancelled", n_read)
        n_read += 16
    chat.engine.on_chunk = None
    chat.engine.evaluations.clear()
    reply = chat.send(message, replace(GREEDY, max_tokens=1))
    assert reply.stats.cached_tokens == n_read
    assert min(chat.engine.evaluations) == n_read
    assert sum(chat.engine.evaluations.values()) == reply.stats.prompt_tokens - n_read
    assert reply.token_ids == Chat(language=TALKATIVE).send(message).token_ids[:1]


def test_a_close_that_cancels_waits_for_the_thread_that_reads() -> None:
    chat = Chat(language=TALKATIVE)
    answer = chat.session.stream("ab", params=GREEDY)
    closing = threading.Thread(target=partial(answer.close, cancel=True))

    def close(chunk: int) -> None:
        if chunk == 3:
            closing.start()
            while not chat.engine.is_cancelled:
                time.sleep(0.001)

    chat.engine.on_chunk = close
    assert answer.finish().finish_reason == "cancelled"
    closing.join(30)
    assert not closing.is_alive()
    assert len(finished(answer).token_ids) == 3


def test_who_reads_an_answer_that_is_being_closed_sees_it_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat = Chat(language=TALKATIVE)
    answer, _ = read_some(chat, 2)
    seen: list[Chunk | None] = []
    reading = threading.Thread(target=lambda: seen.append(next(answer, None)))

    def settle_slowly() -> tuple[int, str]:
        reading.start()
        time.sleep(0.05)
        assert reading.is_alive()
        return kept()

    kept = answer.transcript.spelled
    monkeypatch.setattr(answer.transcript, "spelled", settle_slowly)
    answer.close(cancel=True)
    reading.join(30)
    assert seen == [None]


def test_a_callback_cannot_close_its_own_answer() -> None:
    chat = Chat(language=TALKATIVE)
    refused: list[str] = []

    def close(token_ids: object, text: str) -> bool:
        with pytest.raises(SessionBusyError):
            answer.close(cancel=len(refused) > 2)
        refused.append(text)
        return False

    params = replace(GREEDY, stopping=(close,), max_tokens=6)
    answer = chat.session.stream("ab", params=params)
    assert answer.finish().finish_reason == "cancelled"
    assert len(refused) == 4


def test_an_answer_cannot_be_closed_while_another_thread_reads_it() -> None:
    chat = Chat()
    refused: list[str] = []

    def try_to_close(chunk: int) -> None:
        for operation in (answer.close, chat.session.reset, chat.session.close):
            thread = threading.Thread(target=attempt, args=(operation,))
            thread.start()
            thread.join()

    def attempt(operation: Callable[[], None]) -> None:
        try:
            operation()
        except SessionBusyError:
            refused.append(operation.__name__)

    answer = chat.session.stream("ab", params=replace(GREEDY, max_tokens=1))
    chat.engine.on_chunk = try_to_close
    assert answer.finish().finish_reason in ("length", "stop")
    assert refused == ["close", "reset", "close"]
    chat.check()


def attempt_elsewhere(action: Callable[[], object]) -> list[BaseException]:
    """What it raises in another thread."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


def test_an_answer_cannot_be_read_by_two_threads_at_once() -> None:
    chat = Chat(language=TALKATIVE)
    answer = chat.session.stream("ab", params=replace(GREEDY, max_tokens=12))
    refused: list[BaseException] = []

    def read_too(chunk: int) -> None:
        refused.extend(attempt_elsewhere(lambda: next(answer)))
        refused.extend(attempt_elsewhere(lambda: chat.session.send("cd")))

    chat.engine.on_chunk = read_too
    reply = answer.finish()
    assert [type(error) for error in refused] == [SessionBusyError] * len(refused)
    assert len(refused) > 6
    assert said(reply) == said(Chat(language=TALKATIVE).send("ab", replace(GREEDY, max_tokens=12)))


@pytest.mark.parametrize("operation", ["reset", "close"])
def test_while_another_thread_begins_an_answer_a_session_is_neither_reset_nor_closed(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(language=TALKATIVE)
    chat.send("ab", replace(GREEDY, max_tokens=6))
    truncate, refused = chat.engine.truncate, list[BaseException]()

    def interfere(length: int) -> None:
        refused.extend(attempt_elsewhere(getattr(chat.session, operation)))
        truncate(length)

    monkeypatch.setattr(chat.engine, "truncate", interfere)
    answer = chat.session.stream_completion(ids("ab"), params=GREEDY)
    monkeypatch.undo()
    assert [type(error) for error in refused] == [SessionBusyError] * len(refused)
    assert refused
    fresh = Chat(language=TALKATIVE).session.complete(ids("ab"), params=GREEDY)
    assert said(answer.finish()) == said(fresh)


def read_some(chat: Chat, n_chunks: int) -> tuple[Answer, str]:
    answer = chat.session.stream("ab", params=GREEDY)
    return answer, "".join(next(answer).text for _ in range(n_chunks))


TALKATIVE = TinyLanguage(N_VOCAB, seed=1, never=frozenset({END, USER, BOT}))


def test_closing_an_answer_frees_the_session_and_keeps_the_partial_text() -> None:
    chat = Chat(language=TALKATIVE)
    answer, shown = read_some(chat, 3)
    answer.close()
    answer.close()
    reply = finished(answer)
    assert reply.finish_reason == "cancelled"
    assert reply.text.startswith(shown)
    assert [m["content"] for m in chat.session.messages] == ["ab", reply.text]
    assert list(answer) == []
    assert chat.send().token_ids


def test_closing_an_answer_in_the_middle_of_a_character_replaces_it() -> None:
    head = PIECES.index("한".encode()[:2])
    chat = reciting([*ids("fe"), head, *ids("f") * 30], copy=False)
    answer = chat.session.stream_completion(ids("f"), params=GREEDY)
    shown = [next(answer).text, next(answer).text]
    answer.close()
    assert shown == ["e", ""]
    assert finished(answer).text == "e�"


def test_dropping_an_answer_frees_the_session_and_keeps_the_partial_text() -> None:
    chat = Chat(language=TALKATIVE)
    answer, shown = read_some(chat, 3)
    del answer
    gc.collect()
    assert chat.session.messages[-1]["content"].startswith(shown)
    assert chat.send().token_ids


def test_dropping_an_answer_that_was_not_begun_leaves_no_turn() -> None:
    chat = Chat()
    chat.session.stream("ab", params=GREEDY)
    gc.collect()
    assert chat.session.messages == ()
    assert chat.send().token_ids == Chat().send().token_ids


def test_the_next_turn_reads_nothing_of_an_abandoned_answer_again() -> None:
    chat = Chat(language=TALKATIVE)
    answer, _ = read_some(chat, 5)
    answer.close()
    n_committed = len(chat.session.token_ids)
    assert chat.send().stats.cached_tokens >= n_committed - 2


# Errors.

faults = ("before", "partly", "after", "nan")


@pytest.mark.parametrize("fault", faults)
@pytest.mark.parametrize("fails_at", [0, 1, 4])
@pytest.mark.parametrize("can_truncate", [True, False])
def test_after_an_engine_error_the_next_answer_is_that_of_a_fresh_session(
    fault: Fault, fails_at: int, can_truncate: bool
) -> None:
    chat = Chat(language=TALKATIVE, can_truncate=can_truncate)
    chat.engine.faults[fails_at] = fault
    with pytest.raises(EngineError):
        chat.session.send("ab ab cd", params=GREEDY)
    chat.check()
    assert chat.session.messages == ()
    assert said(chat.send("cd ab ")) == said(Chat(language=TALKATIVE).send("cd ab "))


def test_an_error_in_a_later_turn_takes_back_that_turn_only() -> None:
    chat, fresh = Chat(language=TALKATIVE), Chat(language=TALKATIVE)
    for each in (chat, fresh):
        each.send("ab")
    chat.engine.faults[len(chat.engine.batch_sizes) + 1] = "before"
    before = chat.session.messages
    with pytest.raises(EngineError):
        chat.session.send("cd", params=GREEDY)
    assert chat.session.messages == before
    assert said(chat.send("ef")) == said(fresh.send("ef"))
    assert chat.session.messages == fresh.session.messages


def test_an_answer_that_ended_with_an_error_has_no_reply() -> None:
    chat = Chat()
    chat.engine.faults[0] = "before"
    answer = chat.session.stream("ab", params=GREEDY)
    with pytest.raises(EngineError):
        next(answer)
    assert list(answer) == []
    assert answer.reply is None


def test_a_second_answer_is_refused_while_one_is_unfinished() -> None:
    chat = Chat(language=TALKATIVE)
    answer, _ = read_some(chat, 1)
    before = chat.session.token_ids
    with pytest.raises(SessionBusyError):
        chat.session.send("cd")
    with pytest.raises(SessionBusyError):
        chat.session.complete([3])
    assert chat.session.token_ids == before
    assert said(answer.finish()) == said(Chat(language=TALKATIVE).send("ab"))


def test_a_prompt_that_leaves_no_room_changes_nothing() -> None:
    chat, fresh = Chat(n_ctx=64), Chat(n_ctx=64)
    short = replace(GREEDY, max_tokens=8)
    for each in (chat, fresh):
        each.send("ab", short)
    before = chat.session.token_ids, chat.session.messages, list(chat.engine.tokens)
    with pytest.raises(ContextFullError, match="context of 64"):
        chat.session.send("f" * 100)
    with pytest.raises(ContextFullError):
        chat.session.complete([3] * 64)
    assert before == (chat.session.token_ids, chat.session.messages, chat.engine.tokens)
    assert said(chat.send("cd", short)) == said(fresh.send("cd", short))


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat = Chat(n_ctx=64)
    longest = FakeVocab.longest_piece
    with monkeypatch.context() as patch:
        patch.delattr(FakeVocab, "tokenize")
        for ask in (chat.session.send, chat.session.complete):
            with pytest.raises(ContextFullError, match="at least 64 tokens"):
                ask("f" * 64 * longest)
    with pytest.raises(ContextFullError, match=r"a prompt of \d+ tokens"):
        chat.session.complete("f" * (64 * longest - 1))


def test_a_prompt_that_leaves_room_for_one_token_gets_one() -> None:
    _, _, reply = recite([3, 4] * 8, [5, 5], n_ctx=17)
    assert (reply.token_ids, reply.finish_reason) == ((5,), "length")


@pytest.mark.parametrize("message", ["", "  \n", "\ud800"])
def test_messages_that_are_no_text_are_refused_and_change_nothing(message: str) -> None:
    chat = Chat()
    with pytest.raises(InvalidInputError):
        chat.session.send(message)
    assert chat.session.token_ids == ()
    assert chat.send().token_ids


@pytest.mark.parametrize("prompt", ["", [], [N_VOCAB], [-1]], ids=str)
def test_prompts_that_are_no_tokens_are_refused_and_change_nothing(prompt: Any) -> None:
    chat = Chat()
    with pytest.raises(InvalidInputError):
        chat.session.complete(prompt)
    assert chat.session.token_ids == ()
    assert chat.send().token_ids


def test_chatting_without_a_template_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        Chat(template=None).session.send("ab")


def test_a_failing_template_leaves_the_session_usable() -> None:
    chat = Chat(template="{% if 'f' in messages[-1].content %}{{ 1 / 0 }}{% endif %}" + TEMPLATE)
    with pytest.raises(ChatTemplateError):
        chat.session.send("f")
    assert said(chat.send("ab")) == said(Chat().send("ab"))


def test_a_closed_session_refuses_to_answer() -> None:
    chat = Chat()
    with chat.session:
        chat.send()
    chat.session.close()
    assert chat.engine.closed
    with pytest.raises(SessionClosedError):
        chat.session.send("ab")


def test_closing_a_session_ends_its_answer() -> None:
    chat = Chat(language=TALKATIVE)
    answer, _ = read_some(chat, 2)
    chat.session.close()
    assert finished(answer).finish_reason == "cancelled"
    assert list(answer) == []


# Turns.


@pytest.mark.parametrize("system", [None, "e."])
def test_a_reset_session_answers_as_a_fresh_one(system: str | None) -> None:
    chat = Chat(system=system)
    chat.send("ab")
    chat.send("cd")
    chat.session.reset()
    assert chat.session.token_ids == ()
    assert [m["content"] for m in chat.session.messages] == ([system] if system else [])
    assert said(chat.send("ef")) == said(Chat(system=system).send("ef"))


def test_a_reset_ends_an_unfinished_answer() -> None:
    chat = Chat(language=TALKATIVE)
    answer, _ = read_some(chat, 2)
    chat.session.reset()
    assert finished(answer).finish_reason == "cancelled"
    assert chat.session.messages == ()
    assert said(chat.send("ef")) == said(Chat(language=TALKATIVE).send("ef"))


@pytest.mark.parametrize("copy", [True, False])
def test_over_twenty_turns_each_token_is_read_once(copy: bool) -> None:
    chat = Chat(language=TALKATIVE, copy=copy, n_ctx=600)
    random = np.random.default_rng(0)
    for _ in range(20):
        known = len(chat.session.token_ids)
        reply = chat.send("".join(random.choice(list("abcdef "), 5)) + "a", params(random))
        assert reply.stats.cached_tokens == max(0, known - 1)
    n_rejected = sum(chat.engine.evaluations.values()) - len(chat.engine.evaluations)
    n_drafted = sum(size - 1 for size in chat.engine.batch_sizes)
    assert len(chat.session.messages) == 40
    assert n_rejected == 0 if not copy else n_rejected < n_drafted


def params(random: np.random.Generator) -> SamplingParams:
    return replace(GREEDY, max_tokens=int(random.integers(1, 15)))


def test_an_engine_that_cannot_truncate_keeps_what_it_need_not_forget() -> None:
    chat = Chat(can_truncate=False, copy=False)
    prompt = ids("a.b.c.d.")
    chat.session.complete(prompt, params=replace(GREEDY, max_tokens=1))
    reply = chat.session.complete([*prompt, USER, *prompt], params=GREEDY)
    assert reply.stats.cached_tokens == len(prompt)


def spelled(chat: Chat) -> str:
    names = dict(enumerate(SPECIAL))
    pieces = [PIECES[t] or names[t].encode() for t in chat.session.token_ids]
    return b"".join(pieces).decode()


def rendered(chat: Chat) -> str:
    """The conversation as its template has it, up to the end of the last answer."""
    *before, last = chat.session.messages
    return fake_template().render(before) + last["content"]


# These say whole characters only.
_HALVES = frozenset(t for t, piece in enumerate(PIECES) if not piece.isascii())
ENDLESS = TinyLanguage(N_VOCAB, seed=1, never=_HALVES | {END, USER, BOT})
ENDING = TinyLanguage(N_VOCAB, seed=5, order=3, never=_HALVES | {USER, BOT})


def test_the_tokens_of_a_turn_are_those_of_the_whole_conversation() -> None:
    chat = Chat(language=ENDLESS, system="f.")
    for message in ("a.", "b.", "c."):
        chat.send(message, replace(GREEDY, max_tokens=9))
        assert spelled(chat) == rendered(chat)


def test_an_end_that_the_model_said_is_not_put_behind_the_answer_again() -> None:
    chat = Chat(language=ENDING)
    n_ended = 0
    for message in ("a.", "b.", "c.", "d.", "e.", "f."):
        ended = chat.send(message, replace(GREEDY, max_tokens=30)).token_ids[-1] == END
        assert spelled(chat) == rendered(chat) + SPECIAL[END] * ended
        n_ended += ended
    assert n_ended > 1


def test_after_a_stop_string_the_tokens_of_a_turn_are_those_of_the_conversation() -> None:
    chat = Chat(language=ENDLESS)
    n_stopped = 0
    for message in ("a.", "b.", "c.", "d."):
        n_stopped += chat.send(message, stopping("ba.")).finish_reason == "stop"
    chat.send("e.", replace(GREEDY, max_tokens=5))
    assert n_stopped == 4
    assert spelled(chat) == rendered(chat)


def test_a_completion_takes_the_place_of_the_history() -> None:
    chat = Chat()
    chat.send("ab")
    prompt = ids("cd ef")
    reply = chat.session.complete(prompt, params=GREEDY)
    assert list(chat.session.token_ids) == [*prompt, *reply.token_ids]
    assert said(reply) == said(Chat().session.complete(prompt, params=GREEDY))


def test_a_chat_after_a_completion_is_read_anew() -> None:
    chat = Chat(language=ENDLESS)
    chat.send("ab")
    chat.session.complete(ids("cd ef"), params=GREEDY)
    chat.send("ef")
    assert spelled(chat) == rendered(chat)


def test_a_rewritten_history_is_copied_from() -> None:
    prompt = [*COPIED, BOT, *COPIED[:3]]
    chat = reciting([*prompt, *COPIED[3:], END])
    chat.session.complete([USER] * 14, params=replace(GREEDY, max_tokens=2))
    reply = chat.session.complete(prompt, params=GREEDY)
    assert reply.stats.accepted_tokens == len(COPIED) - 4


def test_a_repeated_completion_reads_its_last_token_only() -> None:
    chat = Chat()
    prompt = ids("ab cd ef")
    first = chat.session.complete(prompt, params=GREEDY)
    second = chat.session.complete(prompt, params=GREEDY)
    assert said(second) == said(first)
    assert second.stats.cached_tokens == len(prompt) - 1


def test_a_completion_reads_only_what_differs_from_the_history() -> None:
    chat = Chat()
    prompt = ids("a.b.c.d.")
    chat.session.complete(prompt, params=replace(GREEDY, max_tokens=1))
    longer = [*prompt, USER, *prompt]
    reply = chat.session.complete(longer, params=GREEDY)
    assert reply.stats.cached_tokens == len(prompt)


def test_names_of_special_tokens_in_a_message_are_text() -> None:
    chat = Chat(copy=False)
    answer = chat.session.stream("a<end>b", params=GREEDY)
    next(answer)
    prompt = list(chat.session.token_ids[: chat.engine.n_past])
    assert prompt.count(END) == 1


def test_a_template_that_rewrites_earlier_answers_is_rendered_again() -> None:
    thoughtless = TEMPLATE.replace("m.content", "(m.content | replace('a', ''))")
    chat = Chat(language=TALKATIVE, template=thoughtless)
    chat.send("bcd")
    reply = chat.send("cd")
    prompt = ids(fake_template(thoughtless).render(list(chat.session.messages[:-1])))
    assert list(chat.session.token_ids[: len(prompt)]) == prompt
    assert reply.stats.prompt_tokens == len(prompt)


# The same operations with copying and without, from many seeds.


class Pair:
    """Two sessions that must not differ: one copies, the other does not."""

    def __init__(self, seed: int, *, n_ctx: int = 160) -> None:
        self.random = np.random.default_rng(seed)
        unlikely = frozenset({USER, BOT, END} if seed % 2 else {USER, BOT})
        language = TinyLanguage(N_VOCAB, order=1 + seed % 3, seed=seed, unlikely=unlikely)
        shape: dict[str, Any] = {
            "language": language,
            "n_ctx": n_ctx,
            "system": "f." if seed % 5 == 0 else None,
        }
        self.copying = Chat(
            **shape, can_truncate=seed % 4 != 0, min_rows=1 + seed % 2, max_rows=2 + seed % 9
        )
        self.plain = Chat(**shape, copy=False)

    def params(self) -> SamplingParams:
        temperature = float(self.random.choice([0.0, 0.8]))
        stops = self.random.choice(["ab", "cd", "\n", "한", ".a", "b"], self.random.integers(0, 3))
        return SamplingParams(
            temperature=temperature,
            seed=int(self.random.integers(0, 99)),
            max_tokens=int(self.random.integers(1, 30)),
            stop=tuple(map(str, stops)),
        )

    def text(self) -> str:
        return "".join(self.random.choice(list("abcdef é한\n"), self.random.integers(1, 9))) + "."

    def step(self) -> None:
        operation = self.random.choice(["send"] * 5 + ["complete", "reset", "too long", "error"])
        text, params = self.text(), self.params()
        outcomes = [
            perform(chat, str(operation), text, params) for chat in (self.copying, self.plain)
        ]
        assert outcomes[0] == outcomes[1]
        self.copying.check()
        self.plain.check()
        assert self.copying.session.token_ids == self.plain.session.token_ids
        assert self.copying.session.messages == self.plain.session.messages


def perform(chat: Chat, operation: str, text: str, params: SamplingParams) -> object:
    session = chat.session
    if operation == "reset":
        session.reset()
        return None
    if operation == "error":
        chat.engine.faults[len(chat.engine.batch_sizes)] = "partly"
    try:
        if operation == "complete":
            reply = session.complete(text, params=params)
        else:
            reply = session.send(text * (40 if operation == "too long" else 1), params=params)
    except (ContextFullError, EngineError) as error:
        chat.engine.faults.clear()
        return type(error)
    return reply.text, reply.token_ids, reply.finish_reason, reply.stats.prompt_tokens


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_any_sequence_of_operations_is_the_same_with_and_without_copying(first_seed: int) -> None:
    n_accepted = 0
    for seed in range(first_seed, first_seed + 20):
        pair = Pair(seed)
        for _ in range(12):
            pair.step()
        n_accepted += sum(size > 2 for size in pair.copying.engine.batch_sizes)
    assert n_accepted > 0


@settings(max_examples=80, deadline=None)
@given(seeds, st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_after_any_abandoned_answers_a_session_goes_on_as_its_messages_say(
    seed: int, n_chunks: list[int]
) -> None:
    chat = Pair(seed, n_ctx=800).copying
    for n in n_chunks:
        answer = chat.session.stream("ab.", params=replace(GREEDY, max_tokens=9))
        shown = "".join(chunk.text for chunk, _ in zip(answer, range(n), strict=False))
        answer.close()
        chat.check()
        reply = finished(answer)
        assert reply.text.startswith(shown)
        if reply.token_ids:
            assert chat.session.messages[-1]["content"] == reply.text
    assert common_prefix(*map(np.asarray, (chat.engine.tokens, chat.session.token_ids))) == (
        chat.engine.n_past
    )
