"""Exclusive: a `oneOf` whose schemas have no value in common is an `anyOf`. It knows schemas only.

llguidance finds out by itself where the schemas stand in the list, not where they are referred to.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_MOST_HOPS = 20


def settle_one_of(part: Schema, root: Schema) -> None:
    """Make the `oneOf` of a part of `root` an `anyOf` where no value can match two of its schemas.

    They are told apart by types, by constants, or by constants of properties both require.
    """
    members = part.get("oneOf")
    if isinstance(members, list) and "anyOf" not in part:
        targets = [_resolve(member, root) for member in members]
        if all(_are_apart(a, b, root) for a, b in combinations(targets, 2)):
            part["anyOf"] = part.pop("oneOf")


def _are_apart(first: Schema, second: Schema, root: Schema) -> bool:
    common = _types(first) & _types(second)
    if not common or _differ(_values(first), _values(second)):
        return True
    tags, others = _tags(first, root), _tags(second, root)
    shared = tags.keys() & others.keys()
    return common == {"object"} and any(_differ(tags[name], others[name]) for name in shared)


def _types(schema: Schema) -> set[str]:
    named = schema.get("type", _TYPES)
    types = {named} if isinstance(named, str) else set(map(str, named))
    return types | {"integer"} if "number" in types else types


def _values(schema: Schema) -> list[Any] | None:
    """All that a schema's constants leave; None: it has none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _tags(schema: Schema, root: Schema) -> dict[str, list[Any] | None]:
    """The constants of properties that are required."""
    named, required = schema.get("properties"), schema.get("required")
    if not (isinstance(named, dict) and isinstance(required, list)):
        return {}
    return {name: _values(_resolve(named[name], root)) for name in named if name in required}


def _differ(values: list[Any] | None, others: list[Any] | None) -> bool:
    if values is None or others is None:
        return False
    return not any(value == other for value in values for other in others)


def _resolve(schema: object, root: Schema) -> Schema:
    """What references lead to; a schema that matches anything where they lead nowhere."""
    for _ in range(_MOST_HOPS):
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        schema = _target(str(schema["$ref"]), root)
    return {}


def _target(ref: str, root: Schema) -> object:
    target: Any = root
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        try:
            target = target[int(name) if isinstance(target, list) else name]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return target
