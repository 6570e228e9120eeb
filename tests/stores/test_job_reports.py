"""Stores keep the progress and the log of jobs: of the last claim alone, and as long as the job itself."""

from __future__ import annotations

import pytest

from supervisor.jobs import Progress
from supervisor.stores.job_reports import JobReport, log_text, progress_text
from supervisor.stores.records import Presence
from tests.stores.factories import IN_SQL, again, promote, put, success, take, take_one


def report(lease, done=None, lines=None):
    progress = None if done is None else progress_text(lease.attempt, Progress(done, 10, "é"))
    return JobReport(lease.id, lease.token, progress, None if lines is None else log_text(lease.attempt, 0, lines))


@pytest.fixture
def joined(factory):
    return factory.joined("one")


def test_progress_and_log_are_kept_apart_and_after_the_end(joined, factory):
    (id,) = put(joined)
    lease = take_one(joined)
    assert (joined.get(id)["progress"], joined.get(id)["log"]) == (None, None)
    joined.keep_reports([report(lease, 3)])
    at = joined.get(id)["progress"]["at"]
    factory.clock.step(5)
    joined.keep_reports([report(lease, lines=["a", "b"])])
    with joined.transaction():
        joined.settle([success(lease)])
    job = joined.get(id)
    assert job["progress"] == {"done": 3, "total": 10, "message": "é", "attempt": 1, "at": at}
    assert job["log"] == {"attempt": 1, "skipped": 0, "lines": ["a", "b"]}
    assert next(joined.list_jobs())["log"] == job["log"]
    brief = next(joined.list_jobs(brief=True))
    assert brief["progress"] == job["progress"]


def test_a_report_that_comes_after_the_settle_is_kept_until_the_next_claim(joined):
    (id,) = put(joined)
    lease = take_one(joined)
    joined.settle([again(lease, 0.0)])
    joined.keep_reports([report(lease, 7)])
    assert joined.get(id)["progress"]["done"] == 7
    promote(joined, 10)
    later = take_one(joined)
    joined.keep_reports([report(lease, 8), report(lease._replace(id=999), 9)])
    assert joined.get(id)["progress"]["done"] == 7
    joined.keep_reports([report(later, 1)])
    assert (joined.get(id)["progress"]["done"], joined.get(id)["progress"]["attempt"]) == (1, 2)


def test_the_status_shows_the_progress_of_jobs_that_run(joined):
    put(joined, "a", "b")
    first, second = take(joined, 2)
    joined.keep_reports([report(first, 3)])
    workers = [{"pid": n, "state": "busy", "current_job": {"job_id": it.id}} for n, it in enumerate((first, second))]
    joined.announce(Presence("running", workers))
    (shown,) = joined.stats()["supervisors"]
    assert shown["workers"][0]["current_job"]["progress"] == joined.get(first.id)["progress"]
    assert shown["workers"][1]["current_job"]["progress"] is None


def test_the_status_does_not_show_the_progress_of_an_earlier_attempt(joined):
    (id,) = put(joined)
    first = take_one(joined)
    joined.settle([again(first, 0.0)])
    joined.keep_reports([report(first, 7)])
    promote(joined, 10)
    second = take_one(joined)
    joined.announce(Presence("running", [{"pid": 1, "state": "busy", "current_job": {"job_id": id, "retry_count": 1}}]))
    assert joined.stats()["supervisors"][0]["workers"][0]["current_job"]["progress"] is None
    joined.keep_reports([report(second, 1)])
    assert joined.stats()["supervisors"][0]["workers"][0]["current_job"]["progress"]["done"] == 1


@IN_SQL
def test_reports_are_deleted_with_their_job(factory, joined):
    put(joined)
    lease = take_one(joined)
    joined.keep_reports([report(lease, 1, ["a"])])
    joined.settle([success(lease)])
    joined.delete([lease.id])
    assert [*factory.sql("select count(*) from {s}.reports")] == [(0,)]


@IN_SQL
@pytest.mark.parametrize("text", ["x", "[]", '{"done": 1}', '{"attempt": 1, "skipped": 0, "lines": 7}'])
def test_a_report_that_another_program_has_written_is_not_shown(factory, joined, text):
    (id,) = put(joined)
    joined.keep_reports([report(take_one(joined), 1, ["a"])])
    factory.sql(f"update {{s}}.reports set progress = '{text}', log = '{text}'")
    assert (joined.get(id)["progress"], joined.get(id)["log"]) == (None, None)
