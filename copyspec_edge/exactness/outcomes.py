"""What comes out where an answer is decoded twice, without copying and with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer with copying first has another token.

    Attributes:
        prompt: its number, from 0.
        drafts: "copied" or "forced".
        position: of the token in the answer, from 0.
        plain, other: the two tokens, and `plain_text`, `other_text` what they spell.
        margin: how much likelier the model found the plain one, in logits of the plain row.
        rounding: the largest difference between the two rows, in logits.
    """

    prompt: int
    drafts: str
    position: int
    plain: int
    other: int
    plain_text: str
    other_text: str
    margin: float
    rounding: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One answer decoded twice.

    Attributes:
        prompt: its number, from 0.
        drafts: "copied" or "forced".
        depth: tokens of the conversation behind the answer.
        n_threads, n_threads_batch: threads it was computed with in the end, one token and several.
        tokens_compared: tokens, with the rows they were chosen from, up to the first difference.
        drafted, accepted: tokens proposed and verified, and how many of them were emitted.
        rows_differing: rows that are not bit for bit the same.
        max_logit_difference: the largest difference between two rows.
        difference: the first other token, or None.
    """

    prompt: int
    drafts: str
    depth: int
    n_threads: int
    n_threads_batch: int
    tokens_compared: int
    drafted: int
    accepted: int
    rows_differing: int
    max_logit_difference: float
    difference: Difference | None


def summarize(comparisons: Sequence[Comparison]) -> dict[str, object]:
    """The sums over all answers.

    `identical` is true where all tokens and all rows they were chosen from are the same bits.
    """
    differences = [c.difference for c in comparisons if c.difference]
    return {
        "identical": not any(c.rows_differing or c.difference for c in comparisons),
        "tokens_compared": sum(c.tokens_compared for c in comparisons),
        "rows_differing": sum(c.rows_differing for c in comparisons),
        "max_logit_difference": max((c.max_logit_difference for c in comparisons), default=0.0),
        "deepest": max((c.depth for c in comparisons), default=0),
        "first_difference": asdict(differences[0]) if differences else None,
    }
