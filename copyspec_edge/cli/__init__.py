"""The command line. Data goes to stdout, everything else to stderr.

Exit codes: 0 done; 1 it failed or was interrupted; 2 the command or its input is not valid.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import logging
import os
import sys
from collections.abc import Sequence

from copyspec_edge.errors import CopySpecError, InvalidInputError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # Beside another busy process GNU's OpenMP threads would spin for most of every step.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000000")
    from copyspec_edge.cli import bench, chat, doctor, generate, interrupts, models, verify

    parser = argparse.ArgumentParser(
        prog="copyspec-edge",
        description="Text from any GGUF model, faster where it repeats what the model has seen.",
    )
    parser.add_argument(
        "--version", action="version", version=importlib.metadata.version("copyspec-edge")
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show llama.cpp's log")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (generate, chat, models, bench, doctor, verify):
        module.add_parser(commands)
    arguments = parser.parse_args(argv)
    interrupts.listen_at_a_terminal()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a "?" for what its encoding does not have
    logging.basicConfig(format="copyspec-edge: %(levelname)s: %(message)s")
    if arguments.verbose:
        logging.getLogger("copyspec_edge").setLevel(logging.INFO)
    else:
        logging.getLogger("copyspec_edge.llama_cpp").propagate = False
        # It takes minutes, so they should know what for.
        logging.getLogger("copyspec_edge.exact").setLevel(logging.INFO)
    return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Run a parsed command and turn errors into messages and exit codes."""
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except InvalidInputError as error:
        return complain(error, 2)
    except CopySpecError as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        return complain("interrupted", 1)
    except BrokenPipeError:
        # The reader had enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def complain(message: object, code: int) -> int:
    """Print why something did not work, and return the exit code."""
    print(f"copyspec-edge: {message}", file=sys.stderr)
    return code


def entry() -> None:
    """The console script."""
    raise SystemExit(main())
