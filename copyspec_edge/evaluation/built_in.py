"""Traces that need no data: scripted edits of the Python standard library's own source files.

The same Python version always gives the same traces. They show what copying gains where most of an
answer is in the prompt; they are no sample of what people ask.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.evaluation.traces import Trace, chat_trace, edit_trace, spread

_FILES = (
    *("bisect", "calendar", "cmd", "code", "colorsys", "configparser", "copy", "csv", "dis"),
    *("filecmp", "fnmatch", "fractions", "functools", "getopt", "gettext", "glob", "heapq"),
    *("linecache", "mimetypes", "netrc", "operator", "pprint", "queue", "random", "reprlib"),
    *("sched", "shlex", "shutil", "statistics", "string", "textwrap", "tokenize", "uuid"),
)
_MIN_CHARS, _MAX_CHARS = 400, 3000
_IDENTIFIER = re.compile(r"[a-z][a-z_]{2,}")


@dataclass(frozen=True)
class _Function:
    """A top-level function or class, its source text and the names it assigns to."""

    module: str
    name: str
    source: str
    variables: tuple[str, ...]


def built_in(per_task: int) -> list[Trace]:
    """At most `per_task` traces of each of the tasks rename, delete, quote, annotate and list.

    Raises:
        InvalidInputError: this Python comes without the source files of its library.
    """
    functions = [item for name in _FILES for item in _functions(name)]
    if not functions:
        raise InvalidInputError("this Python has no library sources; pass traces with --trace")
    makers: tuple[Callable[[list[_Function]], list[Trace]], ...]
    makers = (_rename, _delete, _quote, _annotate, _list)
    return [trace for make in makers for trace in spread(make(functions), per_task)]


def _functions(module: str) -> list[_Function]:
    path = Path(sysconfig.get_path("stdlib")) / f"{module}.py"
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            found.append(_Function(module, node.name, source, _variables(node)))
    return [item for item in found if _MIN_CHARS <= len(item.source) <= _MAX_CHARS]


def _variables(node: ast.AST) -> tuple[str, ...]:
    """Names that are assigned to, in alphabetical order."""
    stored = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    names = {n.id for n in stored if isinstance(n.ctx, ast.Store)}
    return tuple(sorted(name for name in names if _IDENTIFIER.fullmatch(name)))


def _rename(functions: list[_Function]) -> list[Trace]:
    traces = []
    for item in functions:
        if item.variables:
            old, new = item.variables[0], f"current_{item.variables[0]}"
            after = re.sub(rf"\b{old}\b", new, item.source)
            traces.append(edit_trace("rename", f"Rename {old} to {new}.", item.source, after))
    return traces


def _delete(functions: list[_Function]) -> list[Trace]:
    traces = []
    for first, second, third in zip(functions, functions[1:], functions[2:], strict=False):
        before = "\n\n\n".join((first.source, second.source, third.source))
        after = "\n\n\n".join((first.source, third.source))
        traces.append(edit_trace("delete", f"Delete {second.name}.", before, after))
    return traces


def _quote(functions: list[_Function]) -> list[Trace]:
    traces = []
    for first, second in pairwise(functions):
        request = (
            f"Explain where {second.name} is defined and quote its source.\n\n"
            f"{first.source}\n\n\n{second.source}"
        )
        answer = (
            f"`{second.name}` comes from the module `{second.module}`, right behind "
            f"`{first.name}`. This is its source:\n\n```python\n{second.source}\n```"
        )
        traces.append(chat_trace("quote", [request], answer))
    return traces


def _annotate(functions: list[_Function]) -> list[Trace]:
    """A comment above each return statement."""
    traces = []
    for item in functions:
        after = re.sub(r"(?m)^( +)return (\w+)", r"\1# The result is \2.\n\1return \2", item.source)
        if after != item.source:
            request = "Put a comment above each return statement that names the result."
            traces.append(edit_trace("annotate", request, item.source, after))
    return traces


def _list(functions: list[_Function]) -> list[Trace]:
    """Write a begun list again and go on with it."""
    lines = [f"- `{item.module}.{item.name}` ({len(item.source)} characters)" for item in functions]
    traces = []
    for start in range(0, len(lines) - 20, 3):
        begun, whole = lines[start : start + 15], lines[start : start + 20]
        request = "Write this list again and continue it with five more:\n\n" + "\n".join(begun)
        traces.append(chat_trace("list", [request], "\n".join(whole)))
    return traces
