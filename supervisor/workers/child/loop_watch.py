"""Name jobs that block the event loop of an async worker, with their stack, while they do so."""

from __future__ import annotations

import asyncio
import signal
import traceback
from _thread import get_ident, start_new_thread  # before the plugins, which may replace these
from collections.abc import Callable
from contextvars import Context
from logging import WARNING
from os import write
from signal import pthread_kill
from time import monotonic, process_time, sleep
from types import FrameType

from supervisor.jobs import Job
from supervisor.workers import loop_reports
from supervisor.workers.child.error_report import HIDDEN
from supervisor.workers.child.job_context import CURRENT
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.system.linux import LOOP_SIGNAL

FIRST_REPORT = 0.25  # seconds for which the loop has not turned; each later report comes after twice as long
TURN = 0.05  # seconds
BLOCKS = "blocks the event loop of its worker for {:.2f}s: all other jobs there wait; await what takes long, or call it with asyncio.to_thread"


class LoopWatch:
    """A thread that looks whether the loop turns, and reports to the supervisor and the log by what it is blocked. `job_of` returns the
    job that a task runs; `pipe` is that of the heartbeats.

    It sends a signal to the main thread, whose handler reports the stack there: the frames of a thread that runs may not be read from
    another one. Code in C that does not return is named by the thread, without its stack.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        records: RecordHandler,
        job_of: Callable[[asyncio.Task[None] | None], Job | None],
        pipe: int,
    ) -> None:
        self._loop = loop
        self._records = records
        self._job_of = job_of
        self._pipe = pipe
        self._main = get_ident()
        self._turned = monotonic()
        self._since = 0.0
        """When the loop has turned, or has begun the task that it is in since then."""
        self._reported = 0.0
        self._looked = 0.0, 0.0
        """When the thread began its last wait, and the CPU time that the process had used by then."""
        self._cancels = self._cancels_reported = 0

    def start(self) -> None:
        signal.signal(LOOP_SIGNAL, self._interrupted)
        self._note_turn()
        start_new_thread(self._watch, ())

    def note_cancel(self) -> None:
        """Note that an order to cancel a task was read, and report it soon, with those that are read at the same time."""
        self._cancels += 1
        if self._cancels == self._cancels_reported + 1:
            self._loop.call_soon(self._report_cancels)

    def _report_cancels(self) -> None:
        self._cancels_reported = self._cancels
        self._write(loop_reports.encode_read(self._cancels))

    def _write(self, line: bytes) -> None:
        try:
            write(self._pipe, line)
        except OSError:  # it is full, since the supervisor is stopped; or a job has closed it
            pass

    def _note_turn(self) -> None:
        self._turned = monotonic()
        self._loop.call_later(TURN, self._note_turn)

    def _watch(self) -> None:
        seen, limit = (0.0, 0), FIRST_REPORT
        while True:
            self._looked = monotonic(), process_time()
            sleep(TURN)
            was_stopped = self._was_stopped()
            now = self._step()
            if now != seen or was_stopped:
                if limit > FIRST_REPORT:
                    self._write(loop_reports.TURNS)
                self._since = monotonic() if was_stopped or now[0] == seen[0] else now[0]
                seen, limit = now, FIRST_REPORT
            blocked = monotonic() - self._since
            if blocked >= limit:
                limit = 2 * blocked
                pthread_kill(self._main, LOOP_SIGNAL)
                sleep(TURN)
                if self._reported < self._since and self._step() == seen:
                    task = asyncio.current_task(self._loop)
                    self._reported = monotonic()
                    self._report(self._job_of(task), task is not None, None)

    def _was_stopped(self) -> bool:
        """Return whether the process as a whole did not run for a time just now: nothing has blocked it."""
        begun, used = self._looked
        late = monotonic() - begun - TURN
        return late > FIRST_REPORT and process_time() - used < late / 2

    def _step(self) -> tuple[float, int]:
        """Return what changes whenever the loop goes on: tasks that are quick, but many, do not block it."""
        return self._turned, id(asyncio.current_task(self._loop))

    def _interrupted(self, _number: int, frame: FrameType | None) -> None:
        if self._was_stopped():  # the supervisor has asked meanwhile
            return
        if monotonic() - max(self._since, self._turned) >= FIRST_REPORT:
            self._reported = monotonic()
            # Tasks that a job has started have its context, and so have callbacks. These may be many, and each of them quick.
            self._report(CURRENT.get(), asyncio.current_task(self._loop) is not None, frame)

    def _report(self, job: Job | None, in_task: bool, frame: FrameType | None) -> None:
        blocked = monotonic() - self._since
        self._write(loop_reports.encode_blocks(job.id if job is not None and in_task else None, blocked))
        if job is not None:  # else a library or the loop itself takes long
            Context().run(self._log, job, blocked, frame)

    def _log(self, job: Job, blocked: float, frame: FrameType | None) -> None:
        CURRENT.set(job)
        stack = "".join(traceback.format_list(traceback.StackSummary.extract(_of_plugin(frame))))
        shown = f"Stack (most recent call last):\n{stack}" if stack else ""
        self._records.report(WARNING, BLOCKS.format(blocked), shown)


def _of_plugin(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    """Return the frames of the job with their lines, the outermost first."""
    frames: list[tuple[FrameType, int]] = []
    while frame is not None and not any(frame.f_globals is each for each in HIDDEN):
        frames.insert(0, (frame, frame.f_lineno))
        frame = frame.f_back
    return frames
