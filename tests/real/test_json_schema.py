from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from copyspec_edge import Model
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.sampling.grammar import Grammar
from copyspec_edge.sampling.json_schema import schema_to_gbnf

TREE = {
    "$defs": {
        "a node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/a node"}},
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

# Schema, texts that match it, texts that do not.
CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "string": ({"type": "string"}, ['"a"', '"é\\n"', '"\\u00e9"'], ['"a\n"', '"\t"', "a", '"\\x"']),
    "short string": ({"type": "string", "maxLength": 2}, ['""', '"ab"'], ['"abc"', '"\n"']),
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
        ['"12-a"', '"123-"'],
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
    "items": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        ["[true]", "[true, false]"],
        ["[]", "[true, true, true]"],
    ),
}


@pytest.fixture(scope="module")
def vocab(smollm2: Model) -> Vocab:
    return smollm2._vocab


def matches(grammar_text: str, vocab: Vocab, text: str) -> bool:
    grammar = Grammar(grammar_text, vocab)
    tokens = np.append(vocab.tokenize(text), min(vocab.eog_tokens)).astype(np.int32)
    return grammar.admits(tokens) == len(tokens)


@pytest.mark.parametrize("name", CASES)
def test_the_grammar_takes_what_the_schema_describes_and_nothing_else(
    vocab: Vocab, name: str
) -> None:
    schema, good, bad = CASES[name]
    grammar = schema_to_gbnf(schema)
    for text in good:
        json.loads(text)
        assert matches(grammar, vocab, text), text
    for text in bad:
        assert not matches(grammar, vocab, text), text


REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "is not JSON"),
    "a list": ("[]", "is an object"),
    "a number": ("3", "is an object"),
    "no such type": ({"type": "no such type"}, "cannot be used"),
    "lost reference": ({"$ref": "#/nowhere"}, "'#/nowhere', which it lacks"),
    "remote reference": ({"$ref": "http://a.b/c"}, "only its own parts"),
    "not JSON data": ({"const": {1, 2}}, "is not JSON"),
    "minimum": ({"type": "integer", "minimum": 0}, "'minimum' cannot be kept"),
    "deep": ({"properties": {"a": {"not": {}}}}, "'not' cannot be kept"),
    "two combinators": ({"anyOf": [{}], "properties": {}}, "both 'anyOf' and 'properties'"),
    "required": ({"type": "object", "required": ["a"]}, "requires 'a'"),
    "wrong order": ({"type": "string", "minLength": 3, "maxLength": 2}, "in order"),
    "huge": ({"type": "string", "maxLength": 10**9}, "from 0 to 2000"),
    "huge pattern": ({"type": "string", "pattern": "^a{99999}$"}, "at most 2000"),
    "many items": (
        {"properties": {"a": {"anyOf": [{"type": "array", "items": {}, "minItems": 10**8}]}}},
        "from 0 to 2000",
    ),
    "items without kind": ({"type": "array", "minItems": 2}, "cannot be kept here"),
    "length of a pattern": ({"type": "string", "pattern": "^a$", "minLength": 2}, "cannot be kept"),
    "empty enum": ({"enum": []}, "empty 'enum'"),
    "all of strings": ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "'allOf' can join"),
    "pattern without ends": ({"type": "string", "pattern": "a"}, "cannot be used"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_grammar_would_not_keep_to_is_refused(name: str) -> None:
    schema, message = REFUSED[name]
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        schema_to_gbnf(schema)


def test_names_of_properties_are_no_keywords(vocab: Vocab) -> None:
    schema = {"type": "object", "properties": {"minimum": {"const": 1}}, "required": ["minimum"]}
    assert matches(schema_to_gbnf(schema), vocab, '{"minimum": 1}')


def test_data_is_not_read_as_a_schema(vocab: Vocab) -> None:
    schema = {"enum": [{"minimum": 1}], "default": {"not": {}}, "title": "a", "description": "b"}
    assert matches(schema_to_gbnf(schema), vocab, '{"minimum": 1}')
