"""JSON Schema: what is kept to, what is refused, and that no schema ends the process."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from conftest import RunPython
from random_answers import RandomModel, answer

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.schema_constraint import SchemaConstraint

TREE = {
    "$defs": {
        "a node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/a node"}, "maxItems": 2},
            },
            "required": ["v", "kids"],
        }
    },
    "$ref": "#/$defs/a node",
}
SAME_NAMES = {
    "a": {"N": {"type": "string"}},
    "b": {"N": {"type": "integer"}},
    "type": "object",
    "properties": {"x": {"$ref": "#/a/N"}, "y": {"$ref": "#/b/N"}},
    "required": ["x", "y"],
}
OBJECT_OR_NULL = {
    "type": ["object", "null"],
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
}
ONE_OF_ALL = {"$defs": {"E": {"enum": ["x"]}}, "allOf": [{"$ref": "#/$defs/E"}]}
KINDS = {
    "$defs": {
        kind: {
            "type": "object",
            "properties": {"kind": {"const": kind}, "size": {"type": "integer"}},
            "required": ["kind"],
        }
        for kind in ("circle", "square")
    },
    "oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/square"}],
}
EITHER = {
    "type": "object",
    "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
}
BY_PATTERN = {
    "type": "object",
    "patternProperties": {"^x_": {"type": "integer"}},
    "properties": {"x_name": {}, "y": {"type": "null"}},
    "required": ["x_id", "y"],
    "additionalProperties": False,
}


def an_object(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": schema}, "required": ["v"]}


def a_format(name: str) -> dict[str, Any]:
    return {"type": "string", "format": name}


def tools(n: int) -> dict[str, Any]:
    """What an agent asks for: the name of one of its tools, with arguments for it."""
    arguments = {
        "path": {"type": "string", "maxLength": 4096, "pattern": "\\S"},
        "count": {"type": "integer", "minimum": 1, "maximum": 500},
        "mode": {"enum": ["read", "write"]},
        "edits": {"type": "array", "items": an_object({"type": "string"}), "maxItems": 20},
    }
    described = {"type": "object", "properties": arguments, "required": ["path", "mode"]}
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": f"tool_{i}"}, "arguments": described},
                "required": ["name", "arguments"],
            }
            for i in range(n)
        ]
    }


# Schema, texts that match it, texts that do not.
CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "string": ({"type": "string"}, ['"a"', '"é\\n"', '"\\u0001"'], ['"a\n"', '"\t"', "a", '"\\x"']),
    "short string": ({"type": "string", "maxLength": 2}, ['""', '"ab"'], ['"abc"', '"\n"']),
    "long string inside": (
        an_object({"type": "string", "maxLength": 65536}),
        ['{"v": "a"}'],
        ['{"v": 1}'],
    ),
    "longest string": (
        {"type": "string", "maxLength": 2000},
        [f'"{"a" * 2000}"'],
        [f'"{"a" * 2001}"'],
    ),
    "something in it": ({"type": "string", "pattern": "\\S"}, ['" a "', '"\\\\"'], ['""', '"  "']),
    "items of a pattern": (
        {"type": "array", "items": {"type": "string", "pattern": "\\S", "maxLength": 4}},
        ['["a b", "c"]', "[]"],
        ['["  "]', '["abcde"]'],
    ),
    "newline": ({"const": "a\nb"}, ['"a\\nb"'], ['"a\nb"', '"a"']),
    "backslash": ({"enum": ["a\\b"]}, ['"a\\\\b"'], ['"a\\b"']),
    "quote": ({"const": 'a"b'}, ['"a\\"b"'], ['"a"b"']),
    "emoji": ({"enum": ["😀", "👍"]}, ['"😀"', '"👍"'], ['"😎"']),
    "odd property": (
        {"type": "object", "properties": {'a\n"\\b': {"type": "null"}}, "required": ['a\n"\\b']},
        ['{"a\\n\\"\\\\b": null}'],
        ['{"a": null}', "{}"],
    ),
    "digits": (
        {"type": "string", "pattern": "^\\d{3}-\\w+$"},
        ['"123-ab_c"'],
        ['"12-a"', '"123-"', '"1234-a"'],
    ),
    "class": ({"type": "string", "pattern": "^[\\d.]+$"}, ['"1.5"'], ['"1,5"', '""']),
    "tree": (
        TREE,
        ['{"v": 1, "kids": []}', '{"v": 1, "kids": [{"v": 2, "kids": []}]}'],
        ['{"v": 1}', '{"v": 1, "kids": [2]}'],
    ),
    "same names": (SAME_NAMES, ['{"x": "a", "y": 1}'], ['{"x": "a", "y": "b"}']),
    "object or null": (OBJECT_OR_NULL, ['{"n": 1}', "null"], ["{}", '{"m": 1}', "[]"]),
    "one of all": (ONE_OF_ALL, ['"x"'], ["{}", '"y"']),
    "all of strings": (
        {"allOf": [{"type": "string"}, {"maxLength": 3}]},
        ['"abc"'],
        ['"abcd"', "1"],
    ),
    "one of two kinds": (KINDS, ['{"kind": "circle"}'], ['{"kind": "line"}', "{}"]),
    "one of two types": (
        {**KINDS, "oneOf": [{"$ref": "#/$defs/circle"}, {"type": "null"}, {"type": "number"}]},
        ['{"kind": "circle"}', "null", "1.5"],
        ['{"kind": "square"}', "true"],
    ),
    "either": (EITHER, ['{"a": null}', '{"b": null}'], ["{}"]),
    "items": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        ["[true]", "[true, false]"],
        ["[]", "[true, true, true]"],
    ),
    "first items": (
        {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "minItems": 1},
        ["[null]"],
        ["[]", "[null, 1]"],
    ),
    "int64": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        ["-9007199254740992", "0", "9007199254740992"],
        ["-9223372036854775809", "9223372036854775808", "1.5"],
    ),
    "whole numbers": (
        {"type": "integer", "minimum": -3, "exclusiveMaximum": 120},
        ["-3", "0", "119"],
        ["-4", "120", "1.5"],
    ),
    "numbers": (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
        ["0.001", "1", "1.5"],
        ["0", "0.0", "1.51", "-1"],
    ),
    "multiples": ({"type": "integer", "multipleOf": 15}, ["45", "0"], ["10", "46"]),
    "cents": ({"type": "number", "multipleOf": 0.01, "minimum": 0}, ["0.07", "3"], ["0.075"]),
    "date": (
        a_format("date"),
        ['"2024-02-29"', '"2000-02-29"', '"2023-12-31"'],
        ['"2023-02-29"', '"1900-02-29"', '"2023-02-30"', '"2023-13-01"', '"2023-1-1"'],
    ),
    "time": (
        a_format("time"),
        ['"23:59:59Z"', '"01:02:03.5+01:00"'],
        ['"24:00:00Z"', '"23:59:60Z"'],
    ),
    "date-time": (
        a_format("date-time"),
        ['"2024-02-29T12:00:00Z"'],
        ['"2023-02-29T12:00:00Z"', '"2024-02-29T12:60:00Z"', '"2024-02-29"'],
    ),
    "date of a year": (
        {**a_format("date"), "pattern": "^2024"},
        ['"2024-02-29"'],
        ['"2023-01-01"'],
    ),
    "uuid": (a_format("uuid"), ['"2eb8aa08-aa98-11ea-b4aa-73b441d16380"'], ['"2eb8aa08"']),
    "email": (a_format("email"), ['"a@b.c"'], ['"ab"', '"@b.c"']),
    "patterns of properties": (
        BY_PATTERN,
        ['{"y": null, "x_id": 1}', '{"x_name": 2, "y": null, "x_id": 1}'],
        ['{"y": null}', '{"y": null, "x_id": "a"}', '{"y": null, "x_id": 1, "z": 1}'],
    ),
    "open": (
        {**an_object({"type": "null"}), "additionalProperties": {"type": "integer"}},
        ['{"v": null}', '{"v": null, "w": 1}'],
        ['{"v": null, "w": "a"}', '{"v": 1}', '{"v": null, "v": 1}'],
    ),
    "named properties only": (
        an_object({"type": "null"}),
        ['{"v": null}'],
        ['{"v": null, "w": 1}'],
    ),
    "required beside those named": (
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"]},
        ['{"a": null, "b": 1}'],
        ['{"a": null}'],
    ),
    "as many as are required": (
        {**an_object({}), "minProperties": 1, "x-guidance": {"lenient": True}},
        ['{"v": [1]}'],
        ["{}"],
    ),
    "nothing unique": ({"type": "array", "uniqueItems": False, "maxItems": 1}, ["[1]"], ["[1, 2]"]),
    "tools": (
        tools(40),
        ['{"name": "tool_39", "arguments": {"path": "a", "count": 500, "mode": "read"}}'],
        ['{"name": "tool_40", "arguments": {"path": "a", "mode": "read"}}'],
    ),
    "names of keywords": (
        {"type": "object", "properties": {"not": {"const": 1}}, "required": ["not"]},
        ['{"not": 1}'],
        ["{}"],
    ),
    "data": (
        {"enum": [{"not": 1}], "default": {"not": {}}, "title": "a", "description": "b"},
        ['{"not": 1}'],
        ["{}"],
    ),
    "white space": (
        {**an_object({"const": 1}), "$schema": "https://json-schema.org/draft/2020-12/schema"},
        ['{"v":1}', '{ "v" : 1 }', '{\n    "v": 1\n}'],
        ['{  "v": 1}', '{\n\n"v": 1}', ' {"v": 1}', '{"v": 1} '],
    ),
}


@pytest.fixture(scope="module")
def vocab(real_vocab: Vocab) -> Vocab:
    """SmolLM2's 49,152 tokens."""
    return real_vocab


def matches(schema: dict[str, Any], vocab: Vocab, text: str) -> bool:
    matcher = SchemaConstraint(schema, vocab)
    tokens = np.append(vocab.tokenize(text), min(vocab.eog_tokens)).astype(np.int32)
    return matcher.admits(tokens) == len(tokens)


@pytest.mark.parametrize("name", CASES)
def test_what_the_schema_describes_is_taken_and_nothing_else(vocab: Vocab, name: str) -> None:
    schema, good, bad = CASES[name]
    for text in good:
        json.loads(text)
        assert matches(schema, vocab, text), text
    for text in bad:
        assert not matches(schema, vocab, text), text


def exact_validator(schema: dict[str, Any]) -> Any:
    """One that divides decimals exactly, and knows formats."""

    def multiple_of(_: Any, divisor: float, number: Any, __: Any) -> Any:
        if isinstance(number, (int, float)) and Decimal(str(number)) % Decimal(str(divisor)):
            yield jsonschema.ValidationError(f"{number} is no multiple of {divisor}")

    draft = jsonschema.Draft202012Validator
    validator = jsonschema.validators.extend(draft, {"multipleOf": multiple_of})
    return validator(schema, format_checker=draft.FORMAT_CHECKER)


@pytest.mark.parametrize("name", CASES)
def test_random_answers_match_and_drafts_change_none(vocab: Vocab, name: str) -> None:
    schema, finished = CASES[name][0], 0
    for seed in range(3):
        model = RandomModel(vocab, seed)
        params = SamplingParams(temperature=1.0, top_k=0, seed=seed, json_schema=schema)
        plain = answer(model, params, 200)
        drafted = answer(model, params, 200, draft_from=plain)
        assert drafted[:200].tolist() == plain.tolist()
        if int(plain[-1]) in vocab.eog_tokens:
            exact_validator(schema).validate(json.loads(vocab.text(plain)))
            finished += 1
    assert finished


@pytest.mark.parametrize("name", ["tree", "items of a pattern", "one of all", "numbers", "date"])
def test_all_allowed_tokens_are_those_allowed_one_by_one(vocab: Vocab, name: str) -> None:
    schema, good, _ = CASES[name]
    matcher = SchemaConstraint(schema, vocab)
    for token in vocab.tokenize(good[0]).tolist():
        restricted = matcher.restrict(np.zeros(vocab.n_tokens, np.float32), None)
        allowed = [t for t in range(vocab.n_tokens) if matcher.allows(t)]
        assert np.flatnonzero(restricted == 0).tolist() == allowed
        matcher.accept(token)
    assert all(map(matcher.allows, vocab.eog_tokens))


def test_asking_about_a_draft_moves_nothing(vocab: Vocab) -> None:
    matcher, text = SchemaConstraint(TREE, vocab), vocab.tokenize('{"v": 12, "kids": []}')
    for _ in range(2):
        assert matcher.admits(text) == len(text)
        wrong = text.copy()
        wrong[3] = vocab.tokenize("?")[0]
        assert matcher.admits(wrong) == 3


REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "is not JSON"),
    "a list": ("[]", "is an object"),
    "a number": ("3", "is an object"),
    "no such type": ({"type": "no such type"}, "'type' cannot be used"),
    "type of another kind": ({"properties": {"a": {"type": {}}}}, "'properties/a/type' cannot"),
    "lost reference": ({"$ref": "#/nowhere"}, "'/nowhere' does not exist"),
    "remote reference": ({"$ref": "http://a.b/c"}, "only its own parts"),
    "circle": ({"$ref": "#"}, "nothing matches it"),
    "not JSON data": ({"const": {1, 2}}, "is not JSON"),
    "half a character": ({"const": "\ud800"}, "cannot be used"),
    "not": ({"properties": {"name": {"not": {}}}}, "'properties/name/not' cannot be kept"),
    "unique": (an_object({"items": {"uniqueItems": True}}), "'properties/v/items/uniqueItems'"),
    "definition": ({"$defs": {"x": {"if": True}}, "$ref": "#/$defs/x"}, "'$defs/x/if' cannot"),
    "count of properties": ({"type": "object", "minProperties": 1}, "'minProperties' cannot"),
    "unknown format": (an_object(a_format("regex")), "'properties/v/format' cannot be used"),
    "look ahead": (an_object({"type": "string", "pattern": "(?=a)b"}), "'properties/v/pattern'"),
    "no pattern": (an_object({"type": "string", "pattern": "("}), "'properties/v/pattern'"),
    "two faults": (
        {"anyOf": [an_object(a_format("x")), an_object({"type": "x"})]},
        "'anyOf/1/properties/v/type' cannot be used: Invalid type: x",
    ),
    "wrong order": ({"type": "string", "minLength": 3, "maxLength": 2}, "Length' cannot be used"),
    "no number": ({"type": "integer", "minimum": 5, "maximum": 4}, "'minimum' cannot be used"),
    "a text for a number": ({"type": "integer", "minimum": "5"}, "'minimum' cannot be used"),
    "pattern of another length": (
        {"type": "string", "pattern": "^a$", "minLength": 2},
        "'pattern' cannot be used",
    ),
    "beyond whole floats": (
        an_object({"type": "integer", "minimum": 10**20, "maximum": 10**20 + 5}),
        "'properties/v/minimum' is 100000000000000000000",
    ),
    "below them": ({"type": "integer", "maximum": -(10**19)}, "'maximum' is -10000000000000000000"),
    "a limit of the least int64": (
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
        "'maximum' is -9223372036854775808",
    ),
    "a text for a multiple": ({"type": "number", "multipleOf": "1e99999999"}, "cannot be used"),
    "empty enum": ({"enum": []}, "'enum' cannot be used"),
    "overlapping": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "say 'anyOf'"),
    "overlapping references": (
        {**KINDS, "oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/circle"}]},
        "say 'anyOf'",
    ),
    "kinds that may be left out": (
        {
            "$defs": {k: {"type": "object", "properties": {"k": {"const": k}}} for k in "ab"},
            "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        },
        "say 'anyOf'",
    ),
    "contradiction": ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible types"),
    "overlapping patterns": (
        {"type": "object", "patternProperties": {"^a": {"type": "null"}, "b$": {"type": "null"}}},
        "not disjoint",
    ),
    "deep": ({"a": 1, "items": json.loads('{"items":' * 300 + "{}" + "}" * 300)}, "cannot be used"),
    "too deep": ('{"items":' * 100_000 + "{}" + "}" * 100_000, "is not JSON"),
    "many multiples": ({"type": "integer", "multipleOf": 999_983}, "common multiple"),
    "many schemas": ({"anyOf": [{}] * 3000}, "at most 2000 schemas"),
    "many properties": ({"properties": dict.fromkeys(map(str, range(1500)), True)}, "than 1000"),
    "many patterns": ({"patternProperties": dict.fromkeys(map(str, range(300)), True)}, "than 100"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_grammar_would_not_keep_to_is_refused(vocab: Vocab, name: str) -> None:
    schema, message = REFUSED[name]
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        SchemaConstraint(schema, vocab)


def chain(link: Callable[[dict[str, Any]], dict[str, Any]], n: int) -> dict[str, Any]:
    """References of references."""
    definitions = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(n)}
    return {"$defs": {**definitions, f"a{n}": {"type": "string"}}, "$ref": "#/$defs/a0"}


HEAVY: dict[str, dict[str, Any]] = {
    "references": chain(lambda ref: ref, 1900),
    "properties": chain(an_object, 600),
    "optional": {"type": "object", "properties": {str(i): {} for i in range(1000)}},
    "lists": chain(lambda ref: {"type": "array", "items": ref}, 900),
    "choices": chain(lambda ref: {"anyOf": [ref, {"type": "null"}]}, 600),
    "joined": chain(lambda ref: {"allOf": [ref, {"type": "string"}]}, 600),
    "patterns": {"patternProperties": {f"^x{i}y": {} for i in range(100)}},
    "repeats": {"type": "string", "pattern": "^((a{0,1000}b){0,1000}c){0,1000}$"},
    "items": {"type": "array", "items": {"type": "array", "minItems": 10**9}, "minItems": 10**9},
}
IN_A_SMALL_THREAD = """
import json, sys, threading
import numpy as np
from copyspec_edge import CopySpecError, Model, Settings
from copyspec_edge.sampling.schema_constraint import SchemaConstraint

def try_schema(schema):
    try:
        matcher = SchemaConstraint(schema, vocab)
        for _ in range(30):
            row = matcher.restrict(np.zeros(vocab.n_tokens, np.float32), None)
            matcher.accept(int(row.argmax()))
    except CopySpecError:
        pass

vocab = Model.load(sys.argv[1], Settings(n_ctx=64, n_threads=1, calibrate=False))._vocab
threading.stack_size(512 * 1024)
for schema in json.loads(sys.stdin.read()):
    thread = threading.Thread(target=try_schema, args=(schema,))
    thread.start()
    thread.join()
print("alive")
"""


def test_no_schema_ends_the_process(smollm2_path: Path, run_python: RunPython) -> None:
    schemas = json.dumps(list(HEAVY.values())).encode()
    done = run_python("-c", IN_A_SMALL_THREAD, str(smollm2_path), stdin=schemas)
    assert done.stdout.strip() == "alive", done.stderr


def test_the_stack_of_other_threads_stays_as_it_was(vocab: Vocab) -> None:
    before = threading.stack_size()
    SchemaConstraint(TREE, vocab)
    assert threading.stack_size() == before
