"""The API over real stores: each answer is as it is described, and each wrong request is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.errors import Unsupported
from supervisor.http.pages import actions
from supervisor.jobs import JobState
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow, Presence
from tests.stores.factories import MemoryFactory, SqliteFactory, StoreFactory, make_dead, put, take
from tests.unit.http_site import Site
from tests.unit.wrapped_store import WrappedStore


@pytest.fixture(params=[MemoryFactory, SqliteFactory])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFactory]:
    factory = request.param(tmp_path)
    yield factory
    factory.close()


@pytest.fixture
def store(factory: StoreFactory) -> Any:
    return factory.joined("one")


@pytest.fixture
def site(store: Any) -> Iterator[Site]:
    site = Site(store)
    yield site
    site.close()


def ids(answer: Any) -> list[int]:
    return [job["id"] for job in answer.body["jobs"]]


def all_ids(site: Site, path: str) -> list[int]:
    """Return the ids of all pages."""
    answer = site.ask(path)
    found = ids(answer)
    while answer.body["next"] is not None:
        answer = site.ask(f"{path}&before={answer.body['next']}")
        found += ids(answer)
    return found


def test_what_a_store_does_not_support_is_a_conflict_with_what_to_do_instead() -> None:
    class Narrow(WrappedStore):
        def refuse(self, *arguments: Any, **named: Any) -> Any:
            raise Unsupported("do this", "ask another")

        find_jobs = failures = cancel = delete = redrive = pause = refuse

    narrow = Site(cast(Any, Narrow()))
    try:
        for method, path, body in (
            ("GET", "/api/jobs", None),
            ("GET", "/api/failures", None),
            ("POST", "/api/jobs/1/cancel", None),
            ("DELETE", "/api/jobs/1", None),
            ("POST", "/api/jobs/delete", {"ids": [1]}),
            ("POST", "/api/dlq/redrive", None),
            ("POST", "/api/queues/q/pause", None),
        ):
            answer = narrow.ask(path, method, body)
            assert (answer.status, answer.body) == (409, {"error": "this store can't do this: ask another"}), path
        assert narrow.ask("/api/status").status == 200
    finally:
        narrow.close()


def test_jobs_are_shown_by_the_page(site: Site, store: Any) -> None:
    put(store, *["mail"] * 5)
    failed = make_dead(store, *["scan"] * 5)[::-1]
    assert all_ids(site, "/api/jobs?limit=2&state=failed") == failed
    assert len(all_ids(site, "/api/jobs?limit=3")) == 10
    whole = site.ask("/api/jobs?state=failed").body
    assert (whole["next"], whole["searched"], whole["complete"]) == (None, 5, True)
    assert [len(job["errors"]) for job in whole["jobs"]] == [1] * 5


def test_jobs_are_shown_by_each_part_of_the_filter(site: Site, store: Any) -> None:
    (wanted,) = store.enqueue([EnqueueRow("mail", '{"to": "Ann"}', "post")])
    put(store, "mail")
    (dead_letter,) = make_dead(store, "scan")
    for query in ("queue=post", "text=ann", "queue=post&handler=mail&state=ready&text=%22to%22"):
        assert ids(site.ask(f"/api/jobs?{query}")) == [wanted], query
    assert ids(site.ask("/api/jobs?dead_letter=pending")) == [dead_letter]
    assert ids(site.ask("/api/jobs?queue=none")) == []
    (tagged,) = store.enqueue([EnqueueRow("mail", "null", headers='{"tenant": "7"}', extras=Extras(tags=("eu",)))])
    for query in ("tag=eu", "header=tenant%3D7", "header=tenant=7&tag=eu&state=ready"):
        assert ids(site.ask(f"/api/jobs?{query}")) == [tagged], query
    assert ids(site.ask("/api/jobs?error=VALUEERROR&dead_letter=any")) == [dead_letter]
    body = {"where": {"tag": "eu", "header": "tenant=7"}}
    assert site.ask("/api/jobs/cancel", "POST", body).body["changed"] == 1


def test_the_time_of_a_filter_is_a_time_or_how_long_ago(site: Site, store: Any, factory: StoreFactory) -> None:
    factory.clock.now = 1_700_000_000.0
    (job,) = put(store)
    for query in (
        "until=1m",
        "since=2023-11-14T22:13:20Z",
        "since=2023-11-14T23:13:20%2B01:00",
        "until=2023-11-15T00:00:00%2B00:00",
    ):
        assert ids(site.ask(f"/api/jobs?{query}")) == [job], query
    for query in ("since=1m", "until=2023-11-14T22:13:20Z", "since=2023-11-14T22:13:20.000001Z"):
        assert ids(site.ask(f"/api/jobs?{query}")) == [], query


def test_a_job_is_shown_with_its_attempts(site: Site, store: Any) -> None:
    (failed,) = make_dead(store, "mail")
    job = site.ask(f"/api/jobs/{failed}").body
    assert (job["id"], job["state"], job["errors"][0]["message"]) == (failed, "failed", "no")
    assert site.ask("/api/jobs/999").status == 404


def test_the_status_and_the_queues_are_shown(site: Site, store: Any) -> None:
    put(store, queue="post")
    assert [queue["queue"] for queue in site.ask("/api/queues").body] == ["post"]
    assert site.ask("/api/status").body["queues"] == site.ask("/api/queues").body


def test_dead_letters_are_shown_with_their_sinks(site: Site, store: Any) -> None:
    pending = make_dead(store, "mail", "scan")[::-1]
    answer = site.ask("/api/dlq")
    assert ids(answer) == pending
    assert answer.body["sinks"] == [{"sink": "file", "pending": 2, "supervisors": 1}]
    assert ids(site.ask("/api/dlq?state=pending&handler=scan")) == pending[:1]
    assert ids(site.ask("/api/dlq?state=delivered")) == ids(site.ask("/api/dlq?sink=other")) == []
    assert ids(site.ask("/api/dlq?sink=file")) == pending
    assert all_ids(site, "/api/dlq?limit=1") == pending


def test_failures_are_shown_in_groups(site: Site, store: Any) -> None:
    newest = make_dead(store, *["mail"] * 3)[-1]
    make_dead(store, "scan")
    groups = site.ask("/api/failures").body["failures"]
    assert [(it["handler"], it["type"], it["count"]) for it in groups] == [
        ("mail", "ValueError", 3),
        ("scan", "ValueError", 1),
    ]
    assert (groups[0]["example_id"], groups[0]["cause"], groups[0]["message"]) == (newest, "exception", "no")
    assert site.ask("/api/failures?limit=1").body["failures"] == groups[:1]


def test_workers_of_this_supervisor_are_shown_as_they_are_now(site: Site, store: Any, factory: StoreFactory) -> None:
    job = {"job_id": 7, "handler": "mail", "retry_count": 0, "is_retry": False, "running_for": 5.0}
    worker = {"pid": 11, "state": "idle", "group": None, "async": False, "current_job": None}
    store.announce(Presence("running", [worker]))
    other = factory.open()
    other.join("two", "host", 4712)
    other.announce(Presence("running", [{**worker, "pid": 12, "current_job": job}]))
    site.own = {"owner": "one", "workers": [{**worker, "state": "busy", "current_job": job}]}
    here, there = site.ask("/api/workers").body
    assert (here["owner"], here["supervisor_pid"], here["pid"], here["state"]) == ("one", 4711, 11, "busy")
    assert here["current_job"]["running_since"] is not None
    assert (there["owner"], there["pid"], there["current_job"]["running_for"]) == ("two", 12, 5.0)


def test_plugins_are_shown_without_secrets(site: Site) -> None:
    mail, broken = site.ask("/api/plugins").body
    assert mail["handlers"][0]["name"] == "mail" and mail["error"] is None
    assert broken["error"] == "the password is ***" and broken["traceback"] == "***"


def test_many_jobs_are_changed_by_their_ids(site: Site, store: Any) -> None:
    first, second, third = put(store, *["mail"] * 3)
    changed = site.post("/api/jobs/cancel", {"ids": [first, second, 999]})
    assert changed == {
        "matched": 3, "changed": 2, "refused": [{"id": 999, "reason": "no such job"}], "refused_count": 1,
        "next": None, "searched": 3, "complete": True,
    }  # fmt: skip
    assert site.post("/api/jobs/retry", {"ids": [first]})["changed"] == 1
    assert site.post("/api/jobs/delete", {"ids": [second]})["changed"] == 1
    assert [store.get(id) and store.get(id)["state"] for id in (first, second, third)] == ["ready", None, "ready"]


def test_the_jobs_that_a_request_has_changed_are_logged(
    site: Site, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "supervisor")
    many = put(store, *["mail"] * 12)
    site.post("/api/jobs/cancel", {"ids": [*many, 999]})
    site.post(f"/api/jobs/{many[0]}/retry")
    shown = ", ".join(map(str, many[:10]))
    records = [record for record in caplog.records if record.name == "supervisor"]
    assert [record.getMessage() for record in records] == [
        f"HTTP: POST /api/jobs/cancel by local: 200 (jobs {shown}, and 2 more)",
        f"HTTP: POST /api/jobs/{many[0]}/retry by local: 200 (job {many[0]})",
    ]
    assert [record.fields["ids"] for record in records] == [many, many[:1]]  # type: ignore[attr-defined]


def test_many_jobs_are_changed_by_a_filter_so_many_at_a_time(site: Site, store: Any) -> None:
    put(store, "mail", queue="other")
    make_dead(store, *["scan"] * 5, dead_letter=False)
    where = {"state": "failed", "handler": "scan"}
    counted = site.post("/api/jobs/retry", {"where": where, "dry_run": True})
    assert (counted["matched"], counted["changed"]) == (5, 0)
    first = site.post("/api/jobs/retry", {"where": where, "limit": 3})
    assert (first["matched"], first["changed"]) == (3, 3) and first["next"] is not None
    second = site.post("/api/jobs/retry", {"where": where, "limit": 3, "before": first["next"]})
    assert (second["matched"], second["changed"], second["next"]) == (2, 2, None)
    assert site.post("/api/jobs/delete", {"where": {"queue": "default"}})["changed"] == 5
    assert [job["queue"] for job in store.list_jobs()] == ["other"]


@pytest.mark.parametrize("command", ["cancel", "delete"])
def test_jobs_of_a_filter_end_before_those_that_they_wait_for(
    site: Site, store: Any, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "supervisor")
    ids = store.enqueue([EnqueueRow("mail", "{}", extras=Extras(key="k"))] * 3)
    assert site.post(f"/api/jobs/{command}", {"where": {"queue": "default"}})["changed"] == 3
    assert caplog.records[-1].fields["ids"] == ids[::-1]  # type: ignore[attr-defined]


def test_dead_letters_are_redriven_all_or_those_of_a_filter(site: Site, store: Any) -> None:
    mail, scan = make_dead(store, "mail", "scan")
    assert site.post("/api/dlq/redrive", {"where": {"handler": "scan"}})["refused_count"] == 1
    assert site.post("/api/dlq/redrive", {"where": {"handler": "scan"}, "force": True})["changed"] == 1
    assert site.post("/api/dlq/redrive", {"force": True})["changed"] == 1
    assert [store.get(id)["state"] for id in (mail, scan)] == ["ready", "ready"]
    assert site.post("/api/dlq/redrive")["matched"] == 0


def test_those_redriven_by_a_filter_run_in_the_order_of_their_ids(site: Site, store: Any) -> None:
    redriven = make_dead(store, *["mail"] * 4)
    site.post("/api/dlq/redrive", {"force": True})
    assert [lease.id for lease in take(store)] == redriven


def test_the_button_redrives_all_a_part_at_a_time_and_ends_in_time(
    site: Site, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "PART", 2)
    dead = make_dead(store, *["mail"] * 5)
    parts: list[int] = []
    redrive = store.redrive
    monkeypatch.setattr(store, "redrive", lambda ids, force: (parts.append(len(ids)), redrive(ids, force))[1])
    assert site.press("/dead-letters/redrive", "all=1&force=1") == "5 dead letters redriven"
    assert parts == [2, 2, 1]
    assert {store.get(id)["state"] for id in dead} == {"ready"}
    make_dead(store, *["mail"] * 5)
    monkeypatch.setattr(actions, "SECONDS", -1.0)
    assert "older ones are left" in site.press("/dead-letters/redrive", "all=1&force=1")


def test_a_job_that_changes_while_others_are_deleted_by_a_filter_stays(site: Site, store: Any) -> None:
    changing, failed = make_dead(store, "a", "b", dead_letter=False)
    delete = store.delete

    def delete_after_a_retry(*of: Any, **how: Any) -> Any:
        store.retry([changing])
        return delete(*of, **how)

    store.delete = delete_after_a_retry
    answer = site.post("/api/jobs/delete", {"where": {"state": "failed"}})
    assert (answer["changed"], answer["refused"]) == (1, [{"id": changing, "reason": "not failed any more, but ready"}])
    assert store.get(failed) is None and store.get(changing)["state"] == "ready"


def test_no_jobs_are_changed_without_a_choice(site: Site, store: Any) -> None:
    put(store)
    for body in (None, {}, {"force": True}, {"where": {}}, {"where": None}, {"ids": None}):
        for command in ("retry", "cancel", "delete"):
            refused = site.ask(f"/api/jobs/{command}", "POST", body)
            assert refused.status == 400 and ": expected" in refused.body["error"]
    assert store.list_jobs(state=JobState.READY)


def test_a_queue_is_paused_and_resumed(site: Site, store: Any) -> None:
    assert site.post("/api/queues/a%20b/pause") == {"queue": "a b", "paused": True}
    assert store.paused() == {"a b"}
    assert site.post("/api/queues/a%20b/resume") == {"queue": "a b", "paused": False}
    assert store.paused() == frozenset()
    for name in ("a%2Fb", "..%2F%2F", "%2Fpause"):
        site.post(f"/api/queues/{name}/pause")
    assert store.paused() == {"a/b", "..//", "/pause"}


def test_workers_are_added_and_removed(site: Site) -> None:
    assert site.post("/api/workers/add") == {"workers": "3 workers"}
    assert site.post("/api/workers/remove") == {"workers": "2 workers"}
    site.wheel.refusal = "the supervisor is stopping"
    refused = site.ask("/api/workers/add", "POST")
    assert (refused.status, refused.body["error"]) == (409, "workers: the supervisor is stopping")
    assert site.wheel.workers == 2


def test_a_drain_is_asked_for(site: Site) -> None:
    answer = site.ask("/api/drain", "POST")
    assert (answer.status, answer.body) == (202, {"state": "draining"})
    assert site.wheel.reasons == ["a request to /api/drain"]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/api/jobs?stat=failed", None, "stat: there is no such parameter here, did you mean 'state'?"),
        ("/api/jobs?state=failed&state=ready", None, "state: expected it once"),
        ("/api/jobs?state=lost", None, "state: expected one of scheduled"),
        ("/api/jobs?queue=", None, "queue: expected a name"),
        ("/api/jobs?handler=%00", None, "handler: expected a name"),
        ("/api/jobs?since=yesterday", None, "since: expected a time with a zone"),
        ("/api/jobs?since=2026-11-30T10:00:00", None, "since: expected a time with a zone"),
        ("/api/jobs?until=-1h", None, "until: expected a time with a zone"),
        ("/api/jobs?text=", None, "text: expected a text of 1 to 200 characters"),
        ("/api/jobs?text=a%00b", None, "text: expected a text of 1 to 200 characters"),
        ("/api/jobs?error=", None, "error: expected a text of 1 to 200 characters"),
        ("/api/jobs?tag=", None, "tag: expected a name"),
        ("/api/jobs?header=tenant", None, "header: expected NAME=VALUE"),
        ("/api/jobs/retry", {"where": {"header": {"a": 1}}}, "where.header: expected a text"),
        ("/api/jobs?limit=0", None, "limit: expected a whole number from 1 to 100"),
        ("/api/jobs?limit=%D9%A1", None, "limit: expected a whole number from 1 to 100"),
        ("/api/jobs?before=x", None, "before: expected the `next` of the answer before"),
        ("/api/jobs?state=failed&before=7", None, "before: expected the `next` of a page with the same filter"),
        ("/api/dlq?state=failed", None, "state: expected one of pending, delivered, any"),
        ("/api/status?x=1", None, "x: there is no such parameter here"),
        ("/api/jobs/x", None, "id: expected a whole number"),
        ("/api/jobs/9223372036854775808", None, "id: expected a whole number"),
        ("/api/queues/%00/pause", {}, "name: expected a name"),
        ("/api/jobs/retry", {"ids": [2**63]}, "ids: expected a list of ids of jobs"),
        ("/api/jobs/retry", {"ids": [True]}, "ids: expected a list of ids of jobs"),
        ("/api/jobs/retry", {"ids": [1], "where": {"queue": "a"}}, "where: there is no such parameter here"),
        ("/api/jobs/retry", {"where": {"stat": "failed"}}, "where.stat: there is no such parameter here"),
        ("/api/jobs/retry", {"where": {"state": ["failed"]}}, "where.state: expected one of"),
        ("/api/jobs/retry", {"where": {"since": 5}}, "where.since: expected a time"),
        ("/api/jobs/retry", {"where": {"queue": "a"}, "limit": "5"}, "limit: expected a whole number"),
        (
            "/api/jobs/retry",
            {"where": {"queue": "a"}, "limit": 10_001},
            "limit: expected a whole number from 1 to 10000",
        ),
        ("/api/jobs/retry", {"where": {"queue": "a"}, "dry_run": 1}, "dry_run: expected true or false"),
        ("/api/jobs/retry", {"where": {"queue": "a"}, "before": 1}, "before: expected the `next`"),
        ("/api/jobs/retry", b"{", "body: expected JSON"),
        ("/api/jobs/retry", b"\xff", "body: expected JSON"),
        ("/api/jobs/retry", [], "body: expected an object"),
        ("/api/jobs/7/retry", {"forse": True}, "forse: there is no such parameter here, did you mean 'force'?"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(tmp_path: Path, path: str, body: Any, error: str) -> None:
    site = Site(MemoryFactory(tmp_path).open())
    answer = site.ask(path, "GET" if body is None else "POST", body)
    site.close()
    assert answer.status == 400 and answer.body["error"].startswith(error), answer.body


def test_another_method_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    site = Site(MemoryFactory(tmp_path).open())
    for path, method, allowed in (
        ("/api/jobs/7", "PUT", "DELETE, GET, HEAD"), ("/api/jobs/retry", "GET", "POST"), ("/api/status", "POST", "GET, HEAD"),
    ):  # fmt: skip
        answer = site.ask(path, method)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert site.ask("/api/jobs", "HEAD").status == 200
    site.close()


def test_each_operation_is_described(tmp_path: Path) -> None:
    site = Site(MemoryFactory(tmp_path).open())
    described = site.ask("/api/openapi.json").body
    site.close()
    assert described["paths"] == site.description["paths"]
    operations = [it for path in described["paths"].values() for it in path.values()]
    assert len({it["operationId"] for it in operations}) == len(operations) >= 20
