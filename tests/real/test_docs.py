"""The examples of the documentation, run: the Python blocks of a page one after the other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from copyspec_edge import Model, Settings
from copyspec_edge.registry import entries

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """By page."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = {page.stem: BLOCK.findall(page.read_text(encoding="utf-8")) for page in pages}
    return {page: "\n".join(found) for page, found in blocks.items() if found}


@pytest.fixture
def quick_load(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let examples load the model that tests have, on one thread and without measuring."""
    load = Model.load

    def quickly(source: str | Path, settings: Settings | None = None) -> Model:
        chosen = replace(settings or Settings(), n_threads=1, n_ctx=1024, calibrate=False)
        return load(smollm2_path if source in entries() else source, chosen)

    monkeypatch.setattr(Model, "load", quickly)


@pytest.mark.real
@pytest.mark.usefixtures("quick_load")
@pytest.mark.parametrize("page", examples())
def test_the_examples_of_a_page_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(examples()[page], f"{page}.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
