"""Loads weights with the certificate of `exact=True`: from the cache folder, else by probing.

It knows which settings are worth a try, and in which order.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from copyspec_edge.errors import EngineError, ExactnessError
from copyspec_edge.exactness.certificate import Certificate, read_certificate, write_certificate
from copyspec_edge.exactness.probe import PROBE_CONTEXT, Finding, probe
from copyspec_edge.host import machine, printable
from copyspec_edge.llama import Engine, Weights, build_key, choose_extra_bufts, default_n_ctx
from copyspec_edge.settings import FLOAT_KV, FlashAttention, Settings
from copyspec_edge.tuning import tuned_settings

# Of rows that agree this many are enough: more are seldom worth verifying at once.
_ENOUGH = 16
_FORMAT = 1
_logger = logging.getLogger("copyspec_edge.exact")


@dataclass(frozen=True)
class _Candidate:
    """Settings that were tried, and what was found."""

    settings: Settings
    finding: Finding

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
            n_batch=self.settings.n_batch,
            ranges=self.finding.ranges,
            n_compared=self.finding.n_compared,
            excluded=self.finding.excluded,
        )

    def describe(self) -> str:
        weights = "repacked" if self.settings.use_extra_bufts else "plain"
        seen = self.finding.excluded[:1] or ("n_ctx or n_batch is too small",)
        return (
            f"{weights} weights, flash attention {self.settings.flash_attn}, "
            f"at least {self.finding.min_rows} rows: {seen[0]}"
        )


def load_certified(path: Path, settings: Settings) -> tuple[Weights, Certificate]:
    """The weights of a file and the settings under which copying changes no bit.

    Raises:
        ExactnessError: there are no such settings; the message says what was seen.
        ModelLoadError, NativeBuildError: as `Model.load`.
    """
    wanted = settings.use_extra_bufts
    options = (choose_extra_bufts(), False) if wanted is None else (wanted,)
    weights = Weights(path, settings, use_extra_bufts=options[0])
    n_ctx = min(default_n_ctx(weights, settings), PROBE_CONTEXT)
    settings = replace(
        settings,
        n_threads=settings.n_threads or machine.physical_cores(),
        use_extra_bufts=options[0],
        n_batch=min(settings.n_batch, settings.n_ubatch),
        n_ubatch=min(settings.n_batch, settings.n_ubatch),
    )
    key = _key(weights, settings, options, n_ctx)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    file = machine.cache_folder() / "measured" / f"exact-{name}.json"
    certificate = read_certificate(file, key)
    if certificate is None:
        weights, certificate = _search(weights, settings, options, n_ctx)
        write_certificate(file, key, certificate)
    if certificate.reason:
        weights.close()
        raise ExactnessError(certificate.reason)
    return _loaded(weights, settings, certificate.use_extra_bufts), certificate


def _key(weights: Weights, settings: Settings, options: tuple[bool, ...], n_ctx: int) -> str:
    file = weights.path.stat()
    facts = (weights.path, file.st_size, file.st_mtime_ns, replace(settings, n_ctx=n_ctx), options)
    return repr((_FORMAT, build_key(), *facts))


def _loaded(weights: Weights, settings: Settings, use_extra_bufts: bool) -> Weights:
    """The same weights, loaded again if they are to be kept in another form."""
    if weights.use_extra_bufts == use_extra_bufts:
        return weights
    weights.close()
    return Weights(weights.path, settings, use_extra_bufts=use_extra_bufts)


def _search(
    weights: Weights, settings: Settings, options: Iterable[bool], n_ctx: int
) -> tuple[Weights, Certificate]:
    """Take the first candidate that has enough rows, else the one with the most."""
    _logger.info(
        "finding settings under which copying changes no bit (once; one to ten minutes for a small "
        "model, longer on a busy machine): %s",
        printable(weights.path),
    )
    screened: list[_Candidate] = []
    for use_extra_bufts in dict.fromkeys(options):
        settings = replace(settings, use_extra_bufts=use_extra_bufts)
        weights = _loaded(weights, settings, use_extra_bufts)
        # Repacked weights: one row and more round by different rules, which differ in ties only,
        # too seldom for a probe.
        least = (2,) if use_extra_bufts else (1, 2)
        for flash_attn, min_rows in product(_flash_options(weights, settings), least):
            wanted = replace(settings, flash_attn=flash_attn)
            candidate = _try(weights, wanted, min_rows, n_ctx, thorough=False)
            if candidate.finding.width >= _ENOUGH:
                candidate = _try(weights, wanted, min_rows, n_ctx, thorough=True)
                if candidate.finding.width >= _ENOUGH:
                    return weights, candidate.certificate()
            screened.append(candidate)
    return _take_widest(weights, screened, n_ctx)


def _take_widest(
    weights: Weights, screened: Sequence[_Candidate], n_ctx: int
) -> tuple[Weights, Certificate]:
    """Probe those that promise the most rows first; a thorough probe never finds more."""
    best: _Candidate | None = None
    for candidate in sorted(screened, key=lambda candidate: -candidate.finding.width):
        if candidate.finding.width <= (best.finding.width if best else 0):
            break
        wanted = candidate.settings
        weights = _loaded(weights, wanted, bool(wanted.use_extra_bufts))
        full = _try(weights, wanted, candidate.finding.min_rows, n_ctx, thorough=True)
        if full.finding.width > (best.finding.width if best else 0):
            best = full
    if best:
        return weights, best.certificate()
    seen = "; ".join(candidate.describe() for candidate in screened)
    return weights, screened[0].certificate(f"copying cannot be made exact here: {seen}")


def _flash_options(weights: Weights, settings: Settings) -> tuple[FlashAttention, ...]:
    if settings.flash_attn != "auto":
        return (settings.flash_attn,)
    if settings.type_v not in FLOAT_KV:
        return ("on",)
    return ("on", "off") if tuned_settings(weights, settings).flash_attn == "on" else ("off", "on")


def _try(
    weights: Weights, settings: Settings, min_rows: int, n_ctx: int, *, thorough: bool
) -> _Candidate:
    _logger.info(
        "%s: %s weights, flash attention %s, at least %d rows",
        "comparing in full" if thorough else "trying",
        "repacked" if settings.use_extra_bufts else "plain",
        settings.flash_attn,
        min_rows,
    )
    try:
        with closing(Engine(weights, settings, n_ctx=n_ctx)) as engine:
            # Any ids, but always the same. They must vary, since equal tokens hide differences.
            tokens = np.random.default_rng(0).integers(0, engine.n_vocab, n_ctx, np.int32)
            finding = probe(
                engine, tokens, min_rows=min_rows, n_batch=settings.n_batch, thorough=thorough
            )
    except EngineError as error:
        finding = Finding(min_rows=min_rows, excluded=(str(error),))
    return _Candidate(settings, finding)
