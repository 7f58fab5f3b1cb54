"""Chunk and Reply, and the transcript that turns steps into them. It knows no engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, overload

from copyspec_edge.chat.detokenizer import Detokenizer
from copyspec_edge.chat.stop_strings import StopScanner
from copyspec_edge.decoding import Stats, Step
from copyspec_edge.llama import Vocab
from copyspec_edge.sampling import StoppingCriterion, TokenLogprob

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one forward pass added to an answer.

    Attributes:
        text: new text; empty while a character or a possible stop string is unfinished.
        token_ids: new tokens.
        copied: how many of them came from a copy.
        logprobs: one for each of them if they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    copied: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished answer.

    Attributes:
        text: the whole text, without the stop string that ended it.
        token_ids: all generated tokens, with the end-of-generation token or the tokens of the
            stop string where one ended it.
        finish_reason: "stop" (the model, a stop string or a stopping criterion ended it),
            "length" (max_tokens or the context) or "cancelled".
        stats: counts and times.
        logprobs: one for each of `token_ids` if they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()


class TokenIds(Sequence[int]):
    """The ids of an answer up to some token, like a tuple of them, but without a copy."""

    __slots__ = ("_growing", "_length")

    def __init__(self, growing: list[int]) -> None:
        self._growing = growing
        self._length = len(growing)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return islice(self._growing, self._length)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self._growing[i] for i in range(*index.indices(self._length)))
        return self._growing[range(self._length)[index]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, list, TokenIds)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Transcript:
    """The text of an answer while it grows, and which tokens spell it."""

    def __init__(
        self,
        vocab: Vocab,
        stops: tuple[str, ...],
        stopping: tuple[StoppingCriterion, ...] = (),
    ) -> None:
        self._vocab = vocab
        self._stopping = stopping
        self._detokenizer = Detokenizer()
        self._scanner = StopScanner(stops)
        self._boundaries = [(0, 0)]
        self.steps: list[Step] = []
        self.token_ids: list[int] = []

    @property
    def text(self) -> str:
        """The text so far, shown or held back."""
        return self._scanner.text

    @property
    def ended(self) -> bool:
        """Whether the last token is an end-of-generation token."""
        return bool(self.token_ids) and self.token_ids[-1] in self._vocab.eog_tokens

    def add(self, step: Step) -> bool:
        """Take in a step; True if a stop string or criterion ends it, behind which it is cut."""
        for index, token in enumerate(step.tokens.tolist()):
            self.token_ids.append(token)
            if token in self._vocab.eog_tokens:
                continue
            if self._scanner.feed(self._detokenizer.feed(self._vocab.piece(token))):
                self.steps.append(step.cut(index + 1))
                self._detokenizer = Detokenizer()  # half a character may follow the stop string
                return True
            if self._detokenizer.is_clean:
                self._boundaries.append((len(self.token_ids), len(self.text)))
            if any(stops(TokenIds(self.token_ids), self.text) for stops in self._stopping):
                self.steps.append(step.cut(index + 1))
                return True
        self.steps.append(step)
        return False

    def chunk(self, *, final: bool) -> Chunk:
        """The last step as a chunk; `final` shows what was held back too."""
        if final:
            self._scanner.feed(self._detokenizer.finish())
        last = self.steps[-1]
        text = self._scanner.take(final=final)
        return Chunk(text, tuple(last.tokens.tolist()), last.accepted, last.logprobs)

    def rest(self) -> Chunk | None:
        """What was held back of an answer that was cut short, if anything."""
        self._scanner.feed(self._detokenizer.finish())
        text = self._scanner.take(final=True)
        return Chunk(text, (), 0) if text else None

    def spelled(self) -> tuple[int, str]:
        """The most tokens that spell a beginning of the text exactly, and that beginning."""
        n_tokens, n_chars = next(b for b in reversed(self._boundaries) if b[1] <= len(self.text))
        return n_tokens, self.text[:n_chars]
