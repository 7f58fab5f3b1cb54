"""`python -m copyspec_edge`."""

from copyspec_edge.cli import entry

entry()
