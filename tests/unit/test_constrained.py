"""Logits processors, logit bias, stopping criteria and log-probabilities, under any drafts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from fake_engine import FakeEngine, TinyLanguage
from fake_vocab import BOT, N_VOCAB, USER, bare_vocab, fake_vocab
from scripted_drafter import FLAT, KINDS, Kind, ScriptedDrafter

from copyspec_edge.answer import Answer
from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.chat.reply import Reply
from copyspec_edge.drafting.drafter import Drafter, NoDrafter
from copyspec_edge.errors import EngineError, InvalidInputError, SessionBusyError
from copyspec_edge.llama.engine import Engine
from copyspec_edge.sampling.logprobs import token_logprob
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import make_sampler
from copyspec_edge.session import Session

Row = npt.NDArray[np.float32]
GREEDY = SamplingParams(temperature=0, max_tokens=30)
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_tokens=30)
PROMPT = [3, 4, 5, 9, 3, 4]
NO_END: frozenset[int] = frozenset({0})


def session_with(drafter: Drafter, *, wait: bool = False) -> Session:
    language = TinyLanguage(N_VOCAB, seed=5, unlikely=frozenset({USER, BOT}), never=NO_END)
    engine = FakeEngine(language, n_ctx=100)
    return Session(cast(Engine, engine), fake_vocab(), None, FLAT, drafter, wait=wait)


def plain(params: SamplingParams) -> Reply:
    return session_with(NoDrafter()).complete(PROMPT, params=params)


def drafted(kind: Kind, params: SamplingParams, expected: Reply) -> Reply:
    whole = as_tokens([*PROMPT, *expected.token_ids])
    drafter = ScriptedDrafter(kind, whole, n_vocab=N_VOCAB, eog=0)
    reply = session_with(drafter).complete(PROMPT, params=params)
    assert reply.stats.drafted_tokens > 0 or len(reply.token_ids) == 1
    return reply


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_processors_see_all_committed_tokens_at_every_row(
    kind: Kind, params: SamplingParams
) -> None:
    seen: list[list[int]] = []

    def depends_on_all(tokens: Tokens, row: Row) -> None:
        seen.append(tokens.tolist())
        row[int(tokens.sum()) % N_VOCAB] += 5.0

    params = replace(params, logits_processors=(depends_on_all,))
    expected = plain(params)
    assert expected.token_ids != plain(replace(params, logits_processors=())).token_ids
    whole = [*PROMPT, *expected.token_ids]
    assert seen == [whole[:n] for n in range(len(PROMPT), len(whole))]
    seen.clear()
    assert drafted(kind, params, expected).token_ids == expected.token_ids
    assert seen == [whole[:n] for n in range(len(PROMPT), len(whole))]


def test_bias_and_processor_both_apply_and_neither_argument_is_changed() -> None:
    kept = np.zeros(N_VOCAB, np.float32)
    kept[7] = 1.0
    bias = {7: 2.0, 8: 2.5, 9: -float("inf")}

    def returns_its_own(tokens: Tokens, row: Row) -> Row:
        return kept

    params = replace(GREEDY, logit_bias=bias, logits_processors=(returns_its_own,), max_tokens=3)
    model_row = np.full(N_VOCAB, 50.0, np.float32)
    sampler = make_sampler(params, bare_vocab(N_VOCAB), as_tokens(PROMPT), 64)
    assert sampler.choose(model_row) == 7
    assert kept.tolist() == [float(token == 7) for token in range(N_VOCAB)]
    assert (model_row == 50.0).all()
    assert bias == {7: 2.0, 8: 2.5, 9: -float("inf")}
    assert plain(params).token_ids == (7, 7, 7)


def test_processors_change_the_row_one_after_the_other() -> None:
    def first(tokens: Tokens, row: Row) -> None:
        row[:] = 0

    def second(tokens: Tokens, row: Row) -> Row:
        assert not row.any()
        return cast(Row, np.eye(N_VOCAB, dtype=np.float64)[4])

    params = replace(GREEDY, logits_processors=(first, second), max_tokens=2)
    assert plain(params).token_ids == (4, 4)


def test_a_banned_token_is_never_drawn() -> None:
    said = plain(SAMPLED).token_ids
    banned = max(set(said), key=said.count)
    reply = plain(replace(SAMPLED, logit_bias={banned: -float("inf")}))
    assert banned not in reply.token_ids


@pytest.mark.parametrize("token", [N_VOCAB, 10**9])
def test_a_bias_for_no_token_is_refused(token: int) -> None:
    with pytest.raises(InvalidInputError, match="logit_bias"):
        plain(replace(GREEDY, logit_bias={token: 1.0}))


class Broken(Exception):
    pass


def raises_behind(n_tokens: int) -> Callable[..., Any]:
    def broken(tokens: Any, *rest: object) -> None:
        if len(tokens) >= n_tokens:
            raise Broken

    return broken


BAD_PROCESSORS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "raises": (raises_behind(len(PROMPT) + 4), Broken),
    "another shape": (lambda tokens, row: row[:-1], InvalidInputError),
    "no numbers": (lambda tokens, row: ["a"] * N_VOCAB, InvalidInputError),
    "not a number": (lambda tokens, row: row * np.nan, EngineError),
    "nothing left": (lambda tokens, row: np.full_like(row, -np.inf), EngineError),
    "writes into the tokens": (lambda tokens, row: tokens.fill(0), ValueError),
}


@pytest.mark.parametrize("name", BAD_PROCESSORS)
@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_an_error_of_a_processor_leaves_the_session_at_its_last_committed_token(
    name: str, kind: Kind
) -> None:
    process, error = BAD_PROCESSORS[name]
    expected = plain(GREEDY)
    whole = as_tokens([*PROMPT, *expected.token_ids])
    session = session_with(ScriptedDrafter(kind, whole, n_vocab=N_VOCAB, eog=0))
    with pytest.raises(error):
        session.complete(PROMPT, params=replace(GREEDY, logits_processors=(process,)))
    committed = list(session.token_ids)
    assert committed == whole.tolist()[: len(committed)]
    assert session.complete(PROMPT, params=GREEDY).token_ids == expected.token_ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 5, 30])
def test_a_stopping_criterion_ends_the_answer_behind_its_token(kind: Kind, n: int) -> None:
    expected = plain(GREEDY)
    seen: list[tuple[Sequence[int], str]] = []

    def enough(tokens: Sequence[int], text: str) -> bool:
        seen.append((tokens, text))
        return len(tokens) == n

    reply = drafted(kind, replace(GREEDY, stopping=(enough,)), expected)
    assert reply.token_ids == expected.token_ids[:n]
    assert reply.finish_reason == "stop"
    assert [tokens for tokens, _ in seen] == [expected.token_ids[: i + 1] for i in range(n)]
    assert reply.text.startswith(seen[-1][1])


def test_behind_a_stopping_criterion_the_next_answer_is_that_of_a_fresh_session() -> None:
    whole = as_tokens([*PROMPT, *plain(GREEDY).token_ids])
    session = session_with(ScriptedDrafter("right", whole, n_vocab=N_VOCAB, eog=0))
    cut = session.complete(PROMPT, params=replace(GREEDY, stopping=(lambda t, s: len(t) == 3,)))
    assert len(session.token_ids) <= len(PROMPT) + len(cut.token_ids)
    other = [*PROMPT, 6, 7]
    expected = session_with(NoDrafter()).complete(other, params=GREEDY)
    assert session.complete(other, params=GREEDY).token_ids == expected.token_ids


def test_an_error_of_a_stopping_criterion_frees_the_session() -> None:
    session = session_with(NoDrafter())
    with pytest.raises(Broken):
        session.complete(PROMPT, params=replace(GREEDY, stopping=(raises_behind(3),)))
    assert session.complete(PROMPT, params=GREEDY).token_ids == plain(GREEDY).token_ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_log_probabilities_are_those_of_plain_decoding(kind: Kind, params: SamplingParams) -> None:
    params = replace(params, logprobs=3, repeat_penalty=1.2)
    expected = plain(params)
    reply = drafted(kind, params, expected)
    assert reply.logprobs == expected.logprobs
    assert tuple(logprob.token_id for logprob in reply.logprobs) == reply.token_ids


def test_log_probabilities_come_with_the_chunks_and_end_with_the_text() -> None:
    expected = plain(GREEDY)
    params = replace(GREEDY, logprobs=0, stopping=(lambda t, s: len(t) == 7,))
    whole = as_tokens([*PROMPT, *expected.token_ids])
    session = session_with(ScriptedDrafter("right", whole, n_vocab=N_VOCAB, eog=0))
    answer = session.stream_completion(PROMPT, params=params)
    chunks = list(answer)
    assert [len(c.logprobs) for c in chunks] == [len(c.token_ids) for c in chunks]
    assert sum((c.logprobs for c in chunks), ()) == answer.finish().logprobs
    assert len(answer.finish().logprobs) == 7


def test_without_asking_there_are_no_log_probabilities() -> None:
    assert plain(GREEDY).logprobs == ()


@pytest.mark.parametrize("n_top", [0, 1, 5, N_VOCAB, 100])
def test_a_log_probability_is_the_logarithm_of_the_softmax(n_top: int) -> None:
    row = np.random.default_rng(0).normal(0, 4, N_VOCAB).astype(np.float32)
    row[3] = -np.inf
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    got = token_logprob(row, 5, n_top)
    assert got.logprob == pytest.approx(np.log(p[5]), abs=1e-5)
    order = np.argsort(-p, kind="stable")[: min(n_top, N_VOCAB)]
    assert [token for token, _ in got.top] == order.tolist()
    with np.errstate(divide="ignore"):
        assert [x for _, x in got.top] == pytest.approx(np.log(p[order]).tolist(), abs=1e-5)


def test_equally_likely_alternatives_come_in_the_order_of_their_ids() -> None:
    assert [t for t, _ in token_logprob(np.zeros(9, np.float32), 4, 9).top] == list(range(9))


def test_a_second_thread_waits_where_it_is_told_to() -> None:
    session = session_with(NoDrafter(), wait=True)
    first = session.stream_completion(PROMPT, params=GREEDY)
    next(first)
    replies: list[Reply] = []
    other = threading.Thread(
        target=lambda: replies.append(session.complete([9, 3, 4], params=GREEDY))
    )
    other.start()
    other.join(0.2)
    assert other.is_alive()
    assert first.finish().token_ids == plain(GREEDY).token_ids
    other.join(30)
    assert not other.is_alive()
    expected = session_with(NoDrafter()).complete([9, 3, 4], params=GREEDY)
    assert replies[0].token_ids == expected.token_ids


def test_a_thread_never_waits_for_its_own_answer() -> None:
    session = session_with(NoDrafter(), wait=True)
    first = session.stream_completion(PROMPT, params=GREEDY)
    with pytest.raises(SessionBusyError):
        session.complete(PROMPT, params=GREEDY)
    first.close()
    assert session.complete(PROMPT, params=GREEDY).token_ids


def test_waiting_threads_all_get_the_answer_of_a_fresh_session() -> None:
    session = session_with(NoDrafter(), wait=True)
    prompts = [[3 + i, 4, 5] for i in range(6)]
    replies: dict[int, Reply] = {}

    def ask(index: int) -> None:
        replies[index] = session.complete(prompts[index], params=GREEDY)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for index, prompt in enumerate(prompts):
        expected = session_with(NoDrafter()).complete(prompt, params=GREEDY)
        assert replies[index].token_ids == expected.token_ids


def test_an_answer_handed_to_another_thread_can_be_waited_for() -> None:
    session = session_with(NoDrafter(), wait=True)
    answer: Answer = session.stream_completion(PROMPT, params=GREEDY)
    reader = threading.Thread(target=answer.finish)
    reader.start()
    reader.join(30)
    assert session.complete(PROMPT, params=GREEDY).token_ids == plain(GREEDY).token_ids
