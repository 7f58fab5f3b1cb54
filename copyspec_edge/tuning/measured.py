"""What is left to measurement: which measurements a model needs, and where they are kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from copyspec_edge.host import machine
from copyspec_edge.llama import Engine, Weights, build_key, supports_gpu
from copyspec_edge.settings import FLOAT_KV, Settings
from copyspec_edge.tuning.adaptive_threads import AdaptiveThreads
from copyspec_edge.tuning.calibration import LEAST_CONTEXT, calibrated
from copyspec_edge.tuning.cost import CPU_CURVE, GPU_CURVE, CostModel
from copyspec_edge.tuning.flash_attention import flash_is_faster
from copyspec_edge.tuning.threads import choose_threads

_ANY_TOKEN = 0


def tuned_settings(weights: Weights, settings: Settings) -> Settings:
    """The settings with flash attention chosen by measurement, where the user left it open."""
    needs_flash = settings.type_v not in FLOAT_KV
    if settings.flash_attn != "auto" or needs_flash or _on_gpu(settings) or not settings.calibrate:
        return settings
    shape = weights.attention_shape
    threads = settings.n_threads or machine.physical_cores()
    path = _measurement_file("flash", shape, threads, settings.type_k, settings.type_v)
    return replace(settings, flash_attn="on" if flash_is_faster(shape, settings, path) else "off")


def cost_model(engine: Engine, weights: Weights, settings: Settings) -> CostModel:
    """What verifying costs on a new engine, measured or built in, corrected by its steps.

    Where the user left the number of threads open, the fastest is measured too, and its steps
    govern it from then on.
    """
    curve = None
    chooses_threads = settings.n_threads is None and not _on_gpu(settings)
    if settings.calibrate and engine.n_ctx >= LEAST_CONTEXT:
        file = weights.path.stat()
        facts = (weights.path, file.st_size, file.st_mtime_ns, replace(settings, n_ctx=None))
        if chooses_threads:
            path = _measurement_file("threads", engine.n_threads, *facts)
            choose_threads(engine, path, _ANY_TOKEN)
        how = (engine.n_threads, engine.max_rows, engine.rollback)
        path = _measurement_file("cost", *how, *facts)
        curve = calibrated(engine, path, _ANY_TOKEN)
    governor = None
    if chooses_threads:
        trusted = curve is not None
        governor = AdaptiveThreads(engine.set_threads, engine.n_threads, trusted=trusted)
    return CostModel(
        curve or (GPU_CURVE if _on_gpu(settings) else CPU_CURVE),
        in_seconds=curve is not None,
        rereads=engine.rollback == "checkpoint",
        on_step=governor.observe if governor else None,
    )


def _on_gpu(settings: Settings) -> bool:
    return supports_gpu() and settings.n_gpu_layers != 0


def _measurement_file(kind: str, *facts: object) -> Path:
    """Where a measurement is kept that depends on these facts, the build and the machine."""
    key = hashlib.sha256(repr((build_key(), *facts)).encode()).hexdigest()[:16]
    return machine.cache_folder() / "measured" / f"{kind}-{key}.json"
