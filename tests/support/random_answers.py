"""Answers of a model that says anything its constraint lets it, plainly or by drafts."""

from __future__ import annotations

import numpy as np

from copyspec_edge.arrays import Row, Rows, Tokens, as_tokens
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.sampling.params import SamplingParams
from copyspec_edge.sampling.sampler import make_sampler
from copyspec_edge.sampling.verify import verify

_CLOSERS = ('"', "@", '",', '":', '"}', '"]', "}", "]", "},", "],", ",", "true", "null")
_LONGEST_DRAFT = 6


class RandomModel:
    """Rows of logits that depend on the position only, more and more in favour of an end."""

    def __init__(self, vocab: Vocab, seed: int) -> None:
        self.vocab = vocab
        self._noise = np.random.default_rng(seed).normal(0, 2, 2 * vocab.n_tokens)
        spelled = [vocab.tokenize(text).tolist() for text in _CLOSERS]
        closers = {ids[0] for ids in spelled if len(ids) == 1}
        self._closers = np.array(sorted(closers | vocab.eog_tokens))

    def row(self, position: int) -> Row:
        """Logits, shape (n_vocab,)."""
        start = position * 7919 % self.vocab.n_tokens
        row = self._noise[start : start + self.vocab.n_tokens].astype(np.float32)
        row[self._closers] += 6 + position / 10
        return row

    def rows(self, position: int, n: int) -> Rows:
        """Logits of n positions, shape (n, n_vocab)."""
        return np.stack([self.row(position + i) for i in range(n)])


def answer(
    model: RandomModel, params: SamplingParams, longest: int, draft_from: Tokens | None = None
) -> Tokens:
    """Tokens up to an end of generation, shape (n,), drafted from another answer if one is given.

    Every third draft has a wrong token in it.
    """
    vocab = model.vocab
    said: list[int] = []
    sampler = make_sampler(params, vocab, as_tokens([]), longest + _LONGEST_DRAFT)
    for n_step in range(longest):
        draft = as_tokens([])
        if draft_from is not None:
            draft = draft_from[len(said) : len(said) + _LONGEST_DRAFT].copy()
            draft[n_step % 3 :: 3] += n_step % 3 == 2
            draft = draft[: sampler.admits(draft % vocab.n_tokens)]
        rows = model.rows(len(said), len(draft) + 1)
        said += verify(draft, rows, sampler, vocab.eog_tokens).tolist()
        if said[-1] in vocab.eog_tokens or len(said) >= longest:
            break
    return as_tokens(said)
