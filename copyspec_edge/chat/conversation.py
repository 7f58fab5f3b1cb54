"""Conversation: the messages of a chat, and the tokens for its next turn.

Generated token ids are kept from turn to turn: only the template's text behind them is tokenized.
Where a template rewrites earlier text, the whole is tokenized again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from copyspec_edge.arrays import Tokens
from copyspec_edge.chat.template import ChatTemplate, Message
from copyspec_edge.errors import ChatTemplateError


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that is being answered: its tokens with all before them, and what they spell."""

    content: str
    tokens: Tokens
    rendered: str
    template: ChatTemplate


class Conversation:
    """Messages so far. `n_spelled` tokens of the history spell a beginning of their text."""

    def __init__(self, template: ChatTemplate | None, system: str | None) -> None:
        self._template = template
        self._system = system
        self.clear()

    def clear(self) -> None:
        """Back to the system message."""
        self.messages: list[Message] = []
        if self._system is not None:
            self.messages.append(Message(role="system", content=self._system))
        self.forget_tokens()

    def forget_tokens(self) -> None:
        """The history no longer spells this conversation."""
        self._spelled = ""
        self.n_spelled = 0

    def ask(self, content: str, history: Tokens) -> Turn:
        """The next turn; changes nothing yet.

        Raises:
            ChatTemplateError: there is no template, or it refuses or fails.
        """
        if self._template is None:
            raise ChatTemplateError(
                "this model has no chat template: it continues text and cannot chat. "
                "Use complete(), or --raw on the command line"
            )
        question = Message(role="user", content=content)
        rendered = self._template.render([*self.messages, question])
        if self.n_spelled and rendered.startswith(self._spelled):
            rest = self._template.tokenize(rendered[len(self._spelled) :], continues=True)
            tokens = np.concatenate((history[: self.n_spelled], rest))
        else:
            tokens = self._template.tokenize(rendered)
        return Turn(content, tokens, rendered, self._template)

    def answer(self, turn: Turn, text: str, *, spelled: str, n_spelled: int) -> None:
        """Take up a turn with its answer.

        Args:
            text: the answer.
            spelled: the beginning of it that its kept tokens spell.
            n_spelled: length of the history up to there.
        """
        self.messages.append(Message(role="user", content=turn.content))
        self.messages.append(Message(role="assistant", content=text))
        self._spelled = turn.rendered + turn.template.fence(spelled)
        self.n_spelled = n_spelled
