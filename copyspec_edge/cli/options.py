"""Options and helpers that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from copyspec_edge.answer import Answer
from copyspec_edge.chat import Reply
from copyspec_edge.cli.interrupts import interrupt_calls, interrupt_waits
from copyspec_edge.decoding import Stats
from copyspec_edge.errors import InvalidInputError
from copyspec_edge.model import Model
from copyspec_edge.registry import entries, locate
from copyspec_edge.sampling import LIMITS, SamplingParams
from copyspec_edge.session import Session
from copyspec_edge.settings import Settings

_SAMPLER_NUMBERS = [name for name in LIMITS if name not in ("seed", "max_tokens", "logprobs")]


def add_model_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Which model, and how it is loaded."""
    parser.add_argument(
        "-m",
        "--model",
        required=required,
        metavar="NAME_OR_PATH",
        help="registry name or .gguf file",
    )
    parser.add_argument("--ctx", type=int, metavar="N", help="context length in tokens")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="default: as many cores as are fastest"
    )
    parser.add_argument(
        "--threads-batch",
        type=int,
        metavar="N",
        help="for prompts and drafts; default: --threads, else as many cores as are fastest",
    )
    parser.add_argument(
        "--gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU; default: all"
    )


def add_exact_option(parser: argparse.ArgumentParser) -> None:
    """Whether copying may change nothing at all."""
    parser.add_argument(
        "--exact",
        action="store_true",
        help="copying changes no bit; what that needs is found at first, in a minute or more",
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen."""
    parser.add_argument("--max-tokens", type=int, metavar="N", help="default: up to the context")
    parser.add_argument("--seed", type=int, metavar="N", help="default: a new one each time")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="S", help="end before this text; repeatable"
    )
    parser.add_argument("--no-copy", action="store_true", help="decode token by token")
    group = parser.add_argument_group("samplers", "llama.cpp's, by its names")
    defaults = SamplingParams()
    for name in _SAMPLER_NUMBERS:
        default = getattr(defaults, name)
        group.add_argument(
            "--" + name.replace("_", "-"),
            type=type(default),
            default=default,
            metavar="X",
            help=f"default: {default:g}",
        )
    group.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        metavar="ID=X",
        help="add X to the logits of this token id; -inf bans it; repeatable",
    )
    shape = group.add_mutually_exclusive_group()
    shape.add_argument("--grammar-file", metavar="FILE", help="GBNF the answer must match")
    shape.add_argument("--json-schema-file", metavar="FILE", help="JSON Schema it must match")


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The sampling options as SamplingParams."""
    numbers = {name: getattr(arguments, name) for name in _SAMPLER_NUMBERS}
    return SamplingParams(
        **numbers,
        logit_bias=dict(map(_bias, arguments.logit_bias)),
        grammar=text_of(arguments.grammar_file),
        json_schema=text_of(arguments.json_schema_file),
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        stop=tuple(arguments.stop),
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, added = text.partition("=")
    try:
        return int(token), float(added)
    except ValueError:
        raise InvalidInputError(f"--logit-bias takes ID=X, not {text!r}") from None


def text_of(file: str | None) -> str | None:
    """What the file of an option says, if one was given."""
    if file is None:
        return None
    try:
        return decoded(Path(file).read_bytes(), file)
    except OSError as error:
        raise InvalidInputError(f"cannot read {file}: {error.strerror}") from error


def decoded(raw: bytes, name: str) -> str:
    """The text of UTF-8 bytes; `name` says in an error where they are from."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{name} is not valid UTF-8: {error}") from error


def load_model(arguments: argparse.Namespace) -> Model:
    """The model of the options; fetched first if it is in the registry and not here."""
    settings = Settings(
        n_ctx=arguments.ctx,
        n_threads=arguments.threads,
        n_threads_batch=arguments.threads_batch,
        n_gpu_layers=arguments.gpu_layers,
        exact=getattr(arguments, "exact", False),
    )
    entry = entries().get(arguments.model)
    if entry and not entry.is_here:
        print(f"Pulling {entry.name} ({entry.size >> 20} MiB, {entry.licence})", file=sys.stderr)
    path = locate(arguments.model, progress=sys.stderr)
    with interrupt_waits():
        return Model.load(path, settings)


def open_session(model: Model, arguments: argparse.Namespace) -> Session:
    """The session of the options."""
    with interrupt_waits():
        return model.session(system=arguments.system, copy=not arguments.no_copy)


def follow(answer: Answer, *, show: bool) -> Reply:
    """Read an answer to its end, printing it if it is to be shown; Ctrl-C cancels it."""
    with interrupt_calls(answer.cancel):
        for chunk in answer:
            if show:
                print(chunk.text, end="", flush=True)
    return answer.finish()


def summary(stats: Stats) -> str:
    """The statistics of one answer as a line."""
    share = stats.accepted_tokens / stats.generated_tokens if stats.generated_tokens else 0.0
    return (
        f"{stats.generated_tokens} tokens in {stats.verify_steps} steps, "
        f"{stats.accepted_tokens} copied ({share:.0%}); "
        f"prompt {stats.prompt_tokens} ({stats.cached_tokens} cached) "
        f"in {stats.prefill_seconds:.2f} s; {stats.tokens_per_second:.1f} tokens/s"
    )
