"""Requests made from the description of the API: none is an error of the server, and each answer is as it is described."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.stores.factories import SqliteFactory, make_dead, put
from tests.unit.http_site import Site

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
MORE_THAN_A_SCHEMA = (
    "queue: ", "handler: ", "name: ", "sink: ", "tag: ", "before: ", "where.queue: ", "where.handler: ", "where.tag: ",
)  # fmt: skip
"""Names are printable, and a cursor belongs to a filter: a schema can't express either."""
QUIETLY = settings(
    max_examples=10, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    factory = SqliteFactory(tmp_path)
    store = factory.joined("one")
    put(store, *["mail"] * 3)
    make_dead(store, *["scan"] * 3)
    site = Site(store)
    yield site
    site.close()
    factory.close()


def operations_of(site: Site) -> Iterator[Any]:
    schema = schemathesis.openapi.from_dict(site.ask("/api/openapi.json").body)
    schema.app = site.app
    for result in schema.get_all_operations():
        yield result.ok()


def call(case: Any) -> Any:
    response = case.call(base_url="http://localhost")
    wanted = response.status_code == 400 and response.json()["error"].startswith(MORE_THAN_A_SCHEMA)
    if not wanted:
        case.validate_response(response)
    return response


def test_a_right_request_gets_an_answer_as_described(site: Site) -> None:
    statuses = set()

    for operation in operations_of(site):

        @given(case=operation.as_strategy(GenerationMode.POSITIVE))
        @QUIETLY
        def try_out(case: Any) -> None:
            statuses.add(call(case).status_code)

        try_out()
    assert {200, 202, 404} <= statuses and statuses <= {200, 202, 400, 404, 409}


def test_a_wrong_request_gets_a_refusal_as_described(site: Site) -> None:
    statuses = []
    for operation in operations_of(site):
        if not (operation.query or operation.path_parameters or operation.body):
            continue

        @given(case=operation.as_strategy(GenerationMode.NEGATIVE))
        @QUIETLY
        def try_out(case: Any) -> None:
            statuses.append(call(case).status_code)

        try_out()
    assert len(statuses) > 100 and statuses.count(400) > 0.9 * len(statuses)


def test_a_method_that_is_not_described_is_not_allowed(site: Site) -> None:
    for path, operations in site.description["paths"].items():
        for method in METHODS:
            if method.lower() not in operations:
                answer = site.ask(path.replace("{id}", "1").replace("{name}", "a"), method)
                assert answer.status == 405 and {*operations} <= {*answer.headers["allow"].lower().split(", ")}
