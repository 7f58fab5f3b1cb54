"""Which drafters ours is compared with: baselines by name, and the best constants of a curve."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.evaluation.baselines import BASELINES, NGRAM_SIMPLES, PROMPT_LOOKUPS, Factory
from copyspec_edge.evaluation.replay import geometric_mean, replay_all
from copyspec_edge.evaluation.traces import N_CTX, TokenTrace
from copyspec_edge.tuning import CostCurve

BEST = "best"
NAMES = f"all, none, or some of {', '.join([*BASELINES, BEST])}"


def parse_names(text: str) -> list[str]:
    """The baselines a comma-separated list names; "all" is all but BEST.

    Raises:
        InvalidInputError: there is no such baseline.
    """
    names = [] if text == "none" else [name for name in text.split(",") if name]
    chosen = [name for part in names for name in (BASELINES if part == "all" else [part])]
    unknown = [name for name in chosen if name not in BASELINES and name != BEST]
    if unknown:
        raise InvalidInputError(f"no baseline {unknown[0]!r}; there are {NAMES}")
    return chosen


def chosen_baselines(
    names: Sequence[str],
    traces: Sequence[TokenTrace],
    curve: CostCurve,
    eog_tokens: frozenset[int],
    *,
    carried: bool,
) -> dict[str, Factory]:
    """The drafters of these names. BEST is the fastest prompt lookup and the fastest ngram-simple.

    Their two numbers are tuned by replaying these very traces on the curve.
    """
    chosen: dict[str, Factory] = {}
    for name in names:
        if name != BEST:
            chosen[name] = BASELINES[name]
            continue
        for family in (PROMPT_LOOKUPS, NGRAM_SIMPLES):
            best = max(
                family, key=lambda n: _speedup(family[n], traces, curve, eog_tokens, carried)
            )
            chosen[f"{BEST} {best}"] = family[best]
    return chosen


def _speedup(
    make: Factory,
    traces: Sequence[TokenTrace],
    curve: CostCurve,
    eog_tokens: frozenset[int],
    carried: bool,
) -> float:
    tallies = replay_all(lambda: make(N_CTX, eog_tokens), traces, None, carried=carried)
    return geometric_mean(tally.speedup(curve) for tally in tallies.values())
