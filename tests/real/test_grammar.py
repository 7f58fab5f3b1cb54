from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from copyspec_edge import Model, Settings
from copyspec_edge.arrays import as_tokens
from copyspec_edge.errors import EngineError, InvalidInputError
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.sampling.grammar import Grammar
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import Sampler, make_sampler
from copyspec_edge.session import Session

Row = npt.NDArray[np.float32]

GREEDY = SamplingParams(temperature=0, max_tokens=80)
LIST = 'root ::= "[" item ("," " " item)* "]"\nitem ::= [a-z]+ | [0-9]+'
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WORDS = {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 6}
NONE = as_tokens([])


@pytest.fixture(scope="module")
def vocab(smollm2: Model) -> Vocab:
    """SmolLM2's 49,152 tokens."""
    return smollm2._vocab


@pytest.fixture(scope="module")
def session(smollm2_f16: Model) -> Iterator[Session]:
    """Greedy answers do not depend on copying here: rows round alike."""
    with smollm2_f16.session(min_rows=2) as session:
        yield session


def grammar_at(vocab: Vocab, text: str, said: str) -> Grammar:
    grammar = Grammar(text, vocab)
    for token in vocab.tokenize(said):
        assert grammar.allows(int(token))
        grammar.accept(int(token))
    return grammar


def random_row(vocab: Vocab, seed: int = 0) -> Row:
    return np.random.default_rng(seed).normal(0, 3, vocab.n_tokens).astype(np.float32)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_an_answer_matches_its_schema(smollm2: Model, seed: int | None) -> None:
    params = SamplingParams(
        temperature=0.0 if seed is None else 1.0, seed=seed, json_schema=PERSON, max_tokens=200
    )
    with smollm2.session() as session:
        reply = session.send("Describe a person called Ann, who is 30.", params=params)
    assert reply.finish_reason == "stop"
    person = json.loads(reply.text)
    assert set(person) == {"name", "age"}
    assert isinstance(person["name"], str)
    assert isinstance(person["age"], int)


def test_a_schema_may_be_text(vocab: Vocab) -> None:
    for schema in (PERSON, json.dumps(PERSON)):
        sampler = make_sampler(replace(GREEDY, json_schema=schema), vocab, NONE, 64)
        said = vocab.tokenize('{"name": "Ann", "age": 30}')
        assert sampler.admits(said) == len(said)


@pytest.mark.parametrize("rules", [{"grammar": LIST}, {"json_schema": WORDS}], ids=list)
def test_copying_changes_no_answer_in_a_grammar(
    smollm2_f16: Model, session: Session, rules: dict[str, Any]
) -> None:
    question = "Write the list [apple, 12, pear, apple, 12, pear, apple, 12, pear] again."
    params = replace(GREEDY, **rules, logprobs=2)
    session.reset()
    copied = session.send(question, params=params)
    with smollm2_f16.session(copy=False, min_rows=2) as plain:
        reply = plain.send(question, params=params)
    assert (copied.text, copied.token_ids) == (reply.text, reply.token_ids)
    assert copied.logprobs == reply.logprobs
    assert copied.stats.accepted_tokens > 5
    assert reply.text.startswith("[")


def test_a_draft_is_cut_at_the_first_token_the_grammar_forbids(vocab: Vocab) -> None:
    grammar = grammar_at(vocab, LIST, "[ab")
    right = vocab.tokenize(", cd, 12]")
    assert grammar.admits(right) == len(right)
    for at in range(len(right)):
        draft = right.copy()
        draft[at] = vocab.tokenize("?")[0]
        assert grammar.admits(draft) == at


def test_asking_about_a_draft_moves_nothing(vocab: Vocab) -> None:
    grammar = grammar_at(vocab, LIST, "[ab")
    grammar.admits(vocab.tokenize("]"))
    assert grammar.allows(int(vocab.tokenize(",")[0]))


def test_the_end_of_generation_is_allowed_where_the_grammar_is_complete(vocab: Vocab) -> None:
    end = min(vocab.eog_tokens)
    assert not grammar_at(vocab, LIST, "[ab").allows(end)
    assert grammar_at(vocab, LIST, "[ab]").allows(end)


@pytest.mark.parametrize("n_decisive", [1, 5, 40])
def test_the_likeliest_allowed_tokens_are_those_of_the_whole_vocabulary(
    vocab: Vocab, n_decisive: int
) -> None:
    grammar = grammar_at(vocab, LIST, "[ab, 1")
    for seed in range(5):
        row = random_row(vocab, seed)
        whole, narrow = grammar.restrict(row, None), grammar.restrict(row, n_decisive)
        best = [t for t in np.argsort(-whole)[:n_decisive] if whole[t] > -np.inf]
        assert best
        assert np.array_equal(np.argsort(-narrow)[: len(best)], best)
        assert np.array_equal(narrow[best], row[best])
        assert np.all(np.isneginf(narrow) | (narrow == whole))


@pytest.mark.parametrize("said", ["", "[", "[ab", "[ab,", "[ab]", "[1"])
def test_the_allowed_tokens_are_found_without_asking_for_each(vocab: Vocab, said: str) -> None:
    grammar = grammar_at(vocab, LIST, said)
    restricted = grammar.restrict(np.zeros(vocab.n_tokens, np.float32), None)
    allowed = [t for t in range(vocab.n_tokens) if grammar.allows(t)]
    assert np.flatnonzero(restricted == 0).tolist() == allowed


def test_the_allowed_tokens_in_a_foreign_script_are_found(vocab: Vocab) -> None:
    grammar = Grammar('root ::= [가-힣é]+ "!"', vocab)
    restricted = grammar.restrict(np.zeros(vocab.n_tokens, np.float32), None)
    allowed = [t for t in range(vocab.n_tokens) if grammar.allows(t)]
    assert len(allowed) > 1
    assert np.flatnonzero(restricted == 0).tolist() == allowed


def test_a_refused_choice_is_made_again_among_the_allowed_tokens(vocab: Vocab) -> None:
    sampler = make_sampler(replace(GREEDY, grammar=LIST), vocab, NONE, 64)
    grammar = Grammar(LIST, vocab)
    row = random_row(vocab)
    token = sampler.choose(row)
    allowed = [t for t in range(vocab.n_tokens) if grammar.allows(t)]
    assert token == max(allowed, key=lambda t: float(row[t]))
    assert token != int(row.argmax())


def draws(sampler: Sampler, row: Row, n: int) -> set[int]:
    return {sampler.choose(row) for _ in range(n)}


def test_draws_stay_within_the_grammar_and_reach_all_of_it(vocab: Vocab) -> None:
    params = SamplingParams(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, grammar='root ::= "a" | "b" | "c"'
    )
    sampler = make_sampler(params, vocab, NONE, 64)
    row = np.zeros(vocab.n_tokens, np.float32)
    assert draws(sampler, row, 40) == {int(vocab.tokenize(c)[0]) for c in "abc"}


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "  \n",
        "root ::= (",
        'start ::= "a"',
        'root ::= root "a"',
        "root ::= other",
        'root ::= "a"\0',
        "root ::= # c\r" + "(" * 20_000 + '"a"' + ")" * 20_000,
        "root ::= " + " ".join(['"a"{0,2000}'] * 3000),
        'root ::= "\ud800"',
        "root ::= " + "(" * 200_000 + '"a"' + ")" * 200_000,
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(99_999)) + 'r99999 ::= "a"',
        'root ::= ("a"{2,2000}){2,2000}',
        'root ::= "a"{3,1}',
        'root ::= "a" { 3 , 1 } "b"',
        'root ::= "a"+ !<[3]>',
        "root ::= <a>",
        'root ::= "a"\n' + "[" * 60_000,
        'root ::= "a"\n' + '"\\' * 60_000,
        'root ::= "a"{' + "1" * 20_000,
        'root ::= "a"{' + "1" * 5_000 + "}",
        "root ::= " + "|".join(['"a"'] * 100_000),
        'root ::= "' + "a" * 1_000_000 + '"{2000}',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_grammars_that_cannot_be_used_are_refused_and_change_nothing(
    session: Session, bad: str
) -> None:
    session.reset()
    session.send("Hi", params=replace(GREEDY, max_tokens=3))
    before = session.token_ids
    with pytest.raises(InvalidInputError):
        session.send("Hi", params=replace(GREEDY, grammar=bad))
    assert session.token_ids == before
    assert session.send("Hi", params=replace(GREEDY, max_tokens=2)).token_ids


def test_parentheses_in_strings_classes_and_comments_do_not_count(vocab: Vocab) -> None:
    many = "(" * 2_000
    grammar = Grammar(f'root ::= "{many}" | "\\"{many}" | [{many}\\]] # {many}', vocab)
    assert grammar.allows(int(vocab.tokenize("(")[0]))


def test_a_grammar_that_nothing_can_follow_ends_the_answer_with_an_error(
    session: Session,
) -> None:
    session.reset()
    with pytest.raises(EngineError, match="grammar"):
        session.send("Hi", params=replace(GREEDY, grammar='root ::= "ab" [^\\x00-\\U0010FFFF]'))
    fresh = session.send("Hi", params=replace(GREEDY, max_tokens=5))
    session.reset()
    assert fresh.token_ids == session.send("Hi", params=replace(GREEDY, max_tokens=5)).token_ids


def test_a_model_without_a_tokenizer_takes_no_grammar(tiny_path: Any) -> None:
    with (
        Model.load(tiny_path, Settings(n_threads=1, calibrate=False)) as model,
        pytest.raises(InvalidInputError, match="tokenizer"),
    ):
        model.complete([1, 2], params=replace(GREEDY, grammar=LIST))


def test_a_grammar_works_on_rows_that_were_changed_before(vocab: Vocab) -> None:
    b = int(vocab.tokenize("b")[0])
    params = replace(GREEDY, grammar='root ::= "a" | "b" | "c"', logit_bias={b: 100.0})
    assert make_sampler(params, vocab, NONE, 64).choose(random_row(vocab)) == b
