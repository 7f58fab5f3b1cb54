"""Token trie: a vocabulary in the form llguidance takes. It knows pieces, not grammars."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from llguidance import LLTokenizer, TokenizerWrapper


class _Pieces:
    """What llguidance asks a tokenizer for."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes], special: Sequence[int], end: int) -> None:
        self.tokens = pieces
        self.special_token_ids = special
        self.eos_token_id = end

    def __call__(self, text: bytes) -> list[int]:
        """Nothing: llguidance is only ever given tokens."""
        return []


def token_trie(
    pieces: Sequence[bytes], special: Sequence[int], eog: Collection[int]
) -> LLTokenizer:
    """The trie of a vocabulary. It takes a second where there are 262,144 tokens.

    Args:
        pieces: the text of each token.
        special: tokens whose text is not that of an answer.
        eog: end-of-generation tokens, at least one.
    """
    ends = sorted(eog)
    wrapped = TokenizerWrapper(_Pieces(pieces, special, ends[0]))
    # Its slices speed up masks of long strings by nothing measurable and take as long again.
    return LLTokenizer(wrapped, len(pieces), eos_token=list(ends), slices=[])
