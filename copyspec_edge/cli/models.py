"""`copyspec-edge models` and `copyspec-edge pull`: the registry."""

from __future__ import annotations

import argparse
import sys

from copyspec_edge.registry import entries, pull


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the commands."""
    listing = commands.add_parser("models", help="list the models that have a name")
    listing.set_defaults(run=list_models)
    pulling = commands.add_parser("pull", help="fetch a model of the registry")
    pulling.add_argument("name", metavar="NAME")
    pulling.set_defaults(run=pull_model)


def list_models(arguments: argparse.Namespace) -> int:
    """Print name, size, whether it is here, licence and notes."""
    for entry in entries().values():
        here = "pulled" if entry.is_here else "not here"
        facts = f"{entry.size >> 20} MiB, context {entry.context}, {entry.licence}, {here}"
        print(f"{entry.name}\t{facts}\n\t{entry.notes}")
    return 0


def pull_model(arguments: argparse.Namespace) -> int:
    """Fetch a model and print the path of its file."""
    print(pull(arguments.name, progress=sys.stderr))
    return 0
