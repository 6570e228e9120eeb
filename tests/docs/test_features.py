"""Each feature of the table is shown by tests that exist."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, codes, page, rows

FEATURES = [
    row
    for section in ("Handlers and workers", "Jobs", "Operation")
    for row in rows(page("features.md").section(section))
]


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row[0][:40])
def test_a_feature_is_shown_by_tests(row: list[str]) -> None:
    files = codes(row[2])
    assert files
    for file in files:
        assert "def test_" in (ROOT / file).read_text(), file
