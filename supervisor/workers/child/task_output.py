"""Attribute what the tasks of an async worker print to their jobs: a mark follows the text of one job before that of another."""

from __future__ import annotations

from collections.abc import Callable
from os import write

from supervisor.jobs import Job
from supervisor.workers.channels import WorkerEnds
from supervisor.workers.child.job_context import CURRENT
from supervisor.workers.child.progress import ProgressSender
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.child.stdio import Stream, install_stream

NO_JOB = 0


class TaskOutput:
    """The two output streams of an async worker. What programs write, or code that does not use the streams, has no job."""

    def __init__(self, token: str, ends: WorkerEnds, records: RecordHandler, progress: ProgressSender) -> None:
        self._progress = progress
        self._have_written: set[int] = set()  # ids of jobs
        records.on_record = lambda job: self._have_written.add(job.id)
        self._token = token.encode()
        self._pipes = {install_stream("stdout", 1): ends.stdout, install_stream("stderr", 2): ends.stderr}
        self._writers: dict[Stream, Job | None] = dict.fromkeys(self._pipes)  # of the text after the last mark
        for stream in self._pipes:
            self._mark(stream)
            stream.around_write = self._write

    def _write(self, stream: Stream, text: str, put: Callable[[str], int]) -> int:
        """Write the text of the running task; a mark follows each line."""
        writer, job = self._writers[stream], CURRENT.get()
        if writer is not job:
            if writer is not None:
                self._mark(stream)
            self._writers[stream] = job
            if job is not None:
                self._have_written.add(job.id)
        written = put(text)
        if text.endswith("\n"):
            self._mark(stream)
        return written

    def ended(self, job: Job) -> bool:
        """Mark the end of the job's text, and send its last progress. Return whether the job has written or logged anything."""
        if job.id in self._progress.unsent:
            self._progress.send(job.id)
            self._have_written.add(job.id)
        for stream, writer in self._writers.items():
            if writer is job:
                self._mark(stream)
                self._writers[stream] = None
        if job.id not in self._have_written:
            return False
        self._have_written.discard(job.id)
        return True

    def _mark(self, stream: Stream) -> None:
        writer = self._writers[stream]
        try:
            stream.flush()
            write(self._pipes[stream], b"%b %d\n" % (self._token, NO_JOB if writer is None else writer.id))
        except (OSError, ValueError):  # a job has closed it
            pass
        stream.wrote = False
