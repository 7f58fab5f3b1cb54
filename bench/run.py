"""Trace-driven wall clock: the command `copyspec-edge bench`, run from a checkout."""

import sys

from copyspec_edge.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["bench", *sys.argv[1:]]))
