"""Traces from a git repository: what its authors changed, a model could have been asked to change.

Each text file that a commit changed is a trace: the commit's subject is the instruction, the file
before it the text, the file after it the answer. Git is asked in child processes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.evaluation.traces import MAX_EDIT_CHARS, Trace, edit_trace

TASK = "git"
_COMMITS_PER_TRACE = 20
_MARK = "\x01"


def from_git(repo: Path, limit: int) -> list[Trace]:
    """The newest `limit` edits of the repository's current branch, from at most 20 commits each.

    Left out: merges, added, deleted, renamed and binary files, what is not UTF-8, and files with
    more than MAX_EDIT_CHARS before and after.

    Raises:
        InvalidInputError: git is missing, this is no repository, or it has no such edit.
    """
    traces = []
    for commit, subject, path in _changes(repo, limit * _COMMITS_PER_TRACE):
        before, after = (_file(repo, f"{revision}:{path}") for revision in (f"{commit}^", commit))
        if before and after and before != after and len(before) + len(after) <= MAX_EDIT_CHARS:
            traces.append(edit_trace(TASK, subject, before, after))
        if len(traces) == limit:
            break
    if not traces:
        raise InvalidInputError(f"the newest commits of {repo} change no text file of fitting size")
    return traces


def _changes(repo: Path, n_commits: int) -> Iterator[tuple[str, str, str]]:
    """(commit, subject, path) of each changed text file, newest commit first."""
    listing = _git(
        repo,
        *("-c", "core.quotePath=off", "log", f"--max-count={n_commits}", "--no-merges"),
        *("--no-renames", "--diff-filter=M", "--numstat", f"--format={_MARK}%H %s"),
    )
    commit = subject = ""
    for line in listing.decode("utf-8", "replace").split("\n"):
        if line.startswith(_MARK):
            commit, _, subject = line[1:].partition(" ")
        elif line and not line.startswith("-"):
            path = line.split("\t", 2)[2]
            if not path.startswith('"'):
                yield commit, subject, path


def _file(repo: Path, revision: str) -> str | None:
    try:
        return _git(repo, "show", revision).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _git(repo: Path, *arguments: str) -> bytes:
    try:
        command = ["git", "-C", str(repo), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout
    except FileNotFoundError as error:
        raise InvalidInputError("git is not installed, or not on the PATH") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip()
        raise InvalidInputError(f"git cannot read {repo}: {reason}") from error
