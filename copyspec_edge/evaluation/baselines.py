"""What others draft, behind the `Drafter` protocol, to be measured in the same harness.

Each is written anew from its documented behaviour and drafts exactly what the original would, found
through incremental indexes, so that a step costs the same at any length of the history. All have
constant draft lengths and no idea of how sure they are: every accept probability is 1. The state
that llama.cpp's server is told after a step is read off the history at the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from copyspec_edge.arrays import Tokens
from copyspec_edge.drafting import NO_DRAFT, Draft, Drafter
from copyspec_edge.evaluation.ngram_cache import NgramCache
from copyspec_edge.evaluation.ngram_map_k import NgramMapK
from copyspec_edge.evaluation.ngram_mod import NgramMod
from copyspec_edge.evaluation.ngrams import NgramPositions, sure

Factory = Callable[[int, frozenset[int]], Drafter]


class FirstOccurrence:
    """CopySpec as published: what followed the first occurrence of the last `gamma` tokens.

    Source: arXiv 2502.08923, algorithm and reference implementation (RazvanDu/CopySpec); always 10
    tokens, fewer where the history ends. Nothing is drafted at the first occurrence itself.
    """

    def __init__(self, gamma: int, n_draft: int) -> None:
        self._positions = NgramPositions(gamma, oldest=True)
        self._gamma = gamma
        self._n_draft = n_draft

    def draft(self, history: Tokens, limit: int) -> Draft:
        """Copy from behind the first occurrence."""
        self._positions.extend(history, len(history) - 1)
        start = self._positions.find(history)
        if start < 0:
            return NO_DRAFT
        source = start + self._gamma
        return sure(history[source : source + self._n_draft], limit)

    def reset(self) -> None:
        """Index anew."""
        self._positions.clear()


class PromptLookup:
    """Prompt lookup: what followed the oldest occurrence of the longest n-gram that has one.

    Sizes from `max_ngram` down to 1, up to `n_draft` tokens, fewer where the history ends. Sources:
    apoorvumang/prompt-lookup-decoding; llama-cpp-python 0.3.36, llama_speculative.py,
    `LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=10)`; transformers,
    `PromptLookupCandidateGenerator` (num_output_tokens 10, max_matching_ngram_size 2), which also
    cuts before the first end-of-generation token: pass these as `eog_tokens`.
    """

    def __init__(
        self, max_ngram: int, n_draft: int, eog_tokens: frozenset[int] = frozenset()
    ) -> None:
        self._by_size = [NgramPositions(n, oldest=True) for n in range(max_ngram, 0, -1)]
        self._n_draft = n_draft
        self._eog = eog_tokens

    def draft(self, history: Tokens, limit: int) -> Draft:
        """Copy from behind the oldest occurrence of the longest n-gram found."""
        for positions in self._by_size:
            positions.extend(history, len(history) - 1)
        for positions in self._by_size:
            start = positions.find(history)
            if start >= 0:
                source = start + positions.size
                return sure(self._before_eog(history[source : source + self._n_draft]), limit)
        return NO_DRAFT

    def reset(self) -> None:
        """Index anew."""
        for positions in self._by_size:
            positions.clear()

    def _before_eog(self, tokens: Tokens) -> Tokens:
        if not self._eog:
            return tokens
        ends = (i for i, token in enumerate(tokens.tolist()) if token in self._eog)
        return tokens[: next(ends, len(tokens))]


class NgramSimple:
    """llama.cpp's ngram-simple: what followed the latest occurrence of the last `n` tokens.

    Source: llama.cpp, docs/speculative.md and common/ngram-map.cpp, `common_ngram_simple_draft`; 12
    and 48 by default. Up to `m` tokens, none where fewer than `n` follow before the last token,
    none in a history of n + m + 2 tokens or less; position 0 is never a match.
    """

    def __init__(self, n: int, m: int) -> None:
        self._positions = NgramPositions(n, oldest=False)
        self._m = m

    def draft(self, history: Tokens, limit: int) -> Draft:
        """Copy from behind the latest occurrence that lies wholly before the last token."""
        n, m, length = self._positions.size, self._m, len(history) - 1
        self._positions.extend(history, length - 1)
        if length <= n + m + 1:
            return NO_DRAFT
        start = self._positions.find(history)
        copied = min(m, length - (start + n))
        if start <= 0 or copied < n:
            return NO_DRAFT
        return sure(history[start + n : start + n + copied], limit)

    def reset(self) -> None:
        """Index anew."""
        self._positions.clear()


BASELINES: dict[str, Factory] = {
    "copyspec-3": lambda capacity, eog: FirstOccurrence(3, 10),
    "copyspec-5": lambda capacity, eog: FirstOccurrence(5, 10),
    "llama-cpp-python": lambda capacity, eog: PromptLookup(2, 10),
    "transformers": lambda capacity, eog: PromptLookup(2, 10, eog),
    "ngram-simple": lambda capacity, eog: NgramSimple(12, 48),
    "ngram-map-k": lambda capacity, eog: NgramMapK(12, 48),
    "ngram-mod": lambda capacity, eog: NgramMod(24, 48, 64),
    "ngram-cache": lambda capacity, eog: NgramCache(8),
}


def _prompt_lookup(n: int, k: int) -> Factory:
    return lambda capacity, eog: PromptLookup(n, k)


def _ngram_simple(n: int, m: int) -> Factory:
    return lambda capacity, eog: NgramSimple(n, m)


# The two numbers of prompt lookup and ngram-simple, for the best constants of a cost curve.
# ngram-simple never drafts with m < n. The lengths are those at which batches get dearer.
PROMPT_LOOKUPS: dict[str, Factory] = {
    f"prompt-lookup {n}/{k}": _prompt_lookup(n, k)
    for n in (2, 3, 4, 6, 8, 12)
    for k in (2, 3, 5, 7, 10, 15, 31)
}
NGRAM_SIMPLES: dict[str, Factory] = {
    f"ngram-simple {n}/{m}": _ngram_simple(n, m)
    for n in (2, 3, 4, 6, 8, 12)
    for m in (2, 3, 5, 7, 10, 15, 31, 48)
    if m >= n
}
