"""The calls of clients that change all jobs that match a filter."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor import AsyncClient, Client
from supervisor.jobs import Cause, Failure, JobState, Kind, Outcome, Policy
from supervisor.stores.records import ClaimRequest
from supervisor.stores.sqlite.store import SqliteStore


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return "sqlite:///jobs.db"


@pytest.fixture
def client(url):
    with Client(url, create=True, timeout=0.0) as client:
        yield client


@pytest.fixture
def fail(client, tmp_path):
    def fail(ids, message):
        store = SqliteStore(tmp_path / "jobs.db")
        store.join("one", "host", 1)
        leases = store.claim([ClaimRequest("default", 100, 100, 100, 1000)], 30.0, lambda handler, queue: Policy())
        failure = Failure(Cause.TIMEOUT, "Timeout", message)
        store.settle([
            Outcome(it, Kind.FAILED, failure=failure, state=JobState.FAILED, dead_letter=True)
            if it.id in ids else Outcome(it, Kind.RELEASED, state=JobState.READY) for it in leases
        ])  # fmt: skip
        store.leave()
        store.close()

    return fail


def states(client, ids):
    return [(client.job(id) or {}).get("state") for id in ids]


def test_each_call_changes_the_jobs_that_match_and_returns_their_number(client, fail):
    ids = client.enqueue_many([("mail", n) for n in range(6)])
    fail(ids[:3], "smtp1 is down")
    assert client.retry_jobs(error="smtp1", dry_run=True) == 3
    assert states(client, ids) == ["failed"] * 3 + ["ready"] * 3
    assert client.retry_jobs(error="smtp1", limit=1) == 1
    assert client.redrive_dead_letters(error="timeout", state="delivered", limit=1) == 1
    assert client.purge_dead_letters(handler="mail") == 1
    assert states(client, ids[:3]) == [None, "ready", "ready"]
    assert client.cancel_jobs(handler="mail", state="ready", limit=4) == 4
    assert client.delete_jobs(queue="default", state="cancelled") == 4
    assert client.cancel_jobs(queue="other") == 0


def test_jobs_are_found_by_tag_and_header(client):
    ids = [
        client.enqueue("mail", tags=["eu"]), client.enqueue("mail", headers={"tenant": 7}), client.enqueue("mail"),
    ]  # fmt: skip
    assert client.cancel_jobs(tag="eu") == client.cancel_jobs(header="tenant=7") == 1
    assert states(client, ids) == ["cancelled", "cancelled", "ready"]


def test_times_are_datetimes_or_text(client):
    client.enqueue("mail")
    soon, ago = datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) - timedelta(hours=1)
    counts = [client.cancel_jobs(dry_run=True, **{name: at}) for name, at in (
        ("since", ago), ("since", soon), ("until", soon), ("until", ago), ("since", "1h"), ("until", ago.isoformat()),
    )]  # fmt: skip
    assert counts == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "expected a filter: at least one of queue, handler"),
        ({"queue": None}, "expected a filter"),
        ({"limit": 5}, "expected a filter"),
        ({"queue": "q", "limit": 0}, "limit: expected a whole number of at least 1, got 0"),
        ({"queue": ""}, "queue: expected a name"),
        ({"handler": 5}, "handler: expected a name"),
        ({"error": ""}, "error: expected a text of 1 to 200 characters"),
        ({"error": 5}, "error: expected a text of 1 to 200 characters"),
        ({"error": "e" * 201}, "error: expected a text of 1 to 200 characters"),
        ({"error": "no\0"}, "error: expected a text of 1 to 200 characters"),
        ({"tag": " "}, "tag: expected a name"),
        ({"header": "tenant"}, "header: expected NAME=VALUE, got 'tenant'"),
        ({"header": {"tenant": 7}}, "header: expected NAME=VALUE"),
        ({"state": "failed"}, "state: expected one of .*ready.*, got 'failed'"),
        ({"since": "soon"}, "since: expected a time with a zone"),
        ({"until": datetime(2030, 1, 1)}, "until: expected a time with a zone"),
    ],
)
def test_a_wrong_filter_changes_nothing(client, given: dict[str, Any], error):
    id = client.enqueue("mail")
    with pytest.raises(ValueError, match=error):
        client.cancel_jobs(**given)
    assert states(client, [id]) == ["ready"]


def test_an_unknown_argument_is_a_type_error_with_a_hint(client):
    with pytest.raises(TypeError, match="unexpected argument 'qeue', did you mean 'queue'"):
        client.cancel_jobs(qeue="mail")


def test_the_calls_of_an_async_client_are_awaited(url):
    async def run():
        async with AsyncClient(url, create=True) as client:
            await client.enqueue_many([("mail", 1), ("mail", 2)])
            counted = await client.cancel_jobs(handler="mail", dry_run=True)
            return counted, await client.cancel_jobs(handler="mail"), await client.delete_jobs(state="cancelled")

    assert asyncio.run(run()) == (2, 2, 2)
