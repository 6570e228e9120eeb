"""Each feature of the tables is shown by tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, codes, page, rows

PAGE = page("features.md")
SECTIONS = re.findall(r"^## (.+)$", PAGE.prose, re.M)
FEATURES = [row for section in SECTIONS for row in rows(PAGE.section(section))]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_names_tests(section: str) -> None:
    assert any(codes(row[2]) for row in rows(PAGE.section(section)))


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row[0][:40])
def test_a_feature_is_shown_by_tests(row: list[str]) -> None:
    files = codes(row[2])
    assert files
    for file in files:
        assert re.fullmatch(r"tests/\S+/test_\w+\.py", file), file
        assert "def test_" in (ROOT / file).read_text(encoding="utf-8"), file


def test_every_test_that_the_page_names_is_in_a_row_of_a_feature() -> None:
    named = re.findall(r"tests/[\w/.]+", PAGE.prose)
    assert named == [file for row in FEATURES for file in codes(row[2])]
