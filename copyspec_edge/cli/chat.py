"""`copyspec-edge chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys

from copyspec_edge.cli.options import (
    add_exact_option,
    add_model_options,
    add_sampling_options,
    follow,
    load_model,
    open_session,
    sampling_params,
    summary,
)
from copyspec_edge.errors import ChatTemplateError, ContextFullError, CopySpecError
from copyspec_edge.sampling import SamplingParams
from copyspec_edge.session import Session

_HELP = "/reset starts over, /stats shows the last answer's, /quit ends; Ctrl-C stops an answer."


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command."""
    parser = commands.add_parser("chat", help="talk to a model", description=_HELP)
    add_model_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_sampling_options(parser)
    add_exact_option(parser)
    parser.set_defaults(run=chat)


def chat(arguments: argparse.Namespace) -> int:
    """Run the command."""
    params = sampling_params(arguments)
    with load_model(arguments) as model:
        if not model.can_chat:
            raise ChatTemplateError(
                "this model has no chat template: it continues text and cannot chat. "
                "Use `copyspec-edge generate --raw`"
            )
        print(f"{model.description}, context {model.n_ctx}. {_HELP}", file=sys.stderr)
        with open_session(model, arguments) as session:
            _talk(session, params)
    return 0


def _talk(session: Session, params: SamplingParams) -> None:
    last = "nothing has been answered yet"
    while True:
        line = _read_line()
        if line is None or line == "/quit":
            return
        if line == "/reset":
            session.reset()
        elif line == "/stats":
            print(last, file=sys.stderr)
        elif line.startswith("/"):
            print(_HELP, file=sys.stderr)
        elif line:
            last = _answer(session, line, params) or last


def _read_line() -> str | None:
    """One line of input; None at its end. Ctrl-C discards the line."""
    if sys.stdin is None:
        return None
    if sys.stdin.isatty():
        _import_line_editing()
    while True:
        try:
            print("> ", end="", flush=True, file=sys.stderr)
            return input().strip()
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except UnicodeDecodeError as error:
            print(f"copyspec-edge: the input is not valid UTF-8: {error}", file=sys.stderr)


def _import_line_editing() -> None:
    """Arrow keys and history for `input`, where Python has them."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return


def _answer(session: Session, message: str, params: SamplingParams) -> str | None:
    """Print the answer and return its statistics; an error is printed, and the chat goes on."""
    try:
        reply = follow(session.stream(message, params=params), show=True)
    except ContextFullError as error:
        print(f"copyspec-edge: {error}. /reset starts over", file=sys.stderr)
        return None
    except CopySpecError as error:
        print(f"copyspec-edge: {error}", file=sys.stderr)
        return None
    print()
    if reply.finish_reason != "stop":
        print(f"[{reply.finish_reason}]", file=sys.stderr)
    return summary(reply.stats)
