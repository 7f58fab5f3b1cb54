"""ChatTemplate: messages to text to tokens, as the model's author laid it down.

Template text may name special tokens; the users' text may not. Where a message contains the name of
a special token, it is fenced with a mark before the template sees it, and tokenized as plain text
afterwards. Everything else is tokenized in one piece, as llama.cpp itself does.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from jinja2 import TemplateError

from copyspec_edge.arrays import Tokens
from copyspec_edge.chat.jinja import environment
from copyspec_edge.errors import ChatTemplateError
from copyspec_edge.llama import Vocab

# A private-use character: it has no meaning in any script, and templates pass it through.
_MARK = "\uf8d1"


class Message(TypedDict):
    """One message of a chat: `role` is "system", "user" or "assistant"."""

    role: str
    content: str


class ChatTemplate:
    """A Jinja chat template bound to a vocabulary.

    Raises:
        ChatTemplateError: the template is not valid Jinja.
    """

    def __init__(self, source: str, vocab: Vocab) -> None:
        self._vocab = vocab
        self._bos = vocab.special_name("bos")
        self._eos = vocab.special_name("eos")
        try:
            self._compiled = environment().from_string(source)
        except (TemplateError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"this model's chat template is not valid: {error}") from error

    def render(self, messages: list[Message]) -> str:
        """Marked text of a conversation, up to where the assistant is to answer.

        Raises:
            ChatTemplateError: the template refuses these messages or fails on them.
        """
        fenced = [Message(role=m["role"], content=self.fence(m["content"])) for m in messages]
        try:
            return self._compiled.render(
                messages=fenced,
                bos_token=self._bos,
                eos_token=self._eos,
                add_generation_prompt=True,
                tools=None,
            )
        except Exception as error:  # a template is a program, and can fail like one
            roles = ", ".join(m["role"] for m in messages)
            raise ChatTemplateError(
                f"this model's chat template failed on the roles ({roles}): {error}"
            ) from error

    def fence(self, content: str) -> str:
        """`content` with marks around everything that reads like a special token."""
        special = self._vocab.special_text
        plain = content.replace(_MARK, "")
        if special is None:
            return plain
        return special.sub(lambda match: f"{_MARK}{match.group()}{_MARK}", plain)

    def tokenize(self, rendered: str, *, continues: bool = False) -> Tokens:
        """Token ids of rendered text, shape (n,).

        Args:
            continues: the text stands behind other text of the same conversation.
        """
        template_text, *rest = rendered.split(_MARK)
        if continues:
            ids = [self._vocab.tokenize_after(template_text, parse_special=True)]
        else:
            add_special = not (self._bos and rendered.startswith(self._bos))
            ids = [self._vocab.tokenize(template_text, add_special=add_special, parse_special=True)]
        for index, part in enumerate(rest):
            is_template = index % 2 == 1
            ids.append(self._vocab.tokenize_after(part, parse_special=is_template))
        return np.concatenate(ids)
