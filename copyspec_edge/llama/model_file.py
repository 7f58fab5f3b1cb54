"""A model's file, looked at before llama.cpp does, and llama.cpp's reasons in plain words."""

from __future__ import annotations

import re
from pathlib import Path

from copyspec_edge.errors import ModelLoadError
from copyspec_edge.host import printable

_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_NO_WEIGHTS = "weights are missing: a vocabulary-only file, or one made for another program"
# Part of llama.cpp's log -> what it means to the user.
_REASONS = (
    ("unknown model architecture", "this llama.cpp does not know the model's architecture; "
     "a newer llama-cpp-python may: pip install --upgrade llama-cpp-python"),
    ("missing tensor", _NO_WEIGHTS),
    ("check_tensor_dims", _NO_WEIGHTS),
    ("not within the file bounds", "the file is truncated; download it again"),
    ("failed to read", "the file is truncated or damaged; download it again"),
    ("unable to allocate", "not enough memory; choose a smaller model or fewer GPU layers"),
    ("out of memory", "not enough memory; choose a smaller model or fewer GPU layers"),
    ("invalid split file", "pass the first part of a split model, …-00001-of-….gguf"),
)  # fmt: skip


def check_file(path: Path) -> None:
    """Refuse what cannot be a whole GGUF file.

    Raises:
        ModelLoadError: the message says what it is, or what is missing.
    """
    name = printable(path)
    if path.is_dir():
        raise ModelLoadError(f"{name} is a folder; pass the .gguf file in it")
    if not path.exists():
        raise ModelLoadError(f"{name} does not exist")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelLoadError(f"{name} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelLoadError(f"{name} is not a GGUF file; convert or download the model as GGUF")
    split = _SPLIT_NAME.fullmatch(path.name)
    if split:
        stem, _, count = split.groups()
        parts = (f"{stem}-{part:05d}-of-{count}.gguf" for part in range(1, int(count) + 1))
        missing = [part for part in parts if not path.with_name(part).exists()]
        if missing:
            raise ModelLoadError(f"{name} is a part of a split model; missing: {missing[0]}")


def explain(path: Path, log: str) -> str:
    """Why llama.cpp could not load a file, from the last lines of its log."""
    meaning = next((text for sign, text in _REASONS if sign in log), "llama.cpp cannot load it")
    return f"{printable(path)}: {meaning}" + (f" (llama.cpp: {log})" if log else "")
