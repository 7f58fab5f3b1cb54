"""This machine: its processor, memory and folders; small files written whole. It knows nobody."""

from __future__ import annotations

from copyspec_edge.host import machine
from copyspec_edge.host.data_files import data_file, read_toml
from copyspec_edge.host.files import printable, read_json, write_json
from copyspec_edge.host.machine import cache_folder

__all__ = [
    "cache_folder",
    "data_file",
    "machine",
    "printable",
    "read_json",
    "read_toml",
    "write_json",
]
