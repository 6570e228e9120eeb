"""Jobs report how far they have come, and log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from supervisor.jobs import MAX_PROGRESS, Job, report_jobs_to


class Reporter:
    def __init__(self) -> None:
        self.received: list[Any] = []

    def progressed(self, job: Job) -> None:
        self.received.append((job.id, job.last_progress))

    def logged(self, job: Job, level: int, message: str) -> None:
        self.received.append((job.id, level, message))


@pytest.fixture
def reporter() -> Iterator[Reporter]:
    before = report_jobs_to(reporter := Reporter())
    yield reporter
    report_jobs_to(before)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((3,), (3, None, None)),
        ((0, 0, ""), (0, 0, "")),
        ((2.5, 10, "half"), (2.5, 10, "half")),
        ((11, 10), (11, 10, None)),
        ((Decimal("7"), Fraction(1, 2)), (7, 0.5, None)),
        ((1, 2, 3), (1, 2, "3")),
        ((1, 2, "\ud800\x00"), (1, 2, "\\ud800\\x00")),
    ],
)
def test_progress_is_kept_as_numbers_and_text(given: tuple[Any, ...], kept: tuple[Any, ...]) -> None:
    job = Job(1, "mail")
    assert job.last_progress is None
    job.progress(*given)
    assert job.last_progress == kept


def test_a_long_message_is_cut() -> None:
    job = Job(1, "mail")
    job.progress(1, message="\x00" * 300)
    assert job.last_progress is not None and len(job.last_progress.message or "") == 200


@pytest.mark.parametrize("wrong", ["3", b"3", [], {}, object(), 1j])
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"progress: done: expected a number, got"):
        Job(1, "mail").progress(wrong)
    with pytest.raises(TypeError, match=r"progress: total: expected a number, got"):
        Job(1, "mail").progress(1, wrong)


@pytest.mark.parametrize("wrong", [-1, -0.5, float("nan"), float("inf"), MAX_PROGRESS * 4, 10**400])
def test_a_number_that_shows_nothing_is_refused(wrong: Any) -> None:
    job = Job(1, "mail")
    with pytest.raises((TypeError, ValueError), match=r"progress: total: expected a number"):
        job.progress(1, wrong)
    assert job.last_progress is None


def test_a_reporter_receives_progress_and_messages(reporter: Reporter) -> None:
    job = Job(7, "mail")
    job.progress(1, 2)
    job.log("%d of %s", 1, "two")
    job.log("100%", level=logging.ERROR)
    assert reporter.received == [(7, (1, 2, None)), (7, logging.INFO, "1 of two"), (7, logging.ERROR, "100%")]


def test_arguments_that_do_not_fit_fail_no_job(reporter: Reporter) -> None:
    Job(7, "mail").log("count %d", "three")
    ((_, _, message),) = reporter.received
    assert message.startswith("unreadable log message 'count %d': TypeError: %d format")


def test_without_a_worker_messages_go_to_the_logger_of_jobs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Job(7, "mail").log("%d of %s", 1, "two")
    assert caplog.record_tuples == [("job", logging.INFO, "1 of two")]
