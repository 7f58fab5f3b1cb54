"""The installed build of llama.cpp: what it is, where it is, what it can do."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import llama_cpp

from copyspec_edge.host import machine


@cache
def build_key() -> str:
    """A short id of the installed llama.cpp on this processor, the same as long as we run."""
    return key_of(llama_cpp.__version__, machine.fingerprint(), library_folder())


def key_of(version: str, processor: str, libraries: Path) -> str:
    """A short id of a build: its version, the processor's id and the folder of its libraries."""
    facts = [version, processor]
    for library in sorted(libraries.glob("*")):
        status = library.stat()
        facts.append(f"{library.name!r} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def library_folder() -> Path:
    """Where its shared libraries lie."""
    return Path(llama_cpp.llama_cpp._base_path)


def supports_gpu() -> bool:
    """Whether it was compiled for a GPU and finds one."""
    return bool(llama_cpp.llama_supports_gpu_offload())


def features() -> str:
    """The instructions and libraries it was compiled with, as it lists them."""
    return " ".join(llama_cpp.llama_print_system_info().decode("utf-8", "replace").split())
