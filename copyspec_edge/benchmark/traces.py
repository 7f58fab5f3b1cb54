"""Traces: a prompt and the answer that was once given to it, as text and as tokens.

The cost of a forward pass does not depend on the tokens in it, so decoding a recorded answer again
shows what drafting gains on it, whatever model wrote it. This module knows what a trace is, how one
is written in a file and how it is tokenized; where traces come from is the other modules' business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.history import Tokens
from copyspec_edge.template import Message

N_CTX = 8192
MIN_OUTPUT = 8
# Longest text before and after an edit, in characters: with more, one trace of thousands of tokens
# would take minutes of real decoding.
MAX_EDIT_CHARS = 12_000


@dataclass(frozen=True)
class Trace:
    """A recorded answer.

    Attributes:
        task: what it is an example of; results are reported per task.
        messages: the conversation up to where the assistant answers, or None.
        prompt: the text that was continued, or None. One of the two is given.
        output: the answer.
    """

    task: str
    messages: tuple[Message, ...] | None
    prompt: str | None
    output: str


@dataclass(frozen=True)
class TokenTrace:
    """A trace in the tokens of one model: `prompt` and `output`, shapes (n,)."""

    task: str
    prompt: Tokens
    output: Tokens


class Tokenizer(Protocol):
    """What of a `Model` is needed here."""

    @property
    def can_chat(self) -> bool: ...  # noqa: D102

    def tokenize(self, text: str, *, add_special: bool = True) -> Tokens: ...  # noqa: D102

    def tokenize_chat(self, messages: Sequence[Message]) -> Tokens: ...  # noqa: D102


def chat_trace(task: str, turns: Sequence[str], output: str) -> Trace:
    """A conversation from its turns, the user's first and last, and the answer to it."""
    roles = ("user", "assistant")
    messages = [Message(role=roles[i % 2], content=text) for i, text in enumerate(turns)]
    return Trace(task, tuple(messages), None, output)


def edit_trace(task: str, instruction: str, before: str, after: str) -> Trace:
    """A request to change a text, answered with the whole changed text."""
    request = f"{instruction}\n\nReply with the whole text after this change.\n\n{before}"
    return chat_trace(task, [request], after)


def spread(items: Sequence[Trace], count: int) -> list[Trace]:
    """`count` of the items at even distances, or all of them."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def tokenized(traces: Iterable[Trace], model: Tokenizer, n_ctx: int = N_CTX) -> list[TokenTrace]:
    """The traces in the model's tokens, without those too long or too short to measure.

    A conversation goes through the model's chat template, or is joined with blank lines where it
    has none. Dropped: more than `n_ctx` tokens in all, or an answer of less than MIN_OUTPUT.
    """
    found = []
    for trace in traces:
        output = model.tokenize(trace.output, add_special=False)
        if len(output) < MIN_OUTPUT:
            continue
        prompt = prompt_tokens(trace, model)
        if len(prompt) + len(output) <= n_ctx:
            found.append(TokenTrace(trace.task, prompt, output))
    return found


def prompt_tokens(trace: Trace, model: Tokenizer) -> Tokens:
    """Token ids of a trace's prompt, with the chat template where the model has one."""
    if trace.messages is None:
        return model.tokenize(trace.prompt or "")
    if model.can_chat:
        return model.tokenize_chat(trace.messages)
    return model.tokenize("\n\n".join(m["content"] for m in trace.messages) + "\n\n")


def from_jsonl(path: Path) -> list[Trace]:
    """Traces from a file with one JSON object a line, blank lines apart.

    A line has `task` and `output`, both text, and either `prompt`, text, or `messages`, a list of
    objects with `role` and `content`.

    Raises:
        InvalidInputError: the file cannot be read, or a line is not as above; it is named.
    """
    traces = read_lines(path, _parse)
    if not traces:
        raise InvalidInputError(f"{path} has no traces: write one JSON object a line")
    return traces


def read_lines(path: Path, parse: Callable[[str], Trace]) -> list[Trace]:
    """What `parse` makes of each line that is not blank.

    Raises:
        InvalidInputError: the file cannot be read, or `parse` raises a ValueError.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read {path}: {error}") from error
    traces = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                traces.append(parse(line))
            except (ValueError, RecursionError) as error:
                raise InvalidInputError(f"{path}, line {number}: {error}") from error
    return traces


def _parse(line: str) -> Trace:
    fields = parse_fields(line)
    messages, prompt = parse_request(fields)
    return Trace(_text(fields, "task"), messages, prompt, _text(fields, "output"))


def parse_fields(line: str) -> dict[str, object]:
    """A line as a JSON object, else a ValueError."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def parse_request(fields: dict[str, object]) -> tuple[tuple[Message, ...] | None, str | None]:
    """(messages, prompt), one of them None, else a ValueError."""
    if ("prompt" in fields) == ("messages" in fields):
        raise ValueError("give either `prompt` or `messages`")
    if "prompt" in fields:
        return None, _text(fields, "prompt")
    messages = fields["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` must be a list and not empty")
    return tuple(_message(item) for item in messages), None


def _message(item: object) -> Message:
    if not isinstance(item, dict):
        raise ValueError("a message must be an object with `role` and `content`")
    return Message(role=_text(item, "role"), content=_text(item, "content"))


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{name}` must be text and not empty")
    return value
