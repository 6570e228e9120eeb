"""The guide of the API names every operation, parameter and field that there is, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.http import values
from supervisor.http.api import operations
from supervisor.http.view import View
from tests.docs.pages import first_column, page

GUIDE = page("guides/http.md")


@pytest.fixture(scope="module")
def table() -> list[Any]:
    return operations(View(lambda: "running", lambda: None, dict))  # type: ignore[arg-type, return-value]


def requests() -> Iterator[tuple[str, str]]:
    for cell in first_column(GUIDE.section("Jobs and queues")):
        yield from re.findall(r"(GET|POST|DELETE) (/api/\S+?)(?=`|,|$)", cell)


def test_every_operation_is_in_the_guide_and_the_reverse(table: list[Any]) -> None:
    known = {(it.method, it.path) for it in table}
    assert {*requests()} == known - {("GET", "/api/openapi.json")}
    assert "/api/openapi.json" in GUIDE.section("Jobs and queues")


def test_every_parameter_of_a_list_is_in_the_guide_and_the_reverse(table: list[Any]) -> None:
    (listing,) = [it for it in table if (it.method, it.path) == ("GET", "/api/jobs")]
    assert names("Pages and filters") == {it.name for it in listing.query}


def test_every_field_of_a_command_for_many_jobs_is_in_the_guide_and_the_reverse() -> None:
    forms = (values.BY_IDS, values.BY_FILTER, values.ALL)
    assert names("Many jobs at once") == {it.name for form in forms for it in form.fields}


def names(section: str) -> set[str]:
    return {
        name for cell in first_column(GUIDE.section(section)) for name in re.findall(r"[a-z_]+", cell) if name != "or"
    }
