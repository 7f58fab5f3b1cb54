"""`copyspec-edge doctor`: what is installed, whether it decodes, and what to do if not."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform

from copyspec_edge.cli.options import add_exact_option, add_model_options, load_model
from copyspec_edge.errors import (
    CopySpecError,
    ExactnessError,
    InvalidInputError,
    NativeBuildError,
)
from copyspec_edge.exactness import Certificate
from copyspec_edge.host import machine
from copyspec_edge.llama import (
    Outcome,
    features,
    gpu_presets,
    library_folder,
    probe,
    rebuild_command,
    require_compatible,
    supports_gpu,
)
from copyspec_edge.llama import log as native_log
from copyspec_edge.sampling import SamplingParams

_TEXT = "One two three one two three"
_PACKAGES = ("copyspec-edge", "llama-cpp-python", "numpy", "numba", "gguf")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser("doctor", help="check the installation, and a model")
    add_model_options(parser, required=False)
    add_exact_option(parser)
    parser.add_argument("--json", action="store_true", help="with --exact: the certificate alone")
    parser.set_defaults(run=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Run the command: 0 if everything works."""
    if arguments.exact and not arguments.model:
        raise InvalidInputError("--exact needs a model: pass -m")
    if arguments.json and not arguments.exact:
        raise InvalidInputError("--json needs --exact")
    if arguments.json:
        return _print_json(arguments)
    with native_log.attached():
        _print_facts()
        works = _check_build()
        if arguments.model:
            works = _check_model(arguments) and works
    return 0 if works else 1


def _print_facts() -> None:
    _line("python", f"{platform.python_version()} on {platform.platform()}")
    for package in _PACKAGES:
        _line(package, importlib.metadata.version(package))
    _line("processor", f"{machine.processor_name()}, {machine.physical_cores()} cores to use")
    memory = machine.available_memory()
    if memory is not None:
        _line("free memory", f"{memory / 2**30:.1f} GiB")
    _line("cache folder", str(machine.cache_folder()))
    _line("llama.cpp", str(library_folder()))
    _line("gpu", "offload supported" if supports_gpu() else "none")
    _line("built with", features())


def _check_build() -> bool:
    """Probe afresh, since a doctor should not trust memory."""
    try:
        require_compatible()
    except NativeBuildError as error:
        _line("interface", str(error))
        return False
    outcome = probe(extra_bufts=True)
    _line("decodes", _verdict(outcome))
    if outcome.status == "works":
        _print_advice()
        return True
    fallback = probe(extra_bufts=False)
    _line("without repacking", _verdict(fallback))
    if fallback.status == "works":
        _line("advice", "it is used without repacked kernels, which is slower; better rebuild:")
    else:
        _line("advice", "rebuild llama.cpp:")
    print(f"  {rebuild_command()}")
    return fallback.status == "works"


def _print_advice() -> None:
    if supports_gpu():
        return
    _line("for this CPU", "this build is the fastest, if you have not made it yet:")
    print(f"  {rebuild_command()}")
    _line("for a GPU", "if there is one:")
    for name in gpu_presets():
        print(f"  {name}: {rebuild_command(name)}")


def _check_model(arguments: argparse.Namespace) -> bool:
    try:
        with load_model(arguments) as model:
            _line("model", f"{model.path}: {model.description}")
            _line("context", f"{model.n_ctx} tokens")
            _line("chat", "has a template" if model.can_chat else "no template: completes only")
            reply = model.complete(
                model.tokenize(_TEXT), params=SamplingParams(temperature=0, max_tokens=8)
            )
            _line("continues", f"{_TEXT!r} with {reply.text!r}")
            if model.certificate:
                _print_certificate(model.certificate, model.n_ctx)
    except CopySpecError as error:
        _line("model", f"does not work: {error}")
        return False
    return True


def _print_json(arguments: argparse.Namespace) -> int:
    """Print the certificate as JSON, or why there is none."""
    try:
        with load_model(arguments) as model:
            facts = model.certificate.as_dict() if model.certificate else {}
    except ExactnessError as error:
        print(json.dumps({"reason": str(error)}))
        return 1
    print(json.dumps(facts))
    return 0


def _print_certificate(found: Certificate, n_ctx: int) -> None:
    repacked = "repacked" if found.use_extra_bufts else "plain"
    _line("exact", f"yes, with at least {found.min_rows} rows in a forward pass")
    _line("  rows", " ".join(map(str, found.rows)))
    _line("  prompts in", " ".join(map(str, found.chunks)))
    _line("  flash attention", found.flash_attn)
    _line("  KV cache", f"{found.type_k} {found.type_v}")
    _line("  weights", repacked)
    _line("  threads", f"{found.n_threads}, {found.n_threads_batch} for batches")
    ranges = ", ".join(f"{first} to {end}" for first, end in found.ranges)
    _line("  probed", f"{found.n_compared} rows, at tokens {ranges} of {n_ctx}")
    for seen in found.excluded:
        _line("  left out", seen)


def _verdict(outcome: Outcome) -> str:
    words = {"works": "yes", "crashes": "no, it crashes", "unknown": "could not be checked"}
    detail = f" ({outcome.detail})" if outcome.detail else ""
    return words[outcome.status] + detail


def _line(name: str, value: str) -> None:
    print(f"{name + ':':<18} {value}")
