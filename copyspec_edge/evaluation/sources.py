"""Which traces a benchmark runs on: recorded, a user's own, or the built-in ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from copyspec_edge.errors import InvalidInputError
from copyspec_edge.evaluation.built_in import built_in
from copyspec_edge.evaluation.git_traces import from_git
from copyspec_edge.evaluation.recorded import RECORDED, recorded
from copyspec_edge.evaluation.traces import Trace, from_jsonl, spread


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where traces come from. With none of `data`, `git` and `trace`: the built-in ones.

    Attributes:
        data: folder of the recorded tasks; used where neither `git` nor `trace` is given.
        git: a repository whose newest edits are traces.
        trace: a file of traces, see `from_jsonl`.
        tasks: only these; empty: all there are.
        per_task: most traces of one task.
    """

    data: Path | None = None
    git: Path | None = None
    trace: Path | None = None
    tasks: Sequence[str] = ()
    per_task: int = 96

    def load(self) -> list[Trace]:
        """The traces, task by task.

        Raises:
            InvalidInputError: a source cannot be read, or it has none of the tasks.
        """
        if self.git is None and self.trace is None and self.data is not None:
            return recorded(self.data, self.tasks or tuple(RECORDED), self.per_task)
        by_task: dict[str, list[Trace]] = {}
        for trace in self._unfiltered():
            by_task.setdefault(trace.task, []).append(trace)
        unknown = [task for task in self.tasks if task not in by_task]
        if unknown:
            raise InvalidInputError(f"no task {unknown[0]!r}; there are {', '.join(by_task)}")
        tasks = self.tasks or tuple(by_task)
        return [trace for task in tasks for trace in spread(by_task[task], self.per_task)]

    def _unfiltered(self) -> list[Trace]:
        if self.git is None and self.trace is None:
            return built_in(self.per_task)
        traces = [] if self.git is None else from_git(self.git, self.per_task)
        return traces + ([] if self.trace is None else from_jsonl(self.trace))
