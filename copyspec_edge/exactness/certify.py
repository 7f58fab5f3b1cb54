"""Loads weights with the certificate of `exact=True`: from the cache folder, else by probing."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from copyspec_edge.errors import ExactnessError
from copyspec_edge.exactness.certificate import Certificate, read_certificate, write_certificate
from copyspec_edge.exactness.probe import probed_context
from copyspec_edge.exactness.search import ENOUGH_ROWS, Search, reloaded
from copyspec_edge.host import machine
from copyspec_edge.llama import Weights, build_key, choose_extra_bufts, default_n_ctx
from copyspec_edge.settings import Settings

_FORMAT = 1


def load_certified(path: Path, settings: Settings) -> tuple[Weights, Certificate]:
    """The weights of a file and the settings under which copying changes no bit.

    What is found is kept in the cache folder. Where llama.cpp failed on the way, as it does for
    want of memory, only what is good enough is: more may be found another time.

    Raises:
        ExactnessError: there are no such settings, or none could be found; the message says what
            was seen.
        ModelLoadError, NativeBuildError: as `Model.load`.
    """
    wanted = settings.use_extra_bufts
    options = (choose_extra_bufts(), False) if wanted is None else (wanted,)
    weights = Weights(path, settings, use_extra_bufts=options[0])
    n_ctx = probed_context(default_n_ctx(weights, settings), weights.n_swa)
    n_threads = settings.n_threads or machine.physical_cores()
    settings = replace(
        settings,
        n_threads=n_threads,
        n_threads_batch=settings.n_threads_batch or n_threads,
        use_extra_bufts=options[0],
        n_batch=min(settings.n_batch, settings.n_ubatch),
        n_ubatch=min(settings.n_batch, settings.n_ubatch),
    )
    key = _key(weights, settings, options, n_ctx)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    file = machine.cache_folder() / "measured" / f"exact-{name}.json"
    certificate = read_certificate(file, key)
    if certificate is None:
        search = Search(weights, settings, n_ctx)
        certificate = search.run(options)
        weights = search.weights
        if not search.has_failed or max(certificate.rows, default=0) >= ENOUGH_ROWS:
            write_certificate(file, key, certificate)
    if certificate.reason:
        weights.close()
        raise ExactnessError(certificate.reason)
    return reloaded(weights, settings, certificate.use_extra_bufts), certificate


def _key(weights: Weights, settings: Settings, options: tuple[bool, ...], n_ctx: int) -> str:
    file = weights.path.stat()
    facts = (weights.path, file.st_size, file.st_mtime_ns, replace(settings, n_ctx=n_ctx), options)
    return repr((_FORMAT, build_key(), *facts))
