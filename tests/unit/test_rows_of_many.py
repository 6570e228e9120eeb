"""Many jobs at once become the rows that each would become alone, and the first that is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.jobs import NewJob
from supervisor.new_jobs import InvalidJob, row_of, rows_of


def queue_for(handler: str) -> str:
    return f"of {handler}"


MIXED: list[Any] = [
    ("a", 1),
    ("a", {"n": [1.5]}),
    ("b", None),
    NewJob("a", queue="x", priority=3),
    {"handler": "b"},
    ("b", ""),
]


def test_they_are_as_each_alone() -> None:
    alone = [row_of(job, limit=100, queue_for=queue_for) for job in MIXED]
    assert list(rows_of(MIXED, limit=100, queue_for=queue_for)) == alone


@pytest.mark.parametrize("wrong", [("a", float("nan")), ("a", "x" * 99), ("", 1), (" c", 1), ("a", 1, 2), ([], 1)])
def test_what_is_wrong_is_refused_behind_others_of_its_handler(wrong: Any) -> None:
    rows: list[Any] = []
    with pytest.raises(InvalidJob):
        rows.extend(rows_of([("a", 1), ("a", 2), wrong], limit=100, queue_for=queue_for))
    assert len(rows) == 2
