"""What `status` prints of rows that supervisors wrote some time ago."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.cli.status import _print_supervisors
from supervisor.stores.supervisors import ABOUT
from tests.unit.cli.conftest import Call

JOB = {"job_id": 7, "handler": "mail", "retry_count": 0, "is_retry": False, "running_for": 60.0}
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
