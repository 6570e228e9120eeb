"""The pages of the documentation as the tests read them: headings, blocks of code, tables, and code in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```([a-z]*)(?: title=\"([^\"]*)\")?\n(.*?)^```$", re.S | re.M)
_SNIPPET = re.compile(r'^--8<-- "([^":]+)"$', re.M)
_CODE = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A block of code: `title` is empty if it has none, `line` is where it begins."""

    page: str
    line: int
    language: str
    title: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class Page:
    """A page, with the files that it includes inside its blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(DOCS)) if path.is_relative_to(DOCS) else path.name
        self.source = path.read_text(encoding="utf-8")

    @property
    def blocks(self) -> list[Block]:
        return [
            Block(
                self.name, self.source.count("\n", 0, found.start()) + 1, found[1], found[2] or "", _included(found[3])
            )
            for found in _FENCE.finditer(self.source)
        ]

    @property
    def prose(self) -> str:
        """The page without its blocks of code."""
        return _FENCE.sub("", self.source)

    @property
    def headings(self) -> list[str]:
        return re.findall(r"^#+ (.+)$", self.prose, re.M)

    def section(self, title: str) -> str:
        """The text below a heading, up to the next heading of its level or above."""
        found = re.search(rf"^(#+) {re.escape(title)}\n(.*)", self.prose, re.S | re.M)
        assert found, f"{self.name}: no section {title}"
        return re.split(rf"^#{{1,{len(found[1])}}} ", found[2], maxsplit=1, flags=re.M)[0]


def page(name: str) -> Page:
    return Page(DOCS / name)


def readme() -> Page:
    return Page(ROOT / "README.md")


def pages() -> list[Page]:
    """README first, then all of docs/."""
    return [readme(), *(Page(path) for path in sorted(DOCS.rglob("*.md")))]


def blocks(*languages: str) -> list[Block]:
    return [block for each in pages() for block in each.blocks if block.language in languages]


def rows(text: str) -> list[list[str]]:
    """The cells of all tables in the text, without their headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines]
    return [row for number, row in enumerate(cells) if not _is_rule(row) and not _is_rule(_next(cells, number))]


def codes(text: str) -> list[str]:
    """The code spans of the text."""
    return _CODE.findall(text)


def first_column(text: str) -> list[str]:
    """The code spans in the first cell of each row."""
    return [code for row in rows(text) for code in codes(row[0])]


def code_in_prose() -> Iterator[tuple[str, str]]:
    """Each code span of each page, with the name of the page."""
    for each in pages():
        for code in codes(each.prose):
            yield each.name, code


def _included(text: str) -> str:
    return _SNIPPET.sub(lambda found: (ROOT / found[1]).read_text(encoding="utf-8").rstrip("\n"), text)


def _is_rule(row: list[str]) -> bool:
    return bool(row) and all(set(cell) <= {"-", ":"} and cell for cell in row)


def _next(cells: list[list[str]], number: int) -> list[str]:
    return cells[number + 1] if number + 1 < len(cells) else []
