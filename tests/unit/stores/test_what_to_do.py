"""What to do about paused queues and retries, where the jobs are in the memory of a supervisor."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.stores.problems import problems
from supervisor.stores.supervisors import ABOUT
from supervisor.stores.waiting import waiting_because

AT = "2026-01-01T00:00:00+00:00"


def status(partitions: list[Any], *, paused: bool) -> dict[str, Any]:
    row = {
        "host": "box", "pid": 7, "state": "running", "seen_at": AT, "lease_ttl": 30.0, "queues": None, "handlers": ["work"],
        "missing_handlers": [], "problems": [], "sinks": [], "partitions": partitions, "spent_budgets": [], "limits": [],
    }  # fmt: skip
    queue = {"queue": "orders", "queue_size": 1, "retry_queue_size": 0, "scheduled": 0, "paused": paused}
    return {"at": AT, "supervisors": [row], "queues": [queue], "sinks": [], "stuck": []}


@pytest.mark.parametrize(
    ("partitions", "how"),
    [
        ([], "resume it with: supervisor queues resume orders"),
        ([{"topic": "orders"}], "resume it with: the HTTP API of this supervisor, POST /api/queues/orders/resume"),
    ],
)
def test_a_paused_queue_is_resumed_where_it_can_be(partitions: list[Any], how: str) -> None:
    (found,) = problems(status(partitions, paused=True))
    assert found.what_to_do == how


@pytest.mark.parametrize(
    ("partitions", "how"),
    [
        ([], "run it now with: supervisor jobs retry 5"),
        ([{"topic": "orders"}], "run it now with: POST /api/jobs/5/retry"),
    ],
)
def test_a_retry_is_run_now_where_it_can_be(partitions: list[Any], how: str) -> None:
    job = {
        "id": 5, "state": "scheduled", "queue": "orders", "handler": "work", "due_at": "2026-01-01T00:00:09+00:00",
        "expired_count": 0, "retries": 1, "max_retries": 3, "errors": [{"cause": "exception"}], "missing_sinks": [],
        "snoozes": 0, "snoozed_until": None,
    }  # fmt: skip
    assert (waiting_because(job, status(partitions, paused=False)) or "").endswith(how)


def job(state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": 5, "state": state, "queue": "orders", "handler": "work", "due_at": AT, "expired_count": 0, "retries": 0,
        "max_retries": None, "errors": [], "missing_sinks": [], "key": None, "key_held_by": None, "group": None, "parents": [], "after": [], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("of", "state", "reached", "found"),
    [
        ("handler", "blocked", "running", "handler work has the limit 2 at once, and no more may run now: wait, or raise handlers.work.limit"),
        ("handler", "blocked", "rate", "handler work has the limit 2 at once, and no more may be claimed now"),
        ("handler", "blocked", None, "handler work has the limit 2 at once, and no more may run now"),
        ("queue", "ready", "running", "queue orders has the limit 2 at once, and no more may run now: wait, or raise queues.orders.limit"),
        ("queue", "ready", None, "no worker of supervisor box pid 7 is ready yet"),
        ("groups", "blocked", "rate", "group g has the limit 2 at once, as each in queue orders, and no more may be claimed now: wait, or raise queues.orders.group_limit"),
        ("groups", "ready", "running", "no worker of supervisor box pid 7 is ready yet"),
        ("other", "blocked", "running", "the job that it has waited for has ended, or a limit has been removed"),
    ],
)  # fmt: skip
def test_the_limit_that_a_job_waits_for_is_named(of: str, state: str, reached: str | None, found: str) -> None:
    known = status([], paused=False)
    name = {"handler": "work", "queue": "orders", "groups": "orders"}.get(of, "x")
    (row,) = known["supervisors"]
    row |= {
        **ABOUT,
        **row,
        "workers": [],
        "limits": [{"of": of, "name": name, "limit": "2 at once", "reached": reached}],
    }
    assert (waiting_because(job(state, group="g"), known) or "").startswith(found)


@pytest.mark.parametrize(
    ("until", "found"),
    [
        (
            "2026-01-01T00:42:00+00:00",
            "no more may be claimed for 42m, until 2026-01-01T00:42:00+00:00: wait, or raise",
        ),
        ("2025-12-31T23:59:59+00:00", "no more may be claimed now: wait, or raise"),
    ],
)
def test_the_time_until_which_a_rate_allows_no_claim_is_named(until: str, found: str) -> None:
    known = status([], paused=False)
    (row,) = known["supervisors"]
    row["limits"] = [{"of": "handler", "name": "work", "limit": "3/1h", "reached": "rate", "until": until}]
    assert waiting_because(job("blocked"), known) == f"handler work has the limit 3/1h, and {found} handlers.work.limit"


def test_a_job_that_has_its_own_key_waits_for_a_limit() -> None:
    known = status([], paused=False)
    (row,) = known["supervisors"]
    row["limits"] = [{"of": "handler", "name": "work", "limit": "1/1s", "reached": "rate"}]
    held = job("blocked", key="k", key_held_by={"id": 5, "state": "blocked", "on_failure": "pass"})
    assert (waiting_because(held, known) or "").startswith("handler work has the limit 1/1s")


def test_a_key_that_an_ended_job_still_has_is_passed_on_by_a_running_supervisor() -> None:
    known = status([], paused=False)
    held = job("blocked", key="k", key_held_by={"id": 4, "state": "succeeded", "on_failure": "hold"})
    assert (waiting_because(held, known) or "").startswith(
        "job 4, which was before it in the order of its key k, has ended"
    )
    known["supervisors"] = []
    assert waiting_because(held, known) == "no supervisor is running: start one with: supervisor run"


def test_a_ready_job_says_that_it_takes_turns() -> None:
    job = {
        "id": 5, "state": "ready", "queue": "orders", "handler": "work", "expired_count": 0, "retries": 0, "max_retries": 3, "errors": [],
        "missing_sinks": [], "group": "tenant:7",
    }  # fmt: skip
    found = status([], paused=False)
    running = {"job_id": 4, "handler": "work", "running_for": 2.0, "running_since": AT}
    worker = {"state": "busy", "group": None, "async": False, "current_job": running}
    found["supervisors"][0] |= {
        "workers": [worker], "groups": [], "async_handlers": [], "held_retries": [], "runs_alone": None,
    }  # fmt: skip
    assert waiting_because(job, found) == (
        "the only worker that may run it is busy, the longest with job 4 (work) for 2s, and 1 job is ready in queue orders, whose groups take "
        "turns; its group is tenant:7: wait, or raise workers.count"
    )


def test_a_job_that_snoozes_says_until_when() -> None:
    until = "2026-01-01T00:00:09+00:00"
    job = {
        "id": 5, "state": "scheduled", "queue": "orders", "handler": "work", "due_at": until, "expired_count": 0,
        "retries": 1, "max_retries": 3, "errors": [{"cause": "exception"}], "missing_sinks": [], "snoozes": 2,
        "snoozed_until": until,
    }  # fmt: skip
    assert waiting_because(job, status([], paused=False)) == (
        f"its handler has snoozed, 2 times so far, until {until}, in 9s; wait, or run it now with: supervisor jobs retry 5"
    )
