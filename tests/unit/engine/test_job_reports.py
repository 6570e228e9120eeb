"""Progress and log of jobs that run go to the store once a second, and with the outcome."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.engine.job_reports import INTERVAL, MAX_CHARACTERS, MAX_ENDED, MAX_LINE, MAX_LINES, JobReports
from supervisor.engine.store_writer import Purpose
from supervisor.errors import RowsLocked, StoreError
from supervisor.jobs import Kind, Lease, Outcome
from supervisor.stores.job_reports import shown_log, shown_progress
from supervisor.workers.interface import OutputLines, WorkerProgress, WorkerRecord
from tests.unit.fakes import FakeTimer, make_lease
from tests.unit.virtual import Answer, Virtual
from tests.unit.wrapped_store import WrappedStore


def progress(lease: Lease, done: int, number: int) -> WorkerProgress:
    return WorkerProgress(lease.id, lease.attempt, number, done, 10, None)


def printed(lease: Lease, *lines: str) -> OutputLines:
    return OutputLines("stdout", lease.id, lines)


def success(lease: Lease) -> Outcome:
    return Outcome(lease, Kind.SUCCEEDED)


class Here:
    def __init__(self) -> None:
        self.timer: Any = FakeTimer()
        self.reports = JobReports(self.timer)
        self.written: list[Any] = []
        self.reports.on_change = self.write

    def write(self) -> None:
        self.written += shown(self.reports.changes())


def shown(reports: Any) -> list[Any]:
    found = []
    for report in reports:
        progress, log = shown_progress(report.progress, 0), shown_log(report.log)
        found.append((report.id, progress and progress["done"], log and (log["skipped"], log["lines"])))
    return found


@pytest.fixture
def here() -> Here:
    return Here()


LEASE = make_lease(1)


def test_what_a_job_reports_is_written_together_a_second_later_and_once(here: Here) -> None:
    for number in range(1, 50):
        here.reports.wrote(LEASE, progress(LEASE, number, number))
    here.reports.wrote(LEASE, printed(LEASE, "a", "b"))
    here.reports.wrote(LEASE, WorkerRecord(20, "INFO", "job", "c\nd", "", 1))
    here.timer.advance(INTERVAL / 2)
    assert here.written == []
    here.timer.advance(INTERVAL)
    here.timer.advance(5 * INTERVAL)
    assert here.written == [(1, 49, (0, ["a", "b", "INFO job: c", "d"]))]


def test_only_what_is_new_is_written(here: Here) -> None:
    here.reports.wrote(LEASE, printed(LEASE, "a"))
    here.timer.advance(INTERVAL)
    here.reports.wrote(LEASE, progress(LEASE, 1, 1))
    here.timer.advance(2 * INTERVAL)
    assert here.written == [(1, None, (0, ["a"])), (1, 1, None)]


def test_a_report_that_another_has_overtaken_changes_nothing(here: Here) -> None:
    for number, done in ((2, 5), (1, 4), (2, 9)):
        here.reports.wrote(LEASE, progress(LEASE, done, number))
    here.reports.wrote(LEASE, progress(LEASE, 7, 3)._replace(attempt=LEASE.attempt + 1))
    here.timer.advance(INTERVAL)
    assert here.written == [(1, 5, None)]


def test_the_last_lines_are_kept_and_the_others_counted(here: Here) -> None:
    here.reports.wrote(LEASE, printed(LEASE, *map(str, range(MAX_LINES + 7))))
    here.timer.advance(INTERVAL)
    ((_, _, (skipped, lines)),) = here.written
    assert (skipped, lines[0], len(lines)) == (7, "7", MAX_LINES)


def test_few_long_lines_are_cut_and_bounded(here: Here) -> None:
    here.reports.wrote(LEASE, printed(LEASE, *["x" * 10 * MAX_LINE] * 50))
    here.timer.advance(INTERVAL)
    ((_, _, (skipped, lines)),) = here.written
    assert skipped + len(lines) == 50 and sum(map(len, lines)) <= MAX_CHARACTERS
    assert lines[0] == "x" * MAX_LINE + "…"


def test_a_job_that_ends_before_is_written_with_its_outcome_alone(here: Here) -> None:
    here.reports.wrote(LEASE, printed(LEASE, "a"))
    assert shown(here.reports.of([success(LEASE)])) == [(1, None, (0, ["a"]))]
    assert here.reports.of([success(LEASE)]) == [], "the settle may be repeated"
    here.timer.advance(INTERVAL)
    here.reports.ended([LEASE])
    here.timer.advance(INTERVAL)
    assert here.written == [] and not here.reports.held


def test_lines_that_come_after_the_outcome_are_added_to_the_others(here: Here) -> None:
    here.reports.wrote(LEASE, printed(LEASE, "a"))
    here.reports.of([success(LEASE)])
    here.reports.wrote(LEASE, printed(LEASE, "while it is settled"))
    here.reports.ended([LEASE])
    here.timer.advance(INTERVAL)
    here.reports.wrote(LEASE, printed(LEASE, "later"), is_held=False)
    here.timer.advance(2 * INTERVAL)
    lines = ["a", "while it is settled", "later"]
    assert here.written == [(1, None, (0, lines[:2])), (1, None, (0, lines))]


def test_few_of_the_jobs_that_have_ended_are_kept(here: Here) -> None:
    for id in range(3 * MAX_ENDED):
        here.reports.wrote(lease := make_lease(id), printed(lease, "a"))
        here.reports.of([success(lease)])
        here.reports.ended([lease])
    assert (len(here.reports.held), len(here.reports._ended)) == (0, MAX_ENDED)


def test_very_much_is_written_in_parts(here: Here) -> None:
    leases = [make_lease(id) for id in range(300)]
    for lease in leases:
        here.reports.wrote(lease, printed(lease, "x" * 1999, *["y" * 1999] * 7))
    here.timer.advance(INTERVAL)
    assert 100 < len(here.written) < 200
    here.timer.advance(2 * INTERVAL)
    assert [id for id, _, _ in here.written] == [lease.id for lease in leases]


def test_attempts_are_kept_apart(here: Here) -> None:
    here.reports.wrote(LEASE, printed(LEASE, "a"))
    again = LEASE._replace(token=LEASE.token + 1, retries=1)
    here.reports.wrote(again, printed(again, "b"))
    here.timer.advance(INTERVAL)
    assert [lines for _, _, (_, lines) in here.written] == [["a"], ["b"]]


# --- in the engine


def test_a_job_that_reports_has_its_lease_extended_once_a_second_and_its_progress_is_in_the_store() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.serve()
    lease = here.process.start_next()
    before = here.store.get(id)
    here.loop.advance(5.0)
    here.process.listener.output(progress(lease, 3, 1))
    here.loop.advance(INTERVAL)
    job = here.store.get(id)
    assert before and job and job["progress"] is not None
    assert (job["progress"]["done"], job["progress"]["total"], job["log"]) == (3, 10, None)
    assert job["lease"]["until"] > before["lease"]["until"]
    here.loop.advance(INTERVAL)
    assert here.store.get(id) == job, "nothing is written while it reports nothing"


def test_while_reports_wait_for_the_store_all_other_leases_are_extended_too() -> None:
    here = Virtual(workers=2)
    here.enqueue("work", "work")
    here.serve()
    workers: list[Any] = [worker.process for worker in here.pool.workers.values()]
    leases = [worker.start_next() for worker in workers]
    here.writer.unavailable = True
    workers[0].listener.output(progress(leases[0], 3, 1))
    for _ in range(25):
        here.loop.advance(1.0)
        for worker in workers:
            worker.send_heartbeat()
    before = [here.store.get(lease.id) for lease in leases]
    here.writer.unavailable = False
    here.writer.step()
    after = [here.store.get(lease.id) for lease in leases]
    for old, new in zip(before, after, strict=True):
        assert old and new and new["lease"]["until"] > old["lease"]["until"]
    assert after[0] and after[0]["progress"]["done"] == 3


def test_what_a_job_has_written_last_is_in_the_store_with_its_outcome() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.serve()
    lease = here.process.start_next()
    here.process.listener.output(progress(lease, 10, 1))
    here.process.listener.output(printed(lease, "done"))
    here.process.finish()
    here.process.drain()
    job = here.store.get(id)
    assert job is not None and job["state"] == "succeeded"
    assert (job["progress"]["done"], job["log"]["lines"]) == (10, ["done"])


class NoReports(WrappedStore):
    refuses = True

    def keep_reports(self, reports: Any) -> None:
        if self.refuses:
            raise StoreError("permission denied for table reports")
        self.inner.keep_reports(reports)


def test_a_store_that_refuses_reports_settles_and_extends_all_the_same() -> None:
    store: Any = NoReports()
    here = Virtual(workers=2, store=store)
    here.enqueue("work", "work")
    here.serve()
    workers: list[Any] = [worker.process for worker in here.pool.workers.values()]
    leases = [worker.start_next() for worker in workers]
    before = [here.store.get(lease.id) for lease in leases]
    for worker, lease in zip(workers, leases, strict=True):
        worker.listener.output(progress(lease, 3, 1))
    workers[0].finish()
    workers[0].drain()
    assert here.state(leases[0].id) == "succeeded"
    here.loop.advance(3 * INTERVAL)
    after = here.store.get(leases[1].id)
    assert before[1] and after and after["lease"]["until"] > before[1]["lease"]["until"]
    store.refuses = False
    here.loop.advance(INTERVAL)
    jobs = [here.store.get(lease.id) for lease in leases]
    assert [job and job["progress"]["done"] for job in jobs] == [3, 3]


class Locked(WrappedStore):
    """Another client has locked the rows of all jobs: reports are left out."""

    locked = True

    def settle(self, outcomes: Any) -> Any:
        if self.locked:
            raise RowsLocked("locked", frozenset(outcome.lease.id for outcome in outcomes))
        return self.inner.settle(outcomes)

    def keep_reports(self, reports: Any) -> None:
        if not self.locked:
            self.inner.keep_reports(reports)


def test_what_a_job_has_reported_is_written_once_its_row_is_not_locked_any_more() -> None:
    store: Any = Locked()
    here = Virtual(store=store)
    (id,) = here.enqueue("work")
    here.serve()
    lease = here.process.start_next()
    here.process.listener.output(progress(lease, 10, 1))
    here.process.finish()
    here.process.drain()
    assert here.state(id) == "in_flight"
    store.locked = False
    here.engine.committer.retry_locked()
    here.loop.advance(INTERVAL)
    job = here.store.get(id)
    assert job is not None and job["state"] == "succeeded" and job["progress"]["done"] == 10


def test_while_the_store_refuses_to_extend_the_next_report_waits() -> None:
    here = Virtual()
    here.enqueue("work")
    here.serve()
    lease = here.process.start_next()
    kept: list[Any] = []
    submit = here.writer.submit

    def keep_extends(call: Any, purpose: Purpose = Purpose.READ, did_work: Any = None) -> Any:
        if purpose is not Purpose.EXTEND:
            return submit(call, purpose, did_work)
        kept.append(call)
        return Answer()

    here.writer.submit = keep_extends  # type: ignore[method-assign]
    for number in range(1, 6):
        here.process.listener.output(progress(lease, number, number))
        here.loop.advance(INTERVAL)
    assert len(kept) == 1


def test_nothing_is_held_of_a_job_whose_lease_was_lost_before_its_outcome() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.serve()
    lease = here.process.start_next()
    here.process.listener.output(progress(lease, 3, 1))
    assert here.store.cancel([id])
    here.process.finish()
    here.process.drain()
    here.loop.advance(3 * INTERVAL)
    reports = here.engine.leases.reports
    assert (reports.held, reports._changed, reports._timer) == ({}, {}, None)


class Refusing(WrappedStore):
    def keep_reports(self, reports: Any) -> None:
        raise AssertionError("nothing was reported")


def test_jobs_that_report_nothing_write_nothing() -> None:
    here = Virtual(store=Refusing())  # type: ignore[arg-type]
    here.enqueue("work")
    here.serve()
    here.process.start_next()
    here.loop.advance(60.0)
    here.process.finish()
    here.process.drain()
    assert here.state(1) == "succeeded"
