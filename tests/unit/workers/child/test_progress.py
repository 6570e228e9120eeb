"""A worker sends the progress of its jobs once a second, and the last one before the end of the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.jobs import Job, report_jobs_to
from supervisor.workers.child import progress
from supervisor.workers.child.progress import INTERVAL, ProgressSender


class Records:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.room = True
        self.log_for = None

    def has_room(self) -> bool:
        return self.room

    def send(self, record: Any) -> None:
        self.sent.append((record.job_id, record.number, record.done))


class Here:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.noted = 100.0, 0
        monkeypatch.setattr(progress, "monotonic", lambda: self.now)
        monkeypatch.setattr(progress, "note_written", self._note)
        self.records: Any = Records()
        self.sender = ProgressSender(self.records)
        self.job = Job(1, "mail")

    def _note(self) -> None:
        self.noted += 1


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    yield Here(monkeypatch)
    report_jobs_to(None)


def test_of_many_reports_the_last_one_is_sent_once_a_second(here: Here) -> None:
    for done in range(100):
        here.job.progress(done)
    here.sender.send_due()
    here.job.progress(100)
    here.sender.send_due()
    assert here.records.sent == [(1, 1, 99)]
    here.now += INTERVAL
    here.sender.send_due()
    here.now += INTERVAL
    here.sender.send_due()
    assert here.records.sent == [(1, 1, 99), (1, 2, 100)], "nothing is sent twice"


def test_the_last_one_is_sent_at_the_end_of_the_job_whatever_was_sent_before(here: Here) -> None:
    here.job.progress(1)
    here.sender.send_due()
    here.job.progress(2)
    here.sender.send(1)
    here.sender.send(1)
    assert here.records.sent == [(1, 1, 1), (1, 2, 2)]


def test_each_job_of_an_async_worker_is_sent(here: Here) -> None:
    other = Job(2, "mail")
    here.job.progress(1)
    other.progress(5)
    here.sender.send_due()
    assert [(id, done) for id, _, done in here.records.sent] == [(1, 1), (2, 5)]


def test_while_the_supervisor_does_not_read_nothing_waits_and_nothing_is_lost(here: Here) -> None:
    here.records.room = False
    here.job.progress(1)
    here.sender.send_due()
    assert here.records.sent == []
    here.records.room = True
    here.sender.send_due()
    assert here.records.sent == [(1, 1, 1)]


def test_a_report_makes_the_worker_look_at_the_job_at_its_end(here: Here) -> None:
    here.job.progress(1)
    assert here.noted == 1
