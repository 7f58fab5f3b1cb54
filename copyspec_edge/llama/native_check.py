"""Does this machine's llama.cpp build decode without crashing? Asked in a child process.

A build can use instructions that the processor advertises and the virtual machine traps on (AMX).
Such a crash takes the whole process down, so it is provoked once, in a child, on a tiny quantized
model written for the purpose, and the outcome is remembered for this build on this machine.

Run as a script this file is the child. It must then import nothing of this package.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Status = Literal["works", "crashes", "unknown"]

_TIMEOUT_SECONDS = 60
_DONE = "decoded"
_logger = logging.getLogger("copyspec_edge")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a probe showed. `detail` says how it ended."""

    status: Status
    detail: str = ""


def choose_extra_bufts() -> bool:
    """Whether models may be loaded with repacked weights and AMX kernels on this machine.

    The first call for a build and machine runs one or two child processes; warns where the build
    is bad, or where nothing could be found out.

    Raises:
        NativeBuildError: llama.cpp crashes either way.
    """
    from copyspec_edge.errors import NativeBuildError
    from copyspec_edge.llama.presets import rebuild_command

    outcome = remembered_probe(extra_bufts=True)
    if outcome.status == "works":
        return True
    if outcome.status == "unknown":
        _logger.warning(
            "could not check whether this llama.cpp build works here (%s); "
            "using its slower kernels, asking again next time",
            outcome.detail,
        )
        return False
    fallback = remembered_probe(extra_bufts=False)
    if fallback.status == "crashes":
        raise NativeBuildError(
            f"the installed llama.cpp crashes on this machine ({fallback.detail}). "
            f"Rebuild it: {rebuild_command()}"
        )
    _logger.warning(
        "the installed llama.cpp crashes on this machine (%s); going on without its repacked "
        "kernels, which is slower. Better rebuild it: %s",
        outcome.detail,
        rebuild_command(),
    )
    return False


def remembered_probe(*, extra_bufts: bool) -> Outcome:
    """The outcome for this build and machine: from the cache folder, else from a new probe."""
    from copyspec_edge.host import machine
    from copyspec_edge.llama.build import build_key

    path = machine.cache_folder() / "native" / f"{build_key()}.json"
    name = "extra_bufts" if extra_bufts else "plain"
    known = _read(path)
    if name in known:
        return known[name]
    outcome = probe(extra_bufts=extra_bufts)
    if outcome.status != "unknown":
        _write(path, {**known, name: outcome})
    return outcome


def probe(*, extra_bufts: bool) -> Outcome:
    """Decode a tiny model in a child process, with one thread."""
    if getattr(sys, "frozen", False) or not sys.executable:
        return Outcome("unknown", "no Python interpreter to run the check in")
    # Run by path and not by module name: importing the package would take seconds.
    code = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, str(int(extra_bufts))]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Outcome("unknown", f"the check took longer than {_TIMEOUT_SECONDS} s")
    except OSError as error:
        return Outcome("unknown", f"the check could not be started: {error}")
    return _judge(done.returncode, done.stdout, done.stderr)


def _judge(code: int, stdout: bytes, stderr: bytes) -> Outcome:
    if code == 0 and _DONE.encode() in stdout:
        return Outcome("works")
    if code < 0:
        return Outcome("crashes", f"signal {-code}")
    if code > 0xFF:
        return Outcome("crashes", f"exception {code:#x}")
    last_line = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return Outcome("unknown", last_line or f"exit code {code}")


def _read(path: Path) -> dict[str, Outcome]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Outcome(entry["status"], entry["detail"])
            for name, entry in raw.items()
            if entry["status"] in ("works", "crashes")
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write(path: Path, outcomes: dict[str, Outcome]) -> None:
    from copyspec_edge.host import write_atomically

    raw = {name: {"status": o.status, "detail": o.detail} for name, o in outcomes.items()}
    write_atomically(path, json.dumps(raw))


def write_tiny_model(
    path: Path,
    *,
    heads: int = 4,
    kv_heads: int = 4,
    head_width: int = 64,
    context: int = 64,
) -> None:
    """Write a one-layer Q4_0 llama of half a megabyte: the kernels that crash, in 0.3 seconds."""
    import gguf
    import numpy as np

    width, hidden, vocabulary = 256, 512, 64
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(0)

    def add(name: str, rows: int, columns: int) -> None:
        weights = random.standard_normal((rows, columns), dtype=np.float32) / 16
        quantized = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_0)
        writer.add_tensor(f"{name}.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    add("token_embd", vocabulary, width)
    add("output", vocabulary, width)
    add("blk.0.attn_q", heads * head_width, width)
    add("blk.0.attn_k", kv_heads * head_width, width)
    add("blk.0.attn_v", kv_heads * head_width, width)
    add("blk.0.attn_output", width, heads * head_width)
    add("blk.0.ffn_gate", hidden, width)
    add("blk.0.ffn_up", hidden, width)
    add("blk.0.ffn_down", width, hidden)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _child(extra_bufts: bool) -> None:
    import ctypes

    import llama_cpp
    import numpy as np

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "tiny.gguf"
        write_tiny_model(path)
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = extra_bufts
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        context_params = llama_cpp.llama_context_default_params()
        context_params.n_ctx = 64
        context_params.n_threads = context_params.n_threads_batch = 1
        context = llama_cpp.llama_init_from_model(model, context_params)
        tokens = (ctypes.c_int32 * 8)(*range(8))
        code = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, 8))
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (64,))
        if code or not np.isfinite(row).all():
            raise SystemExit(f"decoding a tiny model went wrong (code {code})")
        sys.stdout.write(_DONE)
        sys.stdout.flush()
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


if __name__ == "__main__":
    _child(sys.argv[1] == "1")
