"""Inputs that software of this kind is known to get wrong, each with its right answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import llama_cpp
import numpy as np
import pytest
from fake_engine import FakeEngine, RecitingLanguage
from fake_vocab import END, PIECES, fake_vocab, ids
from oracle import Said, said
from scripted_drafter import FLAT, KINDS, Kind, ScriptedDrafter
from tiny_gguf import write_spelling_model

from copyspec_edge import InvalidInputError, Model, SamplingParams, Session, Settings
from copyspec_edge.answer import Answer
from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.drafting.drafter import Draft
from copyspec_edge.llama.engine import Engine
from copyspec_edge.llama.vocabulary import Vocab

GREEDY = SamplingParams(temperature=0, max_tokens=40)
all_kinds = pytest.mark.parametrize("kind", KINDS)


def reciting(
    vocab: Vocab, prompt: list[int], says: list[int], kind: Kind = "right", *, n_ctx: int = 400
) -> Session:
    """A session whose model says `says` behind the prompt, with forced drafts."""
    script = [*prompt, *says]
    engine = FakeEngine(RecitingLanguage(vocab.n_tokens, script), n_ctx=n_ctx)
    drafter = ScriptedDrafter(
        kind, as_tokens(script), n_vocab=vocab.n_tokens, eog=min(vocab.eog_tokens)
    )
    return Session(cast(Engine, engine), vocab, None, FLAT, drafter)


def streamed(answer: Answer) -> tuple[list[str], Said]:
    texts = [chunk.text for chunk in answer]
    return texts, said(answer.finish())


# Limits.


@all_kinds
def test_a_draft_is_clipped_to_what_is_left_of_the_context(kind: Kind) -> None:
    prompt, says = [3, 4] * 28, [5, 6, 7, 8] * 8
    session = reciting(fake_vocab(), prompt, says, kind, n_ctx=64)
    reply = session.complete(prompt, params=replace(GREEDY, max_tokens=None))
    assert (list(reply.token_ids), reply.finish_reason) == (says[:8], "length")
    assert len(session.token_ids) == 64
    assert reply.stats.drafted_tokens >= 6


class Draft16:
    """Drafts 16 tokens wherever it is given room for them."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def draft(self, history: Tokens, limit: int) -> Draft:
        tokens = self._tokens[len(history) : len(history) + min(16, limit)]
        return Draft(tokens, np.ones(len(tokens), np.float32), "sixteen")

    def reset(self) -> None:
        pass


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Model]:
    settings = Settings(n_threads=1, calibrate=False, n_ctx=64, flash_attn="off")
    with Model.load(tiny_path, settings) as model:
        yield model


def test_a_draft_of_16_behind_56_of_64_tokens_is_clipped(tiny: Model) -> None:
    prompt = [3, 4, 5, 6] * 14
    with tiny.session(copy=False, min_rows=2) as plain:
        expected = plain.complete(prompt, params=replace(GREEDY, max_tokens=None)).token_ids
    with tiny.session(min_rows=2) as session:
        session.drafter, session.cost = Draft16(as_tokens([*prompt, *expected, *prompt])), FLAT
        reply = session.complete(prompt, params=replace(GREEDY, max_tokens=None))
    assert (reply.token_ids, reply.finish_reason) == (expected, "length")
    assert (len(expected), reply.stats.verify_steps) == (8, 2)


@pytest.mark.parametrize("copy", [True, False])
def test_more_tokens_wanted_than_the_context_has_end_as_length(tiny_path: Path, copy: bool) -> None:
    settings = Settings(n_threads=1, calibrate=False, n_ctx=200)
    params = SamplingParams(temperature=0, max_tokens=1024)
    with Model.load(tiny_path, settings) as model, model.session(copy=copy) as session:
        reply = session.complete([3, 4, 5] * 10, params=params)
        assert (len(reply.token_ids), reply.finish_reason) == (170, "length")
        assert len(session.token_ids) == 200


@all_kinds
@pytest.mark.parametrize("most", [2, 8])
def test_max_tokens_below_the_length_of_the_draft_is_exact(most: int, kind: Kind) -> None:
    prompt, says = ids("abc"), ids("d.e.f.") * 6
    session = reciting(fake_vocab(), prompt, says, kind)
    reply = session.complete(prompt, params=replace(GREEDY, max_tokens=most))
    assert (list(reply.token_ids), reply.finish_reason) == (says[:most], "length")
    assert list(session.token_ids) == [*prompt, *says[:most]]


# Ends.


@all_kinds
@pytest.mark.parametrize("stops", [("b", "a"), ("a", "b")])
@pytest.mark.parametrize(
    "says", [ids("c.a.b."), ids("c.b.a."), [*ids("c."), PIECES.index(b"ab"), *ids(".")]], ids=str
)
def test_of_two_stop_strings_in_one_step_the_earlier_position_ends(
    says: list[int], stops: tuple[str, ...], kind: Kind
) -> None:
    prompt = ids("f.")
    session = reciting(fake_vocab(), prompt, says, kind)
    reply = session.complete(prompt, params=replace(GREEDY, stop=stops))
    assert (reply.text, reply.finish_reason) == ("c.", "stop")
    assert reply.token_ids == tuple(says[:3])
    assert list(session.token_ids) == [*prompt, *ids("c.")]


TEN, ELEVEN, STOP, TWENTY, TWENTY_ONE = 10, 11, 19, 12, 13


@all_kinds
def test_a_stop_string_in_the_middle_of_one_step_ends_the_answer(kind: Kind) -> None:
    prompt, says = [3], [TEN, ELEVEN, STOP, TWENTY, TWENTY_ONE]
    session = reciting(fake_vocab(), prompt, says, kind)
    reply = session.complete(prompt, params=replace(GREEDY, max_tokens=5, stop=(".",)))
    assert (reply.token_ids, reply.finish_reason) == ((TEN, ELEVEN, STOP), "stop")
    assert session.token_ids == (*prompt, TEN, ELEVEN)
    if kind == "right":
        assert (reply.stats.verify_steps, reply.stats.accepted_tokens) == (1, 3)


@all_kinds
def test_an_end_of_generation_in_the_middle_of_one_step_ends_the_answer(kind: Kind) -> None:
    prompt, says = [3], [TEN, ELEVEN, END, TWENTY, TWENTY_ONE]
    session = reciting(fake_vocab(), prompt, says, kind)
    reply = session.complete(prompt, params=replace(GREEDY, max_tokens=5))
    assert (reply.token_ids, reply.finish_reason) == ((TEN, ELEVEN, END), "stop")
    assert session.token_ids == (*prompt, *reply.token_ids)
    if kind == "right":
        assert (reply.stats.verify_steps, reply.stats.accepted_tokens) == (1, 3)


class DeclaredEnd:
    """A real vocabulary in which one more token ends a generation."""

    def __init__(self, vocab: Vocab, end: int) -> None:
        self._vocab = vocab
        self.n_tokens = vocab.n_tokens
        self.eog_tokens = vocab.eog_tokens | {end}
        self.piece = vocab.piece


@pytest.mark.real
@pytest.mark.parametrize("kind", ["right", "partly"])
def test_a_token_declared_an_end_in_the_middle_of_a_copy_ends_there(
    real_vocab: Vocab, kind: Kind
) -> None:
    copied = list(map(int, real_vocab.tokenize("one two three four five six seven")))
    end = copied[3]
    vocab = cast(Vocab, DeclaredEnd(real_vocab, end))
    session = reciting(vocab, [*copied, *copied[:1]], copied[1:], kind)
    reply = session.complete([*copied, *copied[:1]], params=GREEDY)
    assert (reply.text, reply.finish_reason) == (" two three", "stop")
    assert list(reply.token_ids) == copied[1:4]
    assert session.token_ids[-1] == end


# Text.


@pytest.mark.real
@all_kinds
def test_nothing_leaks_of_a_stop_string_with_more_behind_it_in_its_token(
    real_vocab: Vocab, kind: Kind
) -> None:
    says = list(map(int, real_vocab.tokenize("x = 1\n>>>>>>> UPDATED\nmore text")))
    session = reciting(real_vocab, [504], says, kind)
    answer = session.stream_completion([504], params=replace(GREEDY, stop=(">>>>>>> UPDATED",)))
    texts, reply = streamed(answer)
    assert "".join(texts) == reply.text == "x = 1\n"
    assert reply.finish_reason == "stop"
    assert real_vocab.text(session.token_ids[1:]) == "x = 1\n"


@pytest.mark.real
@pytest.mark.parametrize("text", [">>>>>>> UPDATE", ">>>>>>> UPDATEd\n", ">>>>>> UPDATED\n"])
def test_what_only_resembles_a_stop_string_is_shown(real_vocab: Vocab, text: str) -> None:
    says = [*map(int, real_vocab.tokenize(text)), min(real_vocab.eog_tokens)]
    session = reciting(real_vocab, [504], says)
    answer = session.stream_completion([504], params=replace(GREEDY, stop=(">>>>>>> UPDATED",)))
    texts, reply = streamed(answer)
    assert "".join(texts) == reply.text == text


MIXED = "안녕하세요 😀 세계 👩‍👩‍👧 é한\n"


@pytest.mark.real
@all_kinds
def test_emoji_and_korean_streamed_are_the_whole_text_wherever_it_is_cut(
    real_vocab: Vocab, kind: Kind
) -> None:
    says = list(map(int, real_vocab.tokenize(MIXED)))
    pieces = list(map(real_vocab.piece, says))
    for most in range(1, len(says) + 1):
        session = reciting(real_vocab, [504], says, kind)
        answer = session.stream_completion([504], params=replace(GREEDY, max_tokens=most))
        texts, reply = streamed(answer)
        assert "".join(texts) == reply.text == b"".join(pieces[:most]).decode("utf-8", "replace")
        assert all("\ufffd" not in text for text in texts[:-1])
        assert list(reply.token_ids) == says[:most]


@pytest.mark.real
def test_an_answer_cut_in_a_character_lets_the_session_go_on(real_vocab: Vocab) -> None:
    says = list(map(int, real_vocab.tokenize("한한한")))
    assert real_vocab.piece(says[0]) not in ("한".encode(), b"")
    session = reciting(real_vocab, [504], says)
    first = session.complete([504], params=replace(GREEDY, max_tokens=1))
    assert first.text == "\ufffd"
    rest = session.complete(session.token_ids, params=replace(GREEDY, max_tokens=len(says) - 1))
    assert [*first.token_ids, *rest.token_ids] == says


@pytest.fixture(scope="module")
def spelling(spelling_path: Path) -> Iterator[Model]:
    with Model.load(spelling_path, Settings(n_threads=1, calibrate=False, n_ctx=128)) as model:
        yield model


@pytest.mark.parametrize("text", ["<s>ab cd", "<s>", "ab cd", "ab<s>"])
def test_a_prompt_that_starts_with_the_bos_text_gets_one_bos(spelling: Model, text: str) -> None:
    bos = int(spelling.tokenize("")[0])
    assert list(spelling.tokenize(text, parse_special=True)[:2]).count(bos) == 1
    with spelling.session() as session:
        n_prompt = session.complete(text, params=replace(GREEDY, max_tokens=1)).stats.prompt_tokens
        assert session.token_ids[0] == bos
        assert session.token_ids[:n_prompt].count(bos) == 1


def test_a_chat_template_that_writes_a_bos_gives_one_bos_in_every_turn(spelling: Model) -> None:
    bos = int(spelling.tokenize("")[0])
    with spelling.session() as session:
        for message in ("<s>ab", "cd"):
            n_prompt = session.send(message, params=replace(GREEDY, max_tokens=3)).stats
            assert session.token_ids[: n_prompt.prompt_tokens].count(bos) == 1


# Copies on a real model.


class DraftsOfFour(ScriptedDrafter):
    """Forces drafts of four tokens."""

    def draft(self, history: Tokens, limit: int) -> Draft:
        return super().draft(history, min(limit, 4))


SERVING = " ".join(["serving"] * 48)
THIRTY_TWO = SamplingParams(temperature=0, max_tokens=32)


@pytest.fixture(scope="module")
def served(smollm2_f16: Model) -> tuple[Said, Tokens]:
    """What follows 48 times "serving" without copying, and all tokens of both."""
    with smollm2_f16.session(copy=False, min_rows=2) as plain:
        return said(plain.complete(SERVING, params=THIRTY_TWO)), as_tokens(plain.token_ids)


@pytest.mark.real
@all_kinds
def test_serving_48_times_with_drafts_of_four_equals_plain(
    smollm2_f16: Model, served: tuple[Said, Tokens], kind: Kind
) -> None:
    expected, committed = served
    with smollm2_f16.session(min_rows=2) as session:
        n_vocab = session.engine.n_vocab
        session.drafter = DraftsOfFour(kind, committed, n_vocab=n_vocab, eog=2)
        session.cost = FLAT
        reply = session.complete(SERVING, params=THIRTY_TWO)
    assert said(reply) == expected
    assert len(reply.token_ids) == 32
    assert reply.stats.drafted_tokens >= 24


HELLO = "repeat the word hello"


@pytest.mark.real
@pytest.mark.parametrize("penalty", [2.0, -2.0])
def test_a_frequency_penalty_changes_the_output_and_equals_plain(
    smollm2_f16: Model, penalty: float
) -> None:
    params = SamplingParams(temperature=0, max_tokens=16)
    penalized = replace(params, frequency_penalty=penalty)
    with smollm2_f16.session(copy=False, min_rows=2) as plain:
        free = said(plain.complete(HELLO, params=params))
        expected, committed = said(plain.complete(HELLO, params=penalized)), plain.token_ids
    with smollm2_f16.session(min_rows=2) as session:
        for kind in ("partly", "random"):
            n_vocab = session.engine.n_vocab
            drafter = DraftsOfFour(kind, as_tokens(committed), n_vocab=n_vocab, eog=2)
            session.drafter, session.cost = drafter, FLAT
            assert said(session.complete(HELLO, params=penalized)) == expected
    assert expected.token_ids != free.token_ids


# One model, several prompts.


def failing_once(monkeypatch: pytest.MonkeyPatch, *, after: bool, code: int) -> None:
    """The next llama_decode fails, before or after it has done its work."""
    decode = llama_cpp.llama_decode

    def fail(context: object, batch: object) -> int:
        monkeypatch.setattr(llama_cpp, "llama_decode", decode)
        if after:
            decode(context, batch)
        return code

    monkeypatch.setattr(llama_cpp, "llama_decode", fail)


SHARED = [3, 4, 5, 6, 7, 8, 9, 3, 4, 5]
OTHERS = ([*SHARED, 10, 11], [*SHARED, 12], [20, 21, 22], SHARED[:4], [*SHARED, 10, 11])
TWELVE = replace(GREEDY, max_tokens=12)


def fresh(model: Model, prompt: list[int]) -> Said:
    with model.session(copy=False, min_rows=2) as session:
        return said(session.complete(prompt, params=TWELVE))


def test_prompts_in_turn_on_one_model_equal_fresh_instances(tiny: Model) -> None:
    with tiny.session(min_rows=2) as session:
        for prompt in OTHERS:
            assert said(session.complete(prompt, params=TWELVE)) == fresh(tiny, prompt)
            assert said(tiny.complete(prompt, params=TWELVE)).token_ids


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("code", [-3, -1, 1])
@pytest.mark.parametrize("fails_in", ["prompt", "answer"])
def test_a_failing_decode_between_prompts_that_share_a_prefix_shows_nothing(
    tiny: Model, monkeypatch: pytest.MonkeyPatch, after: bool, code: int, fails_in: str
) -> None:
    with tiny.session(min_rows=2) as session:
        session.complete(OTHERS[0], params=TWELVE)
        answer = session.stream_completion(OTHERS[1], params=TWELVE)
        if fails_in == "answer":
            next(answer)
        failing_once(monkeypatch, after=after, code=code)
        with pytest.raises(Exception, match="llama"):
            answer.finish()
        for prompt in OTHERS:
            assert said(session.complete(prompt, params=TWELVE)) == fresh(tiny, prompt)


@pytest.mark.real
def test_cold_and_prefix_hit_runs_of_one_prompt_agree(smollm2_f16: Model) -> None:
    params = SamplingParams(temperature=0, max_tokens=16)
    prompt = smollm2_f16.tokenize("A list of colours: red, green, blue, yellow, red, green,")
    replies = []
    with smollm2_f16.session(min_rows=2) as session:
        for warm_to in (0, 3, len(prompt) - 1, len(prompt)):
            session.reset()
            if warm_to:
                session.complete(prompt[:warm_to], params=replace(params, max_tokens=3))
            replies.append(session.complete(prompt, params=params))
    assert len({said(reply) for reply in replies}) == 1
    assert [r.stats.cached_tokens for r in replies] == [0, 3, len(prompt) - 1, len(prompt) - 1]


def test_in_exact_mode_cold_and_prefix_hit_runs_agree_to_the_last_bit(spelling_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, logprobs=20)
    prompt = [3, *range(100, 140), 3, *range(100, 110)]
    settings = Settings(n_threads=1, n_ctx=128, calibrate=False, exact=True)
    with Model.load(spelling_path, settings) as model, model.session() as session:
        cold = session.complete(prompt, params=params)
        for warm_to in (1, 7, len(prompt) - 1, len(prompt)):
            session.reset()
            session.complete(prompt[:warm_to], params=replace(params, max_tokens=3))
            warm = session.complete(prompt, params=params)
            assert warm.stats.cached_tokens == min(warm_to, len(prompt) - 1)
            assert said(warm) == said(cold)


def test_a_tokenizer_that_cannot_spell_a_text_says_so(tiny_path: Path, tmp_path: Path) -> None:
    """llama.cpp ends the process there."""
    path = tmp_path / "no-bytes.gguf"
    write_spelling_model(tiny_path, path, has_bytes=False)
    with Model.load(path, Settings(n_threads=1, calibrate=False, n_ctx=128)) as model:
        assert model.detokenize(model.tokenize("ab 한 cd")) == " ab 한 cd"
        for text in ("ü", "ab\n", "<s>"):
            with pytest.raises(InvalidInputError, match="no token for"):
                model.tokenize(text)
        with model.session() as session:
            assert session.send("ab cd", params=replace(GREEDY, max_tokens=4)).token_ids
            assert session.send("cd", params=replace(GREEDY, max_tokens=4)).token_ids
            with pytest.raises(InvalidInputError, match="'ü'"):
                session.send("ü", params=GREEDY)
