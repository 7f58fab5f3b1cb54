"""What a model says behind a prompt, decoded in the plainest way: the tests' idea of right.

It shares the samplers and the vocabulary with the package, and nothing of the way from rows to
answers: no session, drafts, cache, incremental text or statistics.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fake_engine import Row

from copyspec_edge.reply import Reply
from copyspec_edge.sampling import SamplingParams, make_sampler
from copyspec_edge.vocab import Vocab

# The logits behind a sequence of tokens.
Reader = Callable[[Sequence[int]], Row]


@dataclass(frozen=True)
class Said:
    """An answer without how it came about."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


def said(reply: Reply) -> Said:
    return Said(reply.text, reply.token_ids, reply.finish_reason)


def plainly(
    read: Reader, vocab: Vocab, prompt: Sequence[int], params: SamplingParams, n_ctx: int
) -> Said:
    """The answer that one row after the other gives."""
    room = n_ctx - len(prompt)
    tokens, raw = list(prompt), b""
    sampler = make_sampler(params, vocab.n_tokens)
    reason = "length"
    while reason == "length" and len(tokens) - len(prompt) < min(params.max_tokens or room, room):
        token = sampler.choose(read(tokens))
        sampler.accept(token)
        tokens.append(token)
        if token in vocab.eog_tokens:
            reason = "stop"
            continue
        raw += vocab.piece(token)
        text = whole_characters(raw)
        found = [at for stop in params.stop if (at := text.find(stop)) >= 0]
        if found:
            return Said(text[: min(found)], tuple(tokens[len(prompt) :]), "stop")
    return Said(raw.decode("utf-8", "replace"), tuple(tokens[len(prompt) :]), reason)


def whole_characters(raw: bytes) -> str:
    """The text of `raw` up to a character that may still be completed."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
