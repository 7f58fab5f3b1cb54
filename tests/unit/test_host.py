from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from copyspec_edge.host import machine, read_json, write_json


def length(raw: Any) -> int:
    return len(raw["items"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"7",
        b"[1]",
        b'{"items": 3}',
        b'{"other": []}',
        b"\xff\xfe\x00{",
        b"[" * 100_000,
        b'{"items": ' + b"9" * 10_000 + b"}",
    ],
)
def test_a_damaged_file_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert read_json(path, length) is None


def test_a_number_too_large_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("1" + "0" * 400)
    assert read_json(path, float) is None


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json", length) is None
    assert read_json(tmp_path, length) is None


def test_what_was_written_is_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.json"
    write_json(path, {"items": [1, 2]})
    write_json(path, {"items": [1, 2, 3]})
    assert read_json(path, length) == 3
    assert [file.name for file in path.parent.iterdir()] == ["file.json"]


def test_a_file_that_many_threads_write_is_always_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"items": []})
    damaged = []

    def write(n: int) -> None:
        for _ in range(30):
            write_json(path, {"items": [n] * n * 1000})
            damaged.append(read_json(path, length) is None)

    writers = [threading.Thread(target=write, args=(n,)) for n in (1, 2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not any(damaged)
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]


def test_a_folder_that_cannot_be_written_is_survived(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    write_json(blocked / "file.json", {})
    assert blocked.read_text() == "not a folder"


def test_json_on_disk_is_text_that_other_programs_read(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"rows": (1, 2)})
    assert json.loads((tmp_path / "file.json").read_text("utf-8")) == {"rows": [1, 2]}


def system(
    patch: pytest.MonkeyPatch, platform: str, *, cores: int | None, logical: int, allowed: int = 99
) -> None:
    patch.setattr(sys, "platform", platform)
    patch.setattr(os, "cpu_count", lambda: logical)
    patch.setattr(psutil, "cpu_count", lambda logical=True: cores)
    process = SimpleNamespace(cpu_affinity=lambda: list(range(allowed)))
    patch.setattr(psutil, "Process", lambda: process)


@pytest.mark.parametrize(
    ("cores", "logical", "allowed", "expected"),
    [(8, 8, 8, 8), (14, 20, 20, 14), (8, 16, 3, 3), (None, 4, 4, 4)],
    ids=["without hyperthreads", "hybrid", "a few allowed", "unknown"],
)
def test_windows_counts_its_cores_whatever_has_hyperthreads(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, logical: int, allowed: int, expected: int
) -> None:
    system(monkeypatch, "win32", cores=cores, logical=logical, allowed=allowed)
    assert machine.physical_cores() == expected


def test_an_old_mac_counts_all_of_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    system(monkeypatch, "darwin", cores=6, logical=12)
    assert machine.physical_cores() == 6


def test_free_memory_is_known_off_linux_too(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(total=8 << 30, available=3 << 30)
    for platform in ("win32", "darwin", "freebsd14"):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        assert machine.available_memory() == 3 << 30


def test_these_tests_have_a_cache_folder_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = machine.cache_folder()
    monkeypatch.delenv("COPYSPEC_CACHE")
    assert not theirs.is_relative_to(machine.cache_folder())
