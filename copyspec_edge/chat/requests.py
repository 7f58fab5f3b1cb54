"""Requests: what a model is asked, as a text to continue or a conversation to answer.

They come from files of one text or one JSON object a line. This module knows no answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from copyspec_edge.arrays import Tokens
from copyspec_edge.chat.template import Message
from copyspec_edge.errors import InvalidInputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked: either `messages`, up to where the assistant answers, or `prompt`."""

    messages: tuple[Message, ...] | None
    prompt: str | None


class Tokenizer(Protocol):
    """What of a `Model` is needed here."""

    @property
    def can_chat(self) -> bool: ...  # noqa: D102

    def tokenize(self, text: str, *, add_special: bool = True) -> Tokens: ...  # noqa: D102

    def tokenize_chat(self, messages: Sequence[Message]) -> Tokens: ...  # noqa: D102


def prompt_tokens(request: Request, model: Tokenizer) -> Tokens:
    """Token ids of a request, shape (n,), with the chat template where the model has one."""
    if request.messages is None:
        return model.tokenize(request.prompt or "")
    if model.can_chat:
        return model.tokenize_chat(request.messages)
    return model.tokenize("\n\n".join(m["content"] for m in request.messages) + "\n\n")


def read_lines(path: Path, parse: Callable[[str], T]) -> list[T]:
    """What `parse` makes of each line that is not blank.

    Raises:
        InvalidInputError: the file cannot be read, or `parse` raises a ValueError.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read {path}: {error}") from error
    parsed = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                parsed.append(parse(line))
            except (ValueError, RecursionError) as error:
                raise InvalidInputError(f"{path}, line {number}: {error}") from error
    return parsed


def parse_fields(line: str) -> dict[str, object]:
    """A line as a JSON object, else a ValueError."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def parse_request(fields: dict[str, object]) -> Request:
    """The request in a JSON object, else a ValueError."""
    if ("prompt" in fields) == ("messages" in fields):
        raise ValueError("give either `prompt` or `messages`")
    if "prompt" in fields:
        return Request(None, text_field(fields, "prompt"))
    messages = fields["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` must be a list and not empty")
    return Request(tuple(_message(item) for item in messages), None)


def _message(item: object) -> Message:
    if not isinstance(item, dict):
        raise ValueError("a message must be an object with `role` and `content`")
    return Message(role=text_field(item, "role"), content=text_field(item, "content"))


def text_field(fields: dict[str, object], name: str) -> str:
    """A field that must be text and not empty, else a ValueError."""
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{name}` must be text and not empty")
    return value
