"""Cancelling answers and closing a model while it is used."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import llama_cpp
import pytest
from tiny_gguf import write_tiny_model

from copyspec_edge import (
    Answer,
    Model,
    Reply,
    SamplingParams,
    SessionBusyError,
    SessionClosedError,
    Settings,
)
from copyspec_edge.host import machine

FOUR = SamplingParams(temperature=0, max_tokens=4)
MANY = SamplingParams(temperature=0, max_tokens=400)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path / "tiny.gguf", context=2048)
    return tmp_path / "tiny.gguf"


@pytest.fixture
def model(path: Path) -> Iterator[Model]:
    with Model.load(path, Settings(n_threads=1, calibrate=False, n_ctx=512)) as model:
        yield model


@contextmanager
def at_decode(
    monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], object]
) -> Iterator[None]:
    """Do it before the so-manyeth llama_decode from now on."""
    decode, count = llama_cpp.llama_decode, itertools.count(1)

    def counted(context: object, batch: object) -> int:
        if next(count) == number:
            action()
        return int(decode(context, batch))

    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", counted)
        yield


def elsewhere(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_a_model_does_not_close_under_an_answer(model: Model) -> None:
    idle, writing = model.session(), model.session()
    expected = idle.complete([3, 4, 5], params=FOUR).token_ids
    answer = writing.stream_completion([3, 4, 5], params=FOUR)
    next(answer)
    with pytest.raises(SessionBusyError, match="unfinished"):
        model.close()
    assert answer.finish().token_ids == expected
    for session in (idle, writing, model.session()):
        assert session.complete([3, 4, 5], params=FOUR).token_ids == expected
    model.close()
    with pytest.raises(SessionClosedError):
        idle.complete([3], params=FOUR)


def test_a_model_does_not_close_under_an_answer_that_another_thread_reads(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def close() -> None:
        with pytest.raises(SessionBusyError) as refusal:
            model.close()
        refused.append(str(refusal.value))

    session, other = model.session(), model.session()
    with at_decode(monkeypatch, 3, lambda: elsewhere(close)):
        reply = session.complete([3, 4, 5], params=MANY)
    assert reply.finish_reason == "length"
    assert len(refused) == 1
    assert other.complete([3, 4, 5], params=FOUR).token_ids == reply.token_ids[:4]


def test_a_close_that_cancels_ends_the_answer_that_another_thread_reads(model: Model) -> None:
    session = model.session()
    closing = threading.Thread(target=lambda: model.close(cancel=True))

    def close_soon(token_ids: Sequence[int], text: str) -> bool:
        if len(token_ids) == 3:
            closing.start()
        time.sleep(0.01)
        return False

    params = replace(MANY, stopping=(close_soon,))
    assert session.complete([3, 4, 5], params=params).finish_reason == "cancelled"
    closing.join(30)
    with pytest.raises(SessionClosedError):
        session.complete([3], params=FOUR)
    with pytest.raises(SessionClosedError):
        model.session()


def test_a_close_that_cancels_ends_answers_that_nobody_reads(model: Model) -> None:
    answers = [model.session().stream_completion([3, 4, 5], params=MANY) for _ in range(3)]
    for answer in answers:
        next(answer)
    model.close(cancel=True)
    assert [answer.finish().finish_reason for answer in answers] == ["cancelled"] * 3


def test_a_callback_cannot_close_the_model_it_is_called_from(model: Model) -> None:
    refused: list[bool] = []

    def close(token_ids: object, text: str) -> bool:
        with pytest.raises(SessionBusyError):
            model.close(cancel=len(refused) == 2)
        refused.append(True)
        return False

    params = SamplingParams(temperature=0, max_tokens=8, stopping=(close,))
    assert model.complete([3, 4, 5], params=params).finish_reason == "cancelled"
    assert len(refused) == 3
    assert model.complete([3, 4, 5], params=FOUR).token_ids


def test_a_model_closes_under_threads_that_ask_and_ask(model: Model) -> None:
    ended: list[BaseException] = []
    running = threading.Barrier(4)

    def ask() -> None:
        model.complete([3, 4, 5], params=FOUR)
        running.wait(60)
        try:
            while True:
                model.complete([3, 4, 5], params=MANY)
                model.detokenize([3, 4, 5] * 1000)
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    running.wait(60)
    model.close(cancel=True)
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in ended] == [SessionClosedError] * 3


def test_leaving_the_block_of_a_model_ends_its_answers(path: Path) -> None:
    with Model.load(path, Settings(n_threads=1, calibrate=False, n_ctx=512)) as model:
        answer = model.session().stream_completion([3, 4, 5], params=MANY)
        next(answer)
    assert answer.finish().finish_reason == "cancelled"


def test_a_completion_of_the_model_can_be_cancelled(model: Model) -> None:
    answer = model.stream_completion([3, 4, 5], params=MANY)
    next(answer)
    waiting: list[Reply] = []
    other = threading.Thread(target=lambda: waiting.append(model.complete([3, 4, 5], params=FOUR)))
    other.start()
    answer.cancel()
    reply = answer.finish()
    other.join(60)
    answer.cancel()
    assert reply.finish_reason == "cancelled"
    assert [r.finish_reason for r in waiting] == ["length"]
    assert model.complete([3, 4, 5], params=FOUR).token_ids == waiting[0].token_ids


@pytest.mark.real
def test_a_prompt_cancelled_half_read_is_continued(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "The quick brown fox jumps over the lazy dog near the river bank. " * 8
    settings = Settings(n_threads=1, calibrate=False, n_ctx=256, n_batch=64, n_ubatch=64)
    with Model.load(smollm2_path, settings) as model:
        answer: Answer = model.stream_completion(text, params=FOUR)
        with at_decode(monkeypatch, 2, lambda: elsewhere(answer.cancel)):
            assert answer.finish().finish_reason == "cancelled"
        reply = model.complete(text, params=FOUR)
        assert reply.stats.cached_tokens == 64 < reply.stats.prompt_tokens
        assert model.session().complete(text, params=FOUR).token_ids == reply.token_ids


def test_the_context_does_not_change_with_free_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model.load(path, Settings(n_threads=1, calibrate=False)) as model:
        n_ctx = model.n_ctx
        assert n_ctx == 2048
        monkeypatch.setattr(machine, "available_memory", lambda: 1)
        assert model.n_ctx == model.session().n_ctx == n_ctx
