"""Facts about this computer. Every difference between operating systems is in this file."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import platformdirs
import psutil


def cache_folder() -> Path:
    """The user's cache folder for this package; not created. COPYSPEC_CACHE overrides it."""
    override = os.environ.get("COPYSPEC_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("copyspec-edge", False))


def physical_cores() -> int:
    """Physical cores this process may use, at least 1.

    llama.cpp gains nothing from a second thread on a core, so siblings count once.
    """
    if sys.platform == "linux":
        return _linux_cores()
    if sys.platform == "darwin":
        # The performance cores alone: an efficiency core makes the others wait for it.
        fast = _sysctl("hw.perflevel0.physicalcpu")
        if fast:
            return fast
    cores = int(psutil.cpu_count(logical=False) or os.cpu_count() or 1)
    if sys.platform == "win32":
        return min(cores, len(psutil.Process().cpu_affinity()))
    return cores


def available_memory() -> int | None:
    """Bytes of memory that can be used now, or None where the system does not tell."""
    if sys.platform == "linux":
        return _linux_memory()
    return int(psutil.virtual_memory().available)


def fingerprint() -> str:
    """A short id of this processor: what runs here may crash on another."""
    facts = [platform.system(), platform.machine(), platform.processor()]
    if sys.platform == "linux":
        wanted = ("model name", "flags", "CPU part", "Features", "microcode")
        lines = _read("/proc/cpuinfo").splitlines()
        facts += sorted({line for line in lines if line.startswith(wanted)})
    elif sys.platform == "darwin":
        facts.append(_run("sysctl", "-n", "machdep.cpu.brand_string"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def processor_name() -> str:
    """The processor as its maker calls it."""
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        return _run("sysctl", "-n", "machdep.cpu.brand_string")
    return platform.processor() or platform.machine()


def _linux_cores() -> int:
    allowed = os.sched_getaffinity(0) if sys.platform == "linux" else set(range(1))
    siblings = {
        _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in allowed
    }
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        return max(1, min(len(siblings), int(quota[0]) // int(quota[1])))
    return max(1, len(siblings))


def _linux_memory() -> int | None:
    available = None
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        used = _read("/sys/fs/cgroup/memory.current").strip()
        free = int(limit) - int(used or 0)
        return free if available is None else min(available, free)
    return available


def _sysctl(name: str) -> int:
    value = _run("sysctl", "-n", name)
    return int(value) if value.isdigit() else 0


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
