"""What `verify` asks: requests that make a model copy, or those of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from copyspec_edge.chat import Message, Request, parse_fields, parse_request, read_lines
from copyspec_edge.errors import InvalidInputError

_TEXT = (
    "The lighthouse keeper climbs 214 steps every evening. At the top she cleans the lens, winds "
    "the clockwork and lights the lamp. In the logbook she writes the hour, the wind and the names "
    "of the ships that pass."
)
_CODE = """def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)


def spread(values):
    center = mean(values)
    total = 0
    for value in values:
        total += (value - center) ** 2
    return total / len(values)"""
_NAMES = ", ".join(
    ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune", "Pluto")
)
_BUILT_IN = (
    f"Repeat this text word for word:\n\n{_TEXT}",
    f"Rewrite this text in the past tense:\n\n{_TEXT} {_TEXT}",
    f"Rename the variable `total` to `sum_of_values` and show the whole file:\n\n{_CODE}",
    f"Write this list three times, then backwards, one name a line: {_NAMES}.",
    "serving " * 48,
)


def built_in_prompts() -> list[Request]:
    """Five requests whose answers repeat what they were given."""
    return [_asking(text) for text in _BUILT_IN]


def prompts_of(path: Path) -> list[Request]:
    """The prompts of a file: one text a line, or one JSON object a line in a .jsonl file.

    An object has either `prompt`, a text, or `messages`, a list of objects with `role` and
    `content`. Blank lines are left out.

    Raises:
        InvalidInputError: the file cannot be read or is empty, or a line is not as above.
    """
    parse: Callable[[str], Request] = _parse if path.suffix == ".jsonl" else _asking
    prompts = read_lines(path, parse)
    if not prompts:
        raise InvalidInputError(f"{path} has no prompts: write one a line")
    return prompts


def _parse(line: str) -> Request:
    request = parse_request(parse_fields(line))
    return request if request.messages else _asking(request.prompt or "")


def _asking(text: str) -> Request:
    return Request((Message(role="user", content=text.strip()),), None)
