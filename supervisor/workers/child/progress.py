"""Send the progress of jobs to the supervisor: at most once a second, and the last one before the end of its job."""

from __future__ import annotations

from itertools import count
from time import monotonic  # before the plugins, which may replace it

from supervisor.jobs import Job, report_jobs_to
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.child.stdio import note_written
from supervisor.workers.interface import WorkerProgress

INTERVAL = 1.0  # seconds


class ProgressSender:
    """The reporter of the jobs of a worker. Its heartbeat thread calls `send_due`; no call of a job waits for the supervisor."""

    def __init__(self, records: RecordHandler) -> None:
        self.unsent: dict[int, Job] = {}
        self._records = records
        self._numbers = count(1)
        self._due = 0.0
        self.logged = records.log_for
        report_jobs_to(self)

    def progressed(self, job: Job) -> None:
        self.unsent[job.id] = job
        note_written()

    def send_due(self) -> None:
        """Send what is due, unless the supervisor is behind with reading: this thread must not wait."""
        if not self.unsent or monotonic() < self._due:
            return
        for job_id in list(self.unsent):
            if not self._records.has_room():
                return
            self.send(job_id)
        self._due = monotonic() + INTERVAL

    def send(self, job_id: int) -> None:
        """Send the last progress of the job, if it was not sent yet."""
        job = self.unsent.pop(job_id, None)
        if job is None:
            return
        number = next(self._numbers)  # before the progress is read: what another thread sends later is not older
        if (progress := job.last_progress) is not None:
            self._records.send(WorkerProgress(job_id, job.attempt, number, *progress))
