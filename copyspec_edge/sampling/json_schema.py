"""JSON Schema as a GBNF grammar: llama-cpp-python's converter, made right where it is not.

It knows schemas and grammar text, neither tokens nor llama.cpp. What a grammar made from a schema
would not keep to is refused, so that an answer that ends by itself matches its schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from llama_cpp.llama_grammar import BuiltinRule, SchemaConverter

from copyspec_edge.errors import InvalidInputError

# Keywords that the converter does not look at, and those of which it looks at one only.
_IGNORED = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    *("minProperties", "maxProperties", "patternProperties", "propertyNames"),
    *("unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    *("if", "then", "else", "not"),
}
_EXCLUSIVE = ("$ref", "oneOf", "anyOf", "allOf", "const", "enum", "properties", "items", "pattern")
_BY_NAME = ("properties", "$defs", "definitions")
_DATA = ("const", "enum", "default", "example", "examples", "required")
_COUNTS: dict[tuple[str, str], Callable[[dict[str, Any]], bool]] = {
    ("minItems", "maxItems"): lambda schema: isinstance(schema.get("items"), dict),
    ("minLength", "maxLength"): lambda schema: not {"pattern", "format"} & schema.keys(),
}
# The converter writes each repetition out.
_MOST_REPEATS = 2000
_CHAR = r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})'
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": " \\t"}
_NUMBER = re.compile(r"(?<=[{,])\d+")
_LITERAL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def schema_to_gbnf(schema: str | Mapping[str, object]) -> str:
    """A grammar whose `root` matches what the schema describes, with spaces in few places.

    Raises:
        InvalidInputError: not a JSON Schema, or one that a grammar cannot keep to.
    """
    try:
        parsed = json.loads(schema if isinstance(schema, str) else json.dumps(dict(schema)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the JSON Schema is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidInputError("a JSON Schema is an object here, such as {'type': 'object'}")
    try:
        for part in _parts(parsed):
            _check(part)
        converter = _Converter()
        converter.resolve_refs(parsed, "")
        converter.visit(parsed, "")
        grammar: str = converter.format_grammar()
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(f"this JSON Schema cannot be used: {error}") from error
    return grammar


class _Converter(SchemaConverter):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        self._names: dict[str, str] = {}

    def resolve_refs(self, schema: dict[str, Any], url: str) -> dict[str, Any]:
        """Look up every reference within the schema, also those in definitions."""
        for part in _parts(schema):
            if "$ref" in part:
                self._refs[part["$ref"]] = _target(schema, part["$ref"])
        return schema

    def visit(self, schema: dict[str, Any], name: str) -> str:
        """Add the rule of a schema. Of several types, each keeps its other keywords."""
        kinds, parts = schema.get("type"), schema.get("allOf", ())
        if isinstance(kinds, list) and not {"oneOf", "anyOf"} & schema.keys():
            schema = {"anyOf": [{**schema, "type": kind} for kind in kinds]}
        elif len(parts) == 1:
            schema = parts[0]
        elif any("properties" not in self._refs.get(one.get("$ref"), one) for one in parts):
            raise InvalidInputError("the JSON Schema's 'allOf' can join objects' properties only")
        added: str = super().visit(schema, name)
        return added

    def _resolve_ref(self, ref: str) -> str:
        """The rule of a definition; while that is being made, its name to be."""
        if ref not in self._names:
            name = self._names[ref] = f"schema-reference-{len(self._names)}"
            rule = self.visit(self._refs[ref], name)
            if rule != name:
                self._rules[name] = rule
        return self._names[ref]

    def _format_literal(self, literal: str) -> str:
        return f'"{literal.translate(_LITERAL_ESCAPES)}"'

    def _generate_constant_rule(self, value: object) -> str:
        return self._format_literal(json.dumps(value, ensure_ascii=False))

    def _visit_pattern(self, pattern: str, name: str) -> str:
        rule: str = super()._visit_pattern(_without_shorthands(pattern), name)
        return rule

    def _add_primitive(self, name: str, rule: BuiltinRule) -> str:
        """Its strings may hold control characters, which JSON's must not."""
        primitive = BuiltinRule(_CHAR) if name == "char" else rule
        added: str = super()._add_primitive(name, primitive)
        return added


def _parts(schema: object) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it."""
    if isinstance(schema, list):
        for one in schema:
            yield from _parts(one)
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, dict):
            yield from _parts(list(value.values()))
        elif key not in _DATA:
            yield from _parts(value)


def _check(schema: dict[str, Any]) -> None:
    """Refuse what would be ignored."""
    if ignored := sorted(_IGNORED & schema.keys()):
        raise InvalidInputError(
            f"the JSON Schema's {ignored[0]!r} cannot be kept by a grammar: "
            "leave it out and check the answer for it"
        )
    governing = [key for key in _EXCLUSIVE if key in schema]
    if len(governing) > 1:
        raise InvalidInputError(
            f"the JSON Schema has both {governing[0]!r} and {governing[1]!r}: "
            "a grammar cannot keep to two such keywords at once"
        )
    if schema.get("enum") == []:
        raise InvalidInputError("the JSON Schema has an empty 'enum', which nothing matches")
    if unknown := set(schema.get("required", ())) - schema.get("properties", {}).keys():
        raise InvalidInputError(f"the JSON Schema requires {min(unknown)!r}, which it lacks")
    for (least, most), counted in _COUNTS.items():
        if {least, most} & schema.keys() and not counted(schema):
            raise InvalidInputError(f"the JSON Schema's {least} or {most} cannot be kept here")
        low, high = schema.get(least, 0), schema.get(most, schema.get(least, 0))
        if not 0 <= low <= high <= _MOST_REPEATS:
            raise InvalidInputError(
                f"the JSON Schema's {least} and {most} must be from 0 to {_MOST_REPEATS}, in order"
            )
    if any(int(n) > _MOST_REPEATS for n in _NUMBER.findall(str(schema.get("pattern", "")))):
        raise InvalidInputError(f"a pattern of a JSON Schema repeats at most {_MOST_REPEATS} times")


def _target(schema: dict[str, Any], ref: str) -> object:
    """What a JSON pointer points to."""
    if ref != "#" and not ref.startswith("#/"):
        raise InvalidInputError(
            f"the JSON Schema refers to {ref!r}: only its own parts can be used"
        )
    target: Any = schema
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        try:
            target = target[int(name) if isinstance(target, list) else name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise InvalidInputError(f"the JSON Schema refers to {ref!r}, which it lacks") from None
    return target


def _without_shorthands(pattern: str) -> str:
    r"""A regular expression with \d, \w and \s spelled out as character classes."""
    out, at, in_class = "", 0, False
    while at < len(pattern):
        one = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        if one[1:] in _CLASSES and len(one) == 2:
            spelled = _CLASSES[one[1]]
            out += spelled if in_class else f"[{spelled}]"
        else:
            in_class = one == "[" or (in_class and one != "]")
            out += one
        at += len(one)
    return out
