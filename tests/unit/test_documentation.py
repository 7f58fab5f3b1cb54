"""What the documentation says of names, files and pages is so. Its examples run in tests/real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import copyspec_edge

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMENT = re.compile("<!--.*?-->", re.DOTALL)
TEXT = {
    page.relative_to(ROOT).as_posix(): COMMENT.sub("", page.read_text(encoding="utf-8"))
    for page in PAGES
}
LINKS = [(page, link) for page, text in TEXT.items() for link in re.findall(r"\]\(([^)]+)\)", text)]
PATHS = sorted(set(re.findall(r"`([\w/]+(?:\.py|\.toml|\.md|/))`", "\n".join(TEXT.values()))))
MOST_WORDS = 1200


@pytest.mark.parametrize("name", copyspec_edge.__all__)
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    assert hasattr(copyspec_edge, name)
    assert any(re.search(rf"\b{name}\b", text) for text in TEXT.values())


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_a_link_to_a_page_leads_there(page: str, link: str) -> None:
    assert link.startswith("https://") or (ROOT / page).parent.joinpath(link).is_file()


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_is_named_exists(path: str) -> None:
    assert any((root / path).exists() for root in (ROOT, ROOT / "copyspec_edge"))


def test_the_readme_is_short() -> None:
    assert len(TEXT["README.md"].split()) <= MOST_WORDS


@pytest.mark.parametrize(
    "option", re.findall(r"-m pytest (?:\S+ )*?(--[\w-]+)", TEXT["CONTRIBUTING.md"])
)
def test_an_option_of_the_tests_that_is_named_exists(
    option: str, pytestconfig: pytest.Config
) -> None:
    pytestconfig.getoption(option)
