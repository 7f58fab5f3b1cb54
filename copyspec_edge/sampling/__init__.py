"""How a token is chosen from a row of logits: parameters, selectors, constraints, logprobs.

It knows rows and committed tokens; it does not know drafts' sources, engines or conversations.
"""

from __future__ import annotations

from copyspec_edge.sampling.logprobs import TokenLogprob, token_logprob
from copyspec_edge.sampling.params import LIMITS, SamplingParams, StoppingCriterion
from copyspec_edge.sampling.sampler import Sampler, make_sampler
from copyspec_edge.sampling.selectors import GreedySampler
from copyspec_edge.sampling.verify import verify

__all__ = [
    "LIMITS",
    "GreedySampler",
    "Sampler",
    "SamplingParams",
    "StoppingCriterion",
    "TokenLogprob",
    "make_sampler",
    "token_logprob",
    "verify",
]
