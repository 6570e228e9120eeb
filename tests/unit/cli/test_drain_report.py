from __future__ import annotations

import os
from typing import Any

import pytest

from supervisor import events
from supervisor.cli.drain_report import MAX_FAILURES, DrainReport, progress
from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome, Policy


def lease(id: int, retries: int = 0) -> Lease:
    return Lease(id, 1, "mail", "default", "null", None, retries, 0, 0, 0, 0, Policy())


def failed(id: int, state: JobState, message: str = "no") -> Outcome:
    return Outcome(lease(id), Kind.FAILED, failure=Failure(Cause.EXCEPTION, "ValueError", message), state=state)


def settled(*outcomes: Outcome) -> events.JobsSettled:
    return events.JobsSettled(outcomes)


@pytest.fixture
def report() -> DrainReport:
    return DrainReport()


def printed(report: DrainReport, capsys: pytest.CaptureFixture[str]) -> list[str]:
    report.print()
    return capsys.readouterr().out.splitlines()


def test_a_report_counts_outcomes_and_dead_letters(report: DrainReport, capsys: Any) -> None:
    report(settled(*(Outcome(lease(id), Kind.SUCCEEDED, state=JobState.SUCCEEDED) for id in range(3))))
    report(settled(failed(4, JobState.SCHEDULED), failed(5, JobState.FAILED, "two\nlines \x1b[2J")))
    report(settled(Outcome(lease(6), Kind.RELEASED, state=JobState.READY)))
    report(events.LeasesRecovered([failed(7, JobState.SCHEDULED)]))
    report(events.DeadLettersPublished("file", [5]))
    report(events.DeadLettersPublished("pager", [5]))
    report(events.SupervisorStopped(0, {}))
    lines = printed(report, capsys)
    assert lines[0].startswith("drained in ")
    assert lines[0].endswith(": 3 succeeded, 1 failed, 2 retried, 1 dead letter")
    assert lines[1] == "  job 5 mail failed at attempt 1: exception: ValueError: two lines \\x1b[2J"


def test_a_report_names_what_is_left_behind_and_why(report: DrainReport, capsys: Any) -> None:
    report(events.PluginFailed("a.py", 3, "SyntaxError: no", ""))
    report(events.DeadLettersFailed("file", [1], "disk full", 5.0))
    report(events.SupervisorStopped(4, {"ready": 2, "dead_letters": 1}))
    lines = printed(report, capsys)
    assert lines[0].startswith("not drained in ")
    assert lines[0].endswith(": no job has ended")
    assert lines[1:] == [
        "plugin not loaded: a.py:3: SyntaxError: no",
        "dead letters not delivered to file: disk full",
        "left behind: 2 ready, 1 dead letters",
    ]


def test_a_report_separates_the_thousands_of_all_its_counts(report: DrainReport, capsys: Any) -> None:
    report(settled(*(failed(id, JobState.FAILED) for id in range(2000))))
    report(events.DeadLettersPublished("file", [*range(2000)]))
    report(events.SupervisorStopped(4, {"ready": 10_000}, {"in_paused_queues": 1500}))
    lines = printed(report, capsys)
    assert lines[0].endswith(": 2,000 failed, 2,000 dead letters")
    assert [line.strip() for line in lines if "more" in line] == [
        f"... and {2000 - MAX_FAILURES:,} more",
        "left behind: 10,000 or more ready",
    ]
    assert lines[-1] == "left out: 1,500 in paused queues"


def test_a_report_names_a_blocked_job_that_is_left(report: DrainReport, capsys: Any) -> None:
    report(events.SupervisorStopped(4, {"blocked": 5}, blocked="job 7 (mail) is blocked: wait"))
    assert printed(report, capsys)[1:] == ["left behind: 5 blocked", "job 7 (mail) is blocked: wait"]


def test_a_report_counts_what_the_user_has_left_out(report: DrainReport, capsys: Any) -> None:
    report(events.StoreCallFailed("count the jobs that are left", "no right", "a drain goes on"))
    report(events.SupervisorStopped(0, {}, {"in_paused_queues": 3, "due_after_the_horizon": 1}))
    lines = printed(report, capsys)
    assert lines[0].startswith("drained in ")
    assert lines[1:] == ["left out: 3 in paused queues, 1 due after the horizon"]


def test_a_report_names_what_the_store_refused_to_a_drain_that_failed(report: DrainReport, capsys: Any) -> None:
    report(events.StoreCallFailed("count the jobs that are left", "no right", "a drain goes on"))
    report(events.SupervisorStopped(1, {}))
    assert printed(report, capsys)[1:] == ["the store failed to count the jobs that are left: no right"]
    report(events.StoreCallSucceeded("count the jobs that are left", 1.0))
    assert printed(report, capsys)[1:] == []


def test_a_count_that_stopped_at_its_limit_is_marked(report: DrainReport, capsys: Any) -> None:
    report(events.SupervisorStopped(4, {"ready": 10_001, "scheduled": events.MAX_COUNTED}))
    assert printed(report, capsys)[-1] == "left behind: 10,001 ready, 10,000 or more scheduled"


def test_an_unknown_handler_is_named_with_the_number_of_its_jobs(report: DrainReport, capsys: Any) -> None:
    report(events.JobsReleased([lease(1), lease(2)], "unknown_handler"))
    missed = Failure(Cause.UNKNOWN_HANDLER, "UnknownHandler", "no plugin serves it")
    report(settled(Outcome(lease(2), Kind.FAILED, failure=missed, state=JobState.FAILED)))
    assert "no plugin serves handler 'mail': 2 jobs" in printed(report, capsys)


def test_a_handler_that_a_reload_brought_is_not_reported(report: DrainReport, capsys: Any) -> None:
    report(events.JobsReleased([lease(1), lease(2)], "unknown_handler"))
    assert printed(report, capsys)[1:] == ["no plugin serves handler 'mail': 2 jobs"]
    report(settled(Outcome(lease(1), Kind.SUCCEEDED, state=JobState.SUCCEEDED), failed(2, JobState.SCHEDULED)))
    assert printed(report, capsys)[1:] == []


def test_a_sink_that_accepts_again_is_not_reported(report: DrainReport, capsys: Any) -> None:
    report(events.DeadLettersFailed("file", [1], "disk full", 5.0))
    assert printed(report, capsys)[1:] == ["dead letters not delivered to file: disk full"]
    report(events.DeadLettersPublished("file", [1]))
    assert printed(report, capsys)[1:] == []


def test_a_report_with_failures_names_the_command_for_details_if_the_jobs_are_kept(
    report: DrainReport, capsys: Any
) -> None:
    report(settled(failed(5, JobState.FAILED)))
    hint = "details of a job: supervisor jobs show ID"
    assert printed(report, capsys)[-1] == hint
    report.print(failed_are_kept=False)
    assert hint not in capsys.readouterr().out


def test_only_the_first_failures_are_listed(report: DrainReport, capsys: Any) -> None:
    report(settled(*(failed(id, JobState.FAILED) for id in range(25))))
    lines = printed(report, capsys)
    assert sum(line.startswith("  job ") for line in lines) == 10
    assert "  ... and 15 more" in lines


def test_without_a_terminal_the_log_goes_to_standard_error(report: DrainReport) -> None:
    with progress(report, shown=False) as fd:
        assert fd == 2


def test_log_lines_appear_above_the_counts(report: DrainReport, capsys: Any) -> None:
    with progress(report, shown=True) as fd:
        os.write(fd, b"INFO one\nINFO two \xff\n")
    assert [line.strip() for line in capsys.readouterr().err.splitlines() if "INFO" in line] == [
        "INFO one",
        "INFO two \ufffd",
    ]
