"""Settings: how a model is loaded and its contexts are made, in llama.cpp's terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from copyspec_edge.errors import InvalidInputError

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention = Literal["auto", "on", "off"]
FLOAT_KV = ("f32", "f16", "bf16")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is loaded and how the contexts of its sessions are made.

    Attributes:
        n_ctx: tokens of context; None: the model's own, at most 8192, less if memory is short.
        n_batch: most tokens llama.cpp is given at once.
        n_ubatch: most tokens it computes at once; no more than `n_batch` are.
        n_threads: threads for one token; None: as many of the machine's physical cores as are
            fastest.
        n_threads_batch: threads for several tokens, which are prompts and drafts; None: as many as
            `n_threads` where that is given, else as many as are fastest.
        n_gpu_layers: layers kept on the GPU; -1: all of them. Without a GPU build: no effect.
        main_gpu: index of the GPU that is used where one is used.
        tensor_split: share of the model for each GPU; None: by their free memory.
        flash_attn: "auto" leaves it to llama.cpp.
        type_k, type_v: type of the K and V cache; a quantized V cache needs flash attention.
        use_mmap: map the file instead of reading it.
        use_mlock: keep the weights from being swapped out.
        use_extra_bufts: repacked weights and AMX kernels; None: used where they do not crash,
            which is found out once per machine and build.
        calibrate: measure once per model and machine, in a few seconds, what verifying costs, how
            many threads are fastest, and whether flash attention is faster; what decoding corrects
            is kept too. Without it each session starts from built-in costs.
        exact: with copying on, tokens and logits are bit for bit those with copying off. The
            settings under which they are, of those left open here, are found by a probe when a
            model is first loaded, a minute or more for a small one, and remembered; without any,
            loading raises ExactnessError. Threads are not given up on a busy machine then.

    Raises:
        InvalidInputError: a value out of range, or a combination llama.cpp cannot run.
    """

    n_ctx: int | None = None
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int | None = None
    n_threads_batch: int | None = None
    n_gpu_layers: int = -1
    main_gpu: int = 0
    tensor_split: tuple[float, ...] | None = None
    flash_attn: FlashAttention = "auto"
    type_k: KvType = "f16"
    type_v: KvType = "f16"
    use_mmap: bool = True
    use_mlock: bool = False
    use_extra_bufts: bool | None = None
    calibrate: bool = True
    exact: bool = False

    def __post_init__(self) -> None:
        check_range("n_ctx", self.n_ctx, 2, 1 << 24)
        check_range("n_batch", self.n_batch, 2, 1 << 16)
        check_range("n_ubatch", self.n_ubatch, 2, 1 << 16)
        check_range("n_threads", self.n_threads, 1, 512)
        check_range("n_threads_batch", self.n_threads_batch, 1, 512)
        check_range("n_gpu_layers", self.n_gpu_layers, -1, 1 << 16)
        check_range("main_gpu", self.main_gpu, 0, 63)
        if self.tensor_split is not None and not _are_shares(self.tensor_split):
            raise InvalidInputError("tensor_split must be shares >= 0, not all of them 0")
        if self.flash_attn not in get_args(FlashAttention):
            raise InvalidInputError(f"flash_attn must be one of {get_args(FlashAttention)}")
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in get_args(KvType):
                raise InvalidInputError(f"{name} must be one of {get_args(KvType)}")
        if self.type_v not in FLOAT_KV and self.flash_attn == "off":
            raise InvalidInputError(
                f"a {self.type_v} V cache needs flash attention: choose flash_attn='on' "
                "or type_v='f16'"
            )


def check_range(name: str, value: int | None, low: int, high: int) -> None:
    """Raise InvalidInputError unless `value` is None or a whole number within the limits."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInputError(
            f"{name} must be a whole number from {low} to {high}, not {value!r}"
        )


def _are_shares(values: tuple[float, ...]) -> bool:
    try:
        return any(values) and all(0 <= value < math.inf for value in values)
    except TypeError:
        return False
