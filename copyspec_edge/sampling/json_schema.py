"""JSON Schema as a grammar for llguidance. It knows schemas, neither tokens nor llama.cpp.

What a grammar made from a schema would not keep to is refused, so that an answer that ends by
itself matches its schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from llguidance import LLMatcher

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.sampling.one_of import Schema, settle_one_of

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_UNUSABLE = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("unevaluatedItems", "unevaluatedProperties", "propertyNames", "$dynamicRef"),
    *("dependentRequired", "dependentSchemas", "dependencies", "$recursiveRef"),
}
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_URI = "#%/:?@!$&'()*+,;=~"
_JOINING = {"$ref", "anyOf", "oneOf", "allOf"}
# llguidance follows references by recursion, and makes states of each of the others.
_MOST_SCHEMAS = 2000
_MOST_MEMBERS = {"properties": 1000, "required": 1000, "patternProperties": 100}
_LARGEST_MULTIPLE = 100_000
# llguidance takes limits as floats, of which larger ones are not all whole numbers.
_LARGEST_LIMIT = 1 << 53
_LEAST, _MOST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
# What llguidance's formats take too much: the 29th of February in any year, a leap second in any
# minute.
_DATE = (
    "[0-9]{4}-(0[13-9]|1|02-([01]|2[0-8]))"
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
)
_TIME = "[0-9]{2}:[0-9]{2}:[0-5]"
_TIGHTER = {"date": f"^({_DATE})", "time": f"^{_TIME}", "date-time": f"^({_DATE}).*[Tt]{_TIME}"}
# A blank, or a new line with its indentation: where any white space may stand, some models write
# it without end.
_OPTIONS: JsonCompileOptions = {
    "whitespace_pattern": r" |\n[ ]{0,20}",
    "lenient": False,
    "coerce_one_of": False,
}


def parse_schema(schema: str | Mapping[str, object]) -> Schema:
    """A JSON Schema from a caller as JSON's data.

    An object that says nothing of properties it does not name has no others, as tools mean it,
    wherever that only narrows the schema.

    Raises:
        InvalidInputError: not a JSON Schema, or one that a grammar cannot keep to.
    """
    try:
        parsed = json.loads(schema if isinstance(schema, str) else json.dumps(dict(schema)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the JSON Schema is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidInputError("a JSON Schema is an object here, such as {'type': 'object'}")
    parts = list(_parts(parsed))
    for path, part in parts:
        _normalize(part)
        settle_one_of(part, parsed)
        _check(path, part)
        _narrow_limits(path, part)
    _check_multiples([part["multipleOf"] for _, part in parts if "multipleOf" in part])
    _close([part for _, part in parts])
    _tighten([part for _, part in parts])
    return parsed


def to_grammar(schema: Schema) -> str:
    """A schema in llguidance's form, which may still turn out to be unusable.

    Without `no_forcing`, masks hold one spelling of what is certain to follow, by its tokenizer.
    """
    with_options = json.dumps({**schema, "x-guidance": _OPTIONS})
    return LLMatcher.grammar_from_lark(
        f'%llguidance {{"no_forcing": true}}\nstart: %json {with_options}'
    )


def find_unusable(schema: Schema) -> tuple[str, str]:
    """The path of the first keyword, or else schema, that is unusable by itself, and why.

    Both are empty if there is none.
    """
    with_schemas = {*_BY_NAME, *_LISTED, *_SINGLE, "$ref", "required"}
    for path, part in _parts(schema):
        own = {key: value for key, value in part.items() if key not in with_schemas}
        if reason := _why_unusable(own):
            keys = sorted(own, key="type".__eq__)
            others = ({k: own[k] for k in own if k != key} for key in keys)
            guilty = (k for k, rest in zip(keys, others, strict=True) if not _why_unusable(rest))
            return _join(path, next(guilty, "")), reason
    return "", ""


def _why_unusable(schema: Schema) -> str:
    return LLMatcher.validate_grammar(to_grammar(schema))


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """A schema and all schemas in it, each with its path."""
    waiting, n_parts = [("", schema)], 0
    while waiting:
        path, part = waiting.pop()
        yield path, part
        n_parts += 1
        if n_parts > _MOST_SCHEMAS:
            raise InvalidInputError(f"a JSON Schema has at most {_MOST_SCHEMAS} schemas in it")
        waiting += _members(path, part)


def _members(path: str, part: Schema) -> Iterator[tuple[str, Schema]]:
    groups = {key: part[key] for key in _BY_NAME if isinstance(part.get(key), dict)}
    groups |= {k: dict(enumerate(part[k])) for k in _LISTED if isinstance(part.get(k), list)}
    members = {f"{key}/{name}": one for key in groups for name, one in groups[key].items()}
    members |= {key: part.get(key) for key in _SINGLE}
    return ((_join(path, name), one) for name, one in members.items() if isinstance(one, dict))


def _join(path: str, name: str) -> str:
    return "/".join(filter(None, (path, name)))


def _normalize(part: Schema) -> None:
    """Forget what asks for nothing more than the rest does, and spell references as URIs."""
    if isinstance(part.get("$ref"), str):
        part["$ref"] = quote(part["$ref"], safe=_URI)
    if part.get("uniqueItems") is False:
        del part["uniqueItems"]
    least, required = part.get("minProperties"), part.get("required", [])
    if isinstance(least, int) and isinstance(required, list) and 0 <= least <= len(required):
        del part["minProperties"]


def _check(path: str, part: Schema) -> None:
    """Refuse what would be ignored, and what is too large."""
    if unusable := sorted((_UNUSABLE | {"minProperties"}) & part.keys()):
        raise InvalidInputError(
            f"the JSON Schema's '{_join(path, unusable[0])}' cannot be kept by a grammar: "
            "leave it out and check the answer for it"
        )
    if not str(part.get("$ref", "#")).startswith("#"):
        raise InvalidInputError(
            f"the JSON Schema refers to {part['$ref']!r}: only its own parts can be used"
        )
    for key, most in _MOST_MEMBERS.items():
        if isinstance(part.get(key), (list, dict)) and len(part[key]) > most:
            raise InvalidInputError(f"the JSON Schema's '{_join(path, key)}' are more than {most}")


def _narrow_limits(path: str, part: Schema) -> None:
    """Bring limits that nothing reaches down to where they are exact; refuse others out there."""
    for key in (*_LEAST, *_MOST):
        limit = part.get(key)
        if isinstance(limit, (int, float)) and abs(limit) > _LARGEST_LIMIT:
            if (limit > 0) == (key in _LEAST):
                raise InvalidInputError(
                    f"the JSON Schema's '{_join(path, key)}' is {limit}, but limits can be kept "
                    f"up to {_LARGEST_LIMIT} only: leave it out and check the answer for it"
                )
            part[key] = _LARGEST_LIMIT if limit > 0 else -_LARGEST_LIMIT


def _check_multiples(multiples: list[Any]) -> None:
    """Refuse those whose common multiple, of which llguidance may make states, is too large."""
    numbers = [multiple for multiple in multiples if isinstance(multiple, (int, float))]
    try:
        common = math.lcm(*(Fraction(str(number)).numerator for number in numbers))
    except (ValueError, ZeroDivisionError):
        return
    if common > _LARGEST_MULTIPLE:
        raise InvalidInputError(
            f"the JSON Schema's 'multipleOf' have no common multiple up to {_LARGEST_MULTIPLE}"
        )


def _close(parts: list[Schema]) -> None:
    """Let objects have the properties they name only, unless schemas are joined."""
    if any("properties" in part and _JOINING & part.keys() for part in parts):
        return
    if any({"allOf", "oneOf"} & part.keys() for part in parts):
        return
    for part in parts:
        named, required = part.get("properties"), part.get("required", [])
        if isinstance(named, dict) and isinstance(required, list):
            is_open = "patternProperties" in part or not named.keys() >= set(map(str, required))
            part.setdefault("additionalProperties", is_open)


def _tighten(parts: list[Schema]) -> None:
    """Add to formats what they lack."""
    for part in parts:
        pattern, joined = _TIGHTER.get(str(part.get("format"))), part.get("allOf", [])
        if pattern and isinstance(joined, list):
            part["allOf"] = [*joined, {"pattern": pattern}]
