"""supervisor jobs wait"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from functools import partial

import pytest

from supervisor.client.ended_jobs import ended_jobs
from supervisor.stores.sqlite.store import SqliteStore
from tests.unit.cli.conftest import Call


def end(id: int, state: int = 3, result: str = "7") -> None:
    with closing(sqlite3.connect("jobs.db", isolation_level=None)) as database:
        database.execute("update jobs set state = ?, result = ? where id = ?", (state, result, id))


@pytest.fixture
def jobs(call: Call) -> None:
    """Three jobs: one has succeeded, one was cancelled, one is ready."""
    for name in ("mail", "scan", "pdf"):
        call("enqueue", name)
    end(1)
    call("jobs", "cancel", 2)


@pytest.mark.usefixtures("jobs")
def test_each_job_is_printed_as_it_ends(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.cli.wait.ended_jobs", partial(ended_jobs, sleep=lambda seconds: end(3)))
    answer = call("jobs", "wait", 3, 1, 1)
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == ["job 1 (mail) succeeded", "job 3 (pdf) succeeded"]


@pytest.mark.usefixtures("jobs")
def test_a_job_that_did_not_succeed_is_code_1(call: Call) -> None:
    answer = call("jobs", "wait", 1, 2)
    assert (answer.code, answer.lines) == (1, ["job 1 (mail) succeeded", "job 2 (scan) was cancelled"])
    end(2, state=4)
    assert call("jobs", "wait", 2).lines == ["job 2 (scan) failed"]


@pytest.mark.usefixtures("jobs")
def test_a_program_gets_the_whole_job_as_json(call: Call) -> None:
    end(1, result='{"sent": 2}')
    answer = call("jobs", "wait", 1, "--json")
    assert answer.code == 0 and answer.json["result"] == {"sent": 2}
    assert answer.json == json.loads(call("jobs", "show", 1, "--json").out)


@pytest.mark.usefixtures("jobs")
def test_time_that_is_up_is_code_4_and_the_reason_is_printed(call: Call) -> None:
    answer = call("jobs", "wait", 3, 2, "--timeout", "20ms")
    assert (answer.code, answer.lines) == (4, ["job 2 (scan) was cancelled"])
    assert answer.err.splitlines() == [
        "Error: 1 of 2 jobs have not ended within 20ms: 3",
        "job 3 (pdf) is ready: no supervisor is running: start one with: supervisor run",
    ]
    assert call("jobs", "wait", 1, "--timeout", "0s").code == 0


@pytest.mark.usefixtures("jobs")
def test_a_job_that_does_not_exist_is_code_2_after_the_others_have_ended(call: Call) -> None:
    answer = call("jobs", "wait", 9, 3, 1, "--timeout", "0s")
    assert (answer.code, answer.lines) == (2, ["job 1 (mail) succeeded"])
    assert answer.err.splitlines()[:2] == ["Error: no job 9", "Error: 1 of 3 jobs have not ended within 0ms: 3"]


@pytest.mark.usefixtures("jobs")
def test_a_job_that_is_deleted_meanwhile_is_code_2(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(seconds: float) -> None:
        with closing(sqlite3.connect("jobs.db", isolation_level=None)) as database:
            database.execute("delete from jobs where id = 3")

    monkeypatch.setattr("supervisor.cli.wait.ended_jobs", partial(ended_jobs, sleep=delete))
    answer = call("jobs", "wait", 3)
    assert (answer.code, answer.err) == (2, "Error: job 3 was deleted while its end was waited for\n")


@pytest.mark.usefixtures("jobs")
def test_a_store_that_is_unavailable_until_the_time_is_up_is_code_75(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from supervisor.errors import StoreUnavailable

    def locked(store: SqliteStore, ids: object) -> None:
        raise StoreUnavailable("database is locked")

    init = SqliteStore.__init__

    def broken(self, *arguments, **options) -> None:
        init(self, *arguments, **options)
        self.ended = lambda ids: locked(self, ids)

    monkeypatch.setattr(SqliteStore, "__init__", broken)
    answer = call("jobs", "wait", 3, "--timeout", "50ms")
    assert (answer.code, answer.err) == (75, "Error: database is locked\n")


def test_wrong_arguments_are_explained(call: Call) -> None:
    call("enqueue", "mail")
    assert "expected a duration such as" in call("jobs", "wait", 1, "--timeout", "soon").err
    assert call("jobs", "wait").code == 2
    assert "'x' is not a valid integer range" in call("jobs", "wait", "x").err
    assert call("jobs", "wait", 1, "--timeout", "-1s").code == 2


def test_control_characters_of_a_failure_are_escaped(call: Call) -> None:
    call("enqueue", "mail")
    end(1, state=4)
    with closing(sqlite3.connect("jobs.db", isolation_level=None)) as database:
        record = json.dumps({"attempt": 1, "cause": "exception", "type": "E", "message": "\x1b[31mred\nline"})
        database.execute("insert into attempts(job_id, record) values (1, ?)", (record,))
    assert call("jobs", "wait", 1).out == "job 1 (mail) failed at attempt 1: exception: E: \\x1b[31mred line\n"
