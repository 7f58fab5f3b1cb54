"""llama.cpp's samplers, one function each, and the chain of them. It knows no order and no options.

Lengths to look back are whole numbers of tokens from 0 on. What is left out of llama.cpp's
parameters is `min_keep`, which is 1.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import llama_cpp

from copyspec_edge.arrays import Tokens
from copyspec_edge.errors import EngineError
from copyspec_edge.llama.vocabulary import Vocab

_MIROSTAT_M = 100


class NativeSampler:
    """A sampler of llama.cpp's, freed with its last reference unless a chain has taken it.

    Raises:
        EngineError: llama.cpp made none.
    """

    def __init__(self, pointer: object) -> None:
        if not pointer:
            raise EngineError("llama.cpp could not make a sampler; memory may be short")
        self.pointer = pointer
        self._free = weakref.finalize(self, llama_cpp.llama_sampler_free, pointer)

    def accept(self, token: int) -> None:
        """`token` was committed."""
        llama_cpp.llama_sampler_accept(self.pointer, token)

    def accept_all(self, tokens: Tokens) -> None:
        """All these were committed, shape (n,)."""
        accept, pointer = llama_cpp.llama_sampler_accept, self.pointer
        for token in tokens.tolist():
            accept(pointer, token)

    def clone(self) -> NativeSampler:
        """Another one in the same state."""
        return NativeSampler(llama_cpp.llama_sampler_clone(self.pointer))

    def give_up(self) -> object:
        """The pointer, which somebody else frees from now on."""
        self._free.detach()
        return self.pointer


def chain(links: Sequence[NativeSampler]) -> NativeSampler:
    """One sampler that is all of these, one after the other; it owns them."""
    joined = NativeSampler(
        llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    )
    for link in links:
        llama_cpp.llama_sampler_chain_add(joined.pointer, link.give_up())
    return joined


def dry(
    vocab: Vocab,
    last_n: int,
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
    breakers: Sequence[bytes],
) -> NativeSampler:
    """Lowers the logits of what would repeat a sequence. Breakers need a vocabulary with text."""
    return NativeSampler(
        llama_cpp.llama_sampler_init_dry(
            vocab.native if breakers else None,
            multiplier,
            base,
            allowed_length,
            last_n,
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )
    )


def top_n_sigma(n: float) -> NativeSampler:
    """Keeps logits within n standard deviations of the largest."""
    return NativeSampler(llama_cpp.llama_sampler_init_top_n_sigma(n))


def top_k(k: int) -> NativeSampler:
    """Keeps the k likeliest."""
    return NativeSampler(llama_cpp.llama_sampler_init_top_k(k))


def typical_p(p: float) -> NativeSampler:
    """Keeps the most typical that together have probability p."""
    return NativeSampler(llama_cpp.llama_sampler_init_typical(p, 1))


def top_p(p: float) -> NativeSampler:
    """Keeps the likeliest that together have probability p."""
    return NativeSampler(llama_cpp.llama_sampler_init_top_p(p, 1))


def min_p(p: float) -> NativeSampler:
    """Keeps what is at least p times as likely as the likeliest."""
    return NativeSampler(llama_cpp.llama_sampler_init_min_p(p, 1))


def xtc(probability: float, threshold: float, seed: int) -> NativeSampler:
    """Now and then removes all but the least likely of those above a threshold."""
    return NativeSampler(llama_cpp.llama_sampler_init_xtc(probability, threshold, 1, seed))


def temperature(temperature: float, *, span: float = 0.0, exponent: float = 1.0) -> NativeSampler:
    """Divides the logits; by a temperature that follows the entropy within `span`, if it is > 0."""
    return NativeSampler(llama_cpp.llama_sampler_init_temp_ext(temperature, span, exponent))


def mirostat(n_vocab: int, seed: int, tau: float, eta: float) -> NativeSampler:
    """Draws so that the surprise stays near `tau`."""
    return NativeSampler(
        llama_cpp.llama_sampler_init_mirostat(n_vocab, seed, tau, eta, _MIROSTAT_M)
    )


def mirostat_v2(seed: int, tau: float, eta: float) -> NativeSampler:
    """The same by a simpler rule."""
    return NativeSampler(llama_cpp.llama_sampler_init_mirostat_v2(seed, tau, eta))


def greedy() -> NativeSampler:
    """Takes the likeliest."""
    return NativeSampler(llama_cpp.llama_sampler_init_greedy())


def draw(seed: int) -> NativeSampler:
    """Draws one."""
    return NativeSampler(llama_cpp.llama_sampler_init_dist(seed))
