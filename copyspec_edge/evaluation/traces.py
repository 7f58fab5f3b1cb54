"""Traces: a prompt and the answer that was once given to it, as text and as tokens.

The cost of a forward pass does not depend on the tokens in it, so decoding a recorded answer again
shows what drafting gains on it, whatever model wrote it. This module knows what a trace is, how one
is written in a file and how it is tokenized; where traces come from is the other modules' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from copyspec_edge.arrays import Tokens
from copyspec_edge.chat import (
    Message,
    Request,
    Tokenizer,
    parse_fields,
    parse_request,
    prompt_tokens,
    read_lines,
    text_field,
)
from copyspec_edge.errors import InvalidInputError

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

    @property
    def request(self) -> Request:
        """What was asked."""
        return Request(self.messages, self.prompt)


@dataclass(frozen=True)
class TokenTrace:
    """A trace in the tokens of one model: `prompt` and `output`, shapes (n,)."""

    task: str
    prompt: Tokens
    output: Tokens


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
        prompt = prompt_tokens(trace.request, model)
        if len(prompt) + len(output) <= n_ctx:
            found.append(TokenTrace(trace.task, prompt, output))
    return found


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


def _parse(line: str) -> Trace:
    fields = parse_fields(line)
    request = parse_request(fields)
    task, output = text_field(fields, "task"), text_field(fields, "output")
    return Trace(task, request.messages, request.prompt, output)
