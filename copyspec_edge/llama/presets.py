"""How llama.cpp is compiled for each backend, from `native/presets.toml`, as commands."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from copyspec_edge.host import data_file, read_toml


@dataclass(frozen=True, slots=True)
class Preset:
    """One way to compile llama.cpp.

    Attributes:
        name: key in presets.toml.
        summary: what it is for.
        cmake: CMake arguments on every machine.
        x86_64: further ones for GCC and Clang on x86-64.
    """

    name: str
    summary: str
    cmake: tuple[str, ...]
    x86_64: tuple[str, ...]

    def cmake_args(self, *, x86_64: bool) -> str:
        """The value of CMAKE_ARGS."""
        return " ".join(self.cmake + (self.x86_64 if x86_64 else ()))

    def command(self, *, windows: bool, x86_64: bool) -> str:
        """The shell command that builds and installs llama-cpp-python this way."""
        pip = "pip install --force-reinstall --no-deps --no-cache-dir llama-cpp-python"
        # MSVC knows no -m options, and never turns AMX on.
        arguments = self.cmake_args(x86_64=x86_64 and not windows)
        if windows:
            return f"$env:CMAKE_ARGS='{arguments}'; {pip}"
        return f"CMAKE_ARGS='{arguments}' {pip}"


def load_presets() -> dict[str, Preset]:
    """All presets by name."""
    raw = read_toml(data_file("presets.toml", in_checkout="native/presets.toml"))
    return {
        name: Preset(name, entry["summary"], tuple(entry["cmake"]), tuple(entry["x86_64"]))
        for name, entry in raw.items()
    }


def gpu_presets() -> list[str]:
    """Names of the presets for the GPUs that this system can have."""
    is_mac = sys.platform == "darwin"
    return [n for n in load_presets() if not n.startswith("cpu") and (n == "metal") == is_mac]


def rebuild_command(name: str = "cpu") -> str:
    """The command that rebuilds llama.cpp for this machine."""
    x86_64 = platform.machine().lower() in ("x86_64", "amd64")
    return load_presets()[name].command(windows=sys.platform == "win32", x86_64=x86_64)
