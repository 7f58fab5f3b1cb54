"""Looks for settings under which copying changes no bit: which are worth a try, in which order."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from copyspec_edge.errors import EngineError
from copyspec_edge.exactness.certificate import Certificate
from copyspec_edge.exactness.probe import probe
from copyspec_edge.exactness.row_comparison import Finding
from copyspec_edge.host import printable
from copyspec_edge.llama import Engine, Weights
from copyspec_edge.settings import FLOAT_KV, FlashAttention, Settings
from copyspec_edge.tuning import tuned_settings

# Of rows that agree this many are enough: more are seldom worth verifying at once.
ENOUGH_ROWS = 16
_logger = logging.getLogger("copyspec_edge.exact")


@dataclass(frozen=True)
class _Candidate:
    """Settings that were tried, what was found, and why they could not be tried to the end."""

    settings: Settings
    finding: Finding
    failure: str = ""

    def certificate(self, reason: str = "") -> Certificate:
        return Certificate(
            reason=reason,
            min_rows=self.finding.min_rows,
            rows=self.finding.rows,
            chunks=self.finding.chunks,
            flash_attn=self.settings.flash_attn,
            type_k=self.settings.type_k,
            type_v=self.settings.type_v,
            use_extra_bufts=bool(self.settings.use_extra_bufts),
            n_threads=self.settings.n_threads or 1,
            n_threads_batch=self.settings.n_threads_batch or 1,
            n_batch=self.settings.n_batch,
            ranges=self.finding.ranges,
            n_compared=self.finding.n_compared,
            excluded=self.finding.excluded,
        )

    def describe(self) -> str:
        weights = "repacked" if self.settings.use_extra_bufts else "plain"
        excluded = self.finding.excluded
        seen = self.failure or (excluded[0] if excluded else "n_ctx or n_batch is too small")
        return (
            f"{weights} weights, flash attention {self.settings.flash_attn}, "
            f"at least {self.finding.min_rows} rows: {seen}"
        )


class Search:
    """Tries candidates, with a quick look first.

    Attributes:
        weights: as the last candidate needed them.
        has_failed: llama.cpp failed on one, so that another time more may be found.

    Args:
        n_ctx: context to probe with.
    """

    def __init__(self, weights: Weights, settings: Settings, n_ctx: int) -> None:
        self.weights = weights
        self.has_failed = False
        self._settings = settings
        self._n_ctx = n_ctx

    def run(self, options: Iterable[bool]) -> Certificate:
        """Take the first candidate that has enough rows, else the one with the most."""
        _logger.info(
            "finding settings under which copying changes no bit (once; one to ten minutes for a "
            "small model, longer on a busy machine): %s",
            printable(self.weights.path),
        )
        screened: list[_Candidate] = []
        for candidate in self._candidates(options):
            if candidate.finding.width >= ENOUGH_ROWS:
                candidate = self._try(candidate.settings, candidate.finding.min_rows, thorough=True)
                if candidate.finding.width >= ENOUGH_ROWS:
                    return _granted(candidate)
            screened.append(candidate)
        return self._take_widest(screened)

    def _candidates(self, options: Iterable[bool]) -> Iterator[_Candidate]:
        for use_extra_bufts in dict.fromkeys(options):
            settings = replace(self._settings, use_extra_bufts=use_extra_bufts)
            self.weights = reloaded(self.weights, settings, use_extra_bufts)
            # Repacked weights: one row and more round by different rules, which differ in ties
            # only, too seldom for a probe.
            least = (2,) if use_extra_bufts else (1, 2)
            for flash_attn, min_rows in product(_flash_options(self.weights, settings), least):
                wanted = replace(settings, flash_attn=flash_attn)
                yield self._try(wanted, min_rows, thorough=False)

    def _take_widest(self, screened: Sequence[_Candidate]) -> Certificate:
        """Probe those that promise the most rows first; a thorough probe never finds more."""
        best: _Candidate | None = None
        for candidate in sorted(screened, key=lambda candidate: -candidate.finding.width):
            if candidate.finding.width <= (best.finding.width if best else 0):
                break
            full = self._try(candidate.settings, candidate.finding.min_rows, thorough=True)
            if full.finding.width > (best.finding.width if best else 0):
                best = full
        if best:
            return _granted(best)
        seen = "; ".join(candidate.describe() for candidate in screened)
        if self.has_failed:
            reason = (
                "it could not be found out whether copying can be made exact here, "
                f"try again when more memory is free: {seen}"
            )
        else:
            reason = f"copying cannot be made exact here: {seen}"
        return screened[0].certificate(reason)

    def _try(self, settings: Settings, min_rows: int, *, thorough: bool) -> _Candidate:
        _logger.info(
            "%s: %s weights, flash attention %s, at least %d rows",
            "comparing in full" if thorough else "trying",
            "repacked" if settings.use_extra_bufts else "plain",
            settings.flash_attn,
            min_rows,
        )
        self.weights = reloaded(self.weights, settings, bool(settings.use_extra_bufts))
        try:
            with closing(Engine(self.weights, settings, n_ctx=self._n_ctx)) as engine:
                # Any ids, but always the same. They must vary: equal tokens hide differences.
                tokens = np.random.default_rng(0).integers(0, engine.n_vocab, self._n_ctx, np.int32)
                finding = probe(
                    engine, tokens, min_rows=min_rows, n_batch=settings.n_batch, thorough=thorough
                )
        except EngineError as error:
            self.has_failed = True
            return _Candidate(settings, Finding(min_rows=min_rows), failure=str(error))
        return _Candidate(settings, finding)


def _granted(candidate: _Candidate) -> Certificate:
    certificate = candidate.certificate()
    _logger.info("found: probed with %d tokens of context", certificate.depth)
    return certificate


def _flash_options(weights: Weights, settings: Settings) -> tuple[FlashAttention, ...]:
    if settings.flash_attn != "auto":
        return (settings.flash_attn,)
    if settings.type_v not in FLOAT_KV:
        return ("on",)
    return ("on", "off") if tuned_settings(weights, settings).flash_attn == "on" else ("off", "on")


def reloaded(weights: Weights, settings: Settings, use_extra_bufts: bool) -> Weights:
    """The same weights, loaded again if they are to be kept in another form."""
    if weights.use_extra_bufts == use_extra_bufts:
        return weights
    weights.close()
    return Weights(weights.path, settings, use_extra_bufts=use_extra_bufts)
