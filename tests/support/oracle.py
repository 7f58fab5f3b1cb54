"""What a model says behind a prompt, decoded in the plainest way: the tests' idea of right.

It shares llama.cpp's samplers and the vocabulary with the package, and nothing of the way from
rows to answers: no session, drafts, cache, logits processors, incremental text or statistics.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fake_engine import Row

from copyspec_edge.arrays import as_tokens
from copyspec_edge.chat.reply import Reply
from copyspec_edge.errors import EngineError
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.sampling.logprobs import TokenLogprob, token_logprob
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import make_sampler

# The logits behind a sequence of tokens.
Reader = Callable[[Sequence[int]], Row]


@dataclass(frozen=True)
class Said:
    """An answer without how it came about; one that the sampler cannot go on with is an "error"."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] = ()


def said(reply: Reply) -> Said:
    return Said(reply.text, reply.token_ids, reply.finish_reason, reply.logprobs)


def plainly(
    read: Reader, vocab: Vocab, prompt: Sequence[int], params: SamplingParams, n_ctx: int
) -> Said:
    """The answer that one row after the other gives."""
    room = n_ctx - len(prompt)
    tokens, raw, logprobs = list(prompt), b"", list[TokenLogprob]()
    plain = replace(params, logits_processors=(), logit_bias={})
    sampler = make_sampler(plain, vocab, as_tokens(prompt), n_ctx)

    def ended(text: str, reason: str) -> Said:
        return Said(text, tuple(tokens[len(prompt) :]), reason, tuple(logprobs))

    for _ in range(min(params.max_tokens or room, room)):
        row = read(tokens)
        try:
            token = sampler.choose(processed(row, tokens, params))
        except EngineError:
            return ended(raw.decode("utf-8", "replace"), "error")
        sampler.accept(token)
        tokens.append(token)
        if params.logprobs is not None:
            logprobs.append(token_logprob(row, token, params.logprobs))
        if token in vocab.eog_tokens:
            return ended(raw.decode("utf-8", "replace"), "stop")
        raw += vocab.piece(token)
        text = whole_characters(raw)
        found = [at for stop in params.stop if (at := text.find(stop)) >= 0]
        if found:
            return ended(text[: min(found)], "stop")
        if any(stops(tuple(tokens[len(prompt) :]), text) for stops in params.stopping):
            return ended(raw.decode("utf-8", "replace"), "stop")
    return ended(raw.decode("utf-8", "replace"), "length")


def processed(row: Row, tokens: Sequence[int], params: SamplingParams) -> Row:
    """A row as the logits processors and the bias leave it."""
    row = row.copy()
    for process in params.logits_processors:
        changed = process(as_tokens(tokens), row)
        row = row if changed is None else changed.copy()
    for token, added in params.logit_bias.items():
        row[token] += added
    return row


def whole_characters(raw: bytes) -> str:
    """The text of `raw` up to a character that may still be completed."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
