"""Conversations as text: templates, turns, stop strings, and the text of a growing answer.

It knows messages and a vocabulary; it does not know engines, drafts or costs.
"""

from __future__ import annotations

from copyspec_edge.chat.conversation import Conversation, Turn
from copyspec_edge.chat.prompts import Prompts
from copyspec_edge.chat.reply import Chunk, FinishReason, Reply, Transcript
from copyspec_edge.chat.requests import (
    Request,
    Tokenizer,
    parse_fields,
    parse_request,
    prompt_tokens,
    read_lines,
    text_field,
)
from copyspec_edge.chat.template import ChatTemplate, Message

__all__ = [
    "ChatTemplate",
    "Chunk",
    "Conversation",
    "FinishReason",
    "Message",
    "Prompts",
    "Reply",
    "Request",
    "Tokenizer",
    "Transcript",
    "Turn",
    "parse_fields",
    "parse_request",
    "prompt_tokens",
    "read_lines",
    "text_field",
]
