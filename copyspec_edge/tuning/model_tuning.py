"""ModelTuning: what is left to measurement for one model, and where the results are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from copyspec_edge.host import machine
from copyspec_edge.llama import Engine, Weights, build_key, supports_gpu
from copyspec_edge.settings import FLOAT_KV, Settings
from copyspec_edge.tuning.adaptive_threads import AdaptiveThreads
from copyspec_edge.tuning.calibration import LEAST_CONTEXT, calibrated
from copyspec_edge.tuning.cost import CostCurve, CostModel, StepTime
from copyspec_edge.tuning.curves import CPU_CURVE, GPU_CURVE
from copyspec_edge.tuning.flash_attention import flash_is_faster
from copyspec_edge.tuning.learned_costs import LearnedCosts
from copyspec_edge.tuning.thread_choice import choose_threads


def tuned_settings(weights: Weights, settings: Settings) -> Settings:
    """The settings with flash attention chosen by measurement, where the user left it open."""
    needs_flash = settings.type_v not in FLOAT_KV
    if settings.flash_attn != "auto" or needs_flash or _on_gpu(settings) or not settings.calibrate:
        return settings
    shape = weights.attention_shape
    threads = settings.n_threads or machine.physical_cores()
    batch = settings.n_threads_batch or threads
    path = _measurement_file("flash", shape, threads, batch, settings.type_k, settings.type_v)
    return replace(settings, flash_attn="on" if flash_is_faster(shape, settings, path) else "off")


class ModelTuning:
    """What was measured for the sessions of one loaded model, and what they have learned.

    The first session measures, or reads what an earlier process measured; the others start from
    there, with the costs as decoding has corrected them and the number of threads that was found
    fastest last. Sessions are made one at a time; they may decode at the same time.
    """

    def __init__(self, weights: Weights, settings: Settings) -> None:
        self._weights = weights
        self._asked = settings
        self._threads: tuple[int, int] | None = None
        self._learned: LearnedCosts | None = None
        self._adaptive: AdaptiveThreads | None = None

    @cached_property
    def settings(self) -> Settings:
        """Those to make contexts with."""
        return tuned_settings(self._weights, self._asked)

    def tune(self, engine: Engine) -> CostModel:
        """Set the threads of a new engine, and give what verifying costs on it.

        Both are measured, read from the cache folder or built in, and follow the engine's steps
        from then on: the costs always, the threads where the user left their number open.
        """
        if self._learned is None and self.settings.calibrate and engine.n_ctx >= LEAST_CONTEXT:
            self._measure(engine)
        elif self._threads:
            engine.set_threads(*self._threads)
        return CostModel(
            self._learned.curve if self._learned else self._built_in,
            in_seconds=self._learned is not None,
            rereads=engine.rollback == "checkpoint",
            on_step=self._watch(engine),
        )

    @property
    def _chooses_threads(self) -> bool:
        return self.settings.n_threads is None and not _on_gpu(self.settings)

    @property
    def _built_in(self) -> CostCurve:
        return GPU_CURVE if _on_gpu(self.settings) else CPU_CURVE

    def _measure(self, engine: Engine) -> None:
        """Measure what the cache folder does not hold."""
        file = self._weights.path.stat()
        settings = replace(self.settings, n_ctx=None)
        facts = (self._weights.path, file.st_size, file.st_mtime_ns, settings)
        if self._chooses_threads:
            most = engine.n_threads, engine.n_threads_batch
            path = _measurement_file("threads", *most, *facts)
            choose_threads(engine, path, for_batches=settings.n_threads_batch is None)
        self._threads = engine.n_threads, engine.n_threads_batch
        how = (*self._threads, engine.max_rows, engine.rollback)
        curve = calibrated(engine, _measurement_file("cost", *how, *facts))
        if curve:
            self._learned = LearnedCosts(curve, _measurement_file("learned", *how, *facts))

    def _watch(self, engine: Engine) -> Callable[[StepTime], None] | None:
        """What is to be done with every step of an engine."""
        learned, adaptive = self._learned, self._adaptive_threads(engine)
        if not learned and not adaptive:
            return None

        def on_step(step: StepTime) -> None:
            full = engine.n_threads, engine.n_threads_batch
            if learned and full == self._threads:
                learned.observe(step)
            if adaptive:
                adaptive.observe(step.slowness, step.seconds, step.depth)

        return on_step

    def _adaptive_threads(self, engine: Engine) -> AdaptiveThreads | None:
        if not self._chooses_threads:
            return None
        one, several = engine.n_threads, engine.n_threads_batch
        is_open = self.settings.n_threads_batch is None

        def set_threads(count: int) -> None:
            engine.set_threads(min(one, count), min(several, count) if is_open else several)

        most = max(one, several) if is_open else one
        start = min(most, self._adaptive.settled) if self._adaptive else most
        set_threads(start)
        trusted = self._learned is not None
        self._adaptive = AdaptiveThreads(set_threads, most, start=start, trusted=trusted)
        return self._adaptive


def _on_gpu(settings: Settings) -> bool:
    return supports_gpu() and settings.n_gpu_layers != 0


def _measurement_file(kind: str, *facts: object) -> Path:
    """Where a measurement is kept that depends on these facts, the build and the machine."""
    key = hashlib.sha256(repr((build_key(), *facts)).encode()).hexdigest()[:16]
    return machine.cache_folder() / "measured" / f"{kind}-{key}.json"
