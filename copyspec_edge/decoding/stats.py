"""Steps of the decoder and their sum. Counted from what was emitted, so that the sums hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from copyspec_edge.arrays import Tokens
from copyspec_edge.sampling import TokenLogprob


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass and the tokens it emitted.

    Attributes:
        tokens: the emitted token ids, shape (n,), n at least 1.
        drafted: how many tokens were proposed and verified.
        accepted: how many of `tokens` were proposed; they come first.
        source: which drafter proposed them.
        evaluated: tokens the model had not read before, the draft not counted; more than 1 for
            the step that reads a prompt.
        seconds: duration of the whole step, drafting and sampling included; what a cost model
            learns from is the forward pass alone.
        declined: whether a copy was found of which nothing was worth verifying, or possible.
        logprobs: one for each of `tokens` if they were asked for.
    """

    tokens: Tokens
    drafted: int
    accepted: int
    source: str
    evaluated: int
    seconds: float
    declined: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()

    def cut(self, length: int) -> Step:
        """This step as if it had ended after its first `length` tokens."""
        return replace(
            self,
            tokens=self.tokens[:length],
            accepted=min(self.accepted, length),
            logprobs=self.logprobs[:length],
        )


@dataclass(frozen=True, slots=True)
class Stats:
    """What one answer took.

    generated_tokens = verify_steps + accepted_tokens - steps that ended on a drafted token (an
    end of generation, a stop string or a limit).

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them were in the KV cache already.
        generated_tokens: emitted tokens, an end-of-generation token included.
        verify_steps: forward passes that emitted tokens; the first token's pass is one of them.
        drafted_tokens: tokens proposed and verified.
        accepted_tokens: proposed tokens that were emitted.
        declined_drafts: steps for which a copy was found that was not worth verifying at its cost.
        reread_tokens: tokens read once more because a draft broke; only with "checkpoint".
        prefill_seconds: until the first tokens were there.
        decode_seconds: from then on.
        tokens_per_second: tokens after the first step over the time after it.
        threads: threads in use at the end; fewer than at the start on a busy machine.
        rollback: how this model undoes rejected tokens: "attention" (free), "native" (llama.cpp
            keeps the states within a batch), "checkpoint" (the state is copied before each draft
            and the accepted tokens are read again after a break), or "none" (nothing is drafted).
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int = 0
    verify_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    declined_drafts: int = 0
    reread_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    tokens_per_second: float = 0.0
    threads: int = 1
    rollback: str = "attention"

    def as_dict(self) -> dict[str, int | float | str]:
        """The attributes by name."""
        return asdict(self)


def fold(
    steps: Iterable[Step],
    *,
    prompt_tokens: int,
    cached_tokens: int,
    threads: int = 1,
    rollback: str = "attention",
) -> Stats:
    """Sum up the steps of one answer.

    tokens_per_second counts the tokens after the first step over the time after it, and is 0
    where there was no second step.
    """
    steps = list(steps)
    first, later = steps[:1], steps[1:]
    decode_seconds = sum(step.seconds for step in later)
    decoded = sum(len(step.tokens) for step in later)
    return Stats(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        generated_tokens=sum(len(step.tokens) for step in steps),
        verify_steps=len(steps),
        drafted_tokens=sum(step.drafted for step in steps),
        accepted_tokens=sum(step.accepted for step in steps),
        declined_drafts=sum(step.declined for step in steps),
        reread_tokens=sum(step.evaluated - 1 for step in later),
        prefill_seconds=sum(step.seconds for step in first),
        decode_seconds=decode_seconds,
        tokens_per_second=decoded / decode_seconds if decode_seconds else 0.0,
        threads=threads,
        rollback=rollback,
    )
