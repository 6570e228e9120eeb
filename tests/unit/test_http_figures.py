"""The figures of the first page."""

from __future__ import annotations

import pytest

from supervisor.http.pages.present import totals
from supervisor.http.pages.rendering import environment


@pytest.mark.parametrize(("pending", "shown"), [(9_999, ">9,999<"), (10_000, ">10,000+<")])
def test_a_number_that_was_not_counted_to_its_end_is_marked(pending: int, shown: str) -> None:
    found = totals({"queues": [], "supervisors": [], "sinks": [{"sink": "file", "pending": pending}]})
    assert shown in environment(lambda: False).get_template("parts/totals.html").render(totals=found)
