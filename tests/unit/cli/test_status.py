"""What `status` prints of rows that supervisors wrote some time ago."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.cli.status import MAX_SHOWN, _print_busy_queues, _print_supervisors
from supervisor.stores.problems import problems
from supervisor.stores.supervisors import ABOUT
from tests.unit.cli.conftest import Call

JOB = {"job_id": 7, "handler": "mail", "retry_count": 0, "is_retry": False, "running_for": 60.0}
JOB |= {"running_since": "2029-12-31T23:59:00Z"}
ROW = {
    "owner": "o", "host": "a-host-with-a-very-long-name.example.org", "pid": 12, "state": "running", "in_flight": 1,
    "seen_at": "2030-01-01T00:00:00Z", "lease_until": None, "sinks": [], **ABOUT,
}  # fmt: skip


def printed(capsys: pytest.CaptureFixture[str], *workers: dict[str, Any], **changes: Any) -> list[str]:
    _print_supervisors({"at": "2030-01-01T00:00:09Z", "supervisors": [{**ROW, "workers": workers, **changes}]})
    return [line for line in capsys.readouterr().out.splitlines() if line]


def test_a_row_has_its_age_and_jobs_have_run_for_so_long_since(capsys: pytest.CaptureFixture[str]) -> None:
    title, _, row = printed(capsys, {"pid": 13, "state": "busy", "current_job": JOB})
    assert title.endswith("pid 12: running, 1 job in flight, as it was 9s ago")
    assert row.split() == ["13", "busy", "7", "mail", "1", "1m", "9s"]


def test_a_row_from_before_the_clock_was_set_back_has_no_age(capsys: pytest.CaptureFixture[str]) -> None:
    later = "2030-01-01T02:00:09Z"
    job = {**JOB, "running_since": "2030-01-01T01:59:09Z"}
    title, _, row = printed(capsys, {"pid": 13, "state": "busy", "current_job": job}, seen_at=later)
    assert title.endswith("pid 12: running, 1 job in flight, as it was before the clock was set back")
    assert row.split()[-1] == "1m"
    status = {
        "at": "2030-01-01T00:00:09Z", "queues": [], "sinks": [], "stuck": [], "supervisors": [{**ROW, "workers": [], "seen_at": later}]
    }  # fmt: skip
    assert [it.message for it in problems(status)] == [
        f"supervisor {ROW['host']} pid 12 was not seen since the clock was set back by 2h"
    ]


def test_a_suspect_that_runs_alone_is_named_since_other_jobs_wait_beside_idle_workers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, line, _, _ = printed(capsys, {"pid": 13, "state": "busy", "current_job": JOB}, runs_alone=7)
    assert line == "starts no other job beside job 7, which may have ended supervisors: supervisor jobs show 7"


def queue(name: str, failed: int = 0, *, paused: bool = False) -> dict[str, Any]:
    none = dict.fromkeys(("queue_size", "retry_queue_size", "blocked", "scheduled", "in_flight", "processing"), 0)
    return {"queue": name, **none, "failed": failed, "paused": paused}


def test_of_many_queues_those_with_the_most_jobs_are_shown_and_the_others_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print_busy_queues([queue(f"q{n:02}", failed=n) for n in range(MAX_SHOWN + 2)])
    *table, empty, more = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == [f"q{n:02}" for n in range(2, MAX_SHOWN + 2)]
    assert empty == "1 queue has no job that waits, runs or has failed"
    assert more == "1 more queue has fewer jobs: supervisor queues list"


def test_a_queue_without_jobs_is_shown_if_it_is_paused(capsys: pytest.CaptureFixture[str]) -> None:
    _print_busy_queues([queue("held", paused=True), queue("quiet")])
    _, row, empty = capsys.readouterr().out.splitlines()
    assert row.split()[0] == "held"
    assert empty.startswith("1 queue has no job")


def test_the_title_stays_on_one_line_and_is_shown_without_workers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("supervisor.cli.render.PIPE_WIDTH", 20)
    assert printed(capsys, state="gone") == [f"{ROW['host']} pid 12: gone, 1 job in flight, as it was 9s ago"]
    assert len(printed(capsys, {"pid": 1, "state": "idle", "current_job": None})) == 3


def test_a_status_without_a_supervisor_has_that_as_its_problem(call: Call) -> None:
    call("enqueue", "mail")
    (problem,) = call("status", "--json").json["problems"]
    assert problem["kind"] == "no_supervisor"
    assert problem["message"] in call("jobs", "show", 1, "--json").json["waiting_because"]


def test_groups_of_workers_are_shown_with_their_numbers_if_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    others = {"group": None, "queues": None, "count": 1, "min": 1, "max": 1}
    mail = {"group": "mail", "queues": ["invites", "mail"], "count": 2, "min": 1, "max": 4}
    workers = [{"pid": 13, "state": "idle", "group": None}, {"pid": 14, "state": "idle", "group": "mail"}]
    _, *found = printed(capsys, *workers, groups=[others, mail])
    assert found[:2] == ["other queues: 1 worker", "group mail (invites, mail): 2 workers, from 1 to 4"]
    assert [line.split() for line in found[2:]] == [["pid", "state", "group"], ["13", "idle"], ["14", "idle", "mail"]]
    _, *found = printed(capsys, *workers[:1], groups=[others])
    assert [line.split() for line in found] == [["pid", "state"], ["13", "idle"]]
    _, *found = printed(capsys, *workers[:1], groups=[{**others, "max": 3}])
    assert found[0] == "other queues: 1 worker, from 1 to 3"
