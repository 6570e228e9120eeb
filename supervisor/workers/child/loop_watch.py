"""Name jobs that block the event loop of an async worker, with their stack, while they do so."""

from __future__ import annotations

import asyncio
import signal
import traceback
from _thread import get_ident, start_new_thread  # before the plugins, which may replace these
from collections.abc import Callable
from contextvars import Context
from logging import WARNING
from signal import pthread_kill
from time import monotonic, sleep
from types import FrameType

from supervisor.jobs import Job
from supervisor.workers.child.error_report import HIDDEN
from supervisor.workers.child.job_context import CURRENT
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.system.linux import LOOP_SIGNAL

FIRST_REPORT = 0.25  # seconds for which the loop has not turned; each later report comes after twice as long
TURN = 0.05  # seconds
BLOCKS = "blocks the event loop of its worker for {:.2f}s: all other jobs there wait; await what takes long, or call it with asyncio.to_thread"


class LoopWatch:
    """A thread that looks whether the loop turns. `job_of` returns the job that a task runs.

    It sends a signal to the main thread, whose handler reports the stack there: the frames of a thread that runs may not be read from
    another one. Code in C that does not return is named by the thread, without its stack.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        records: RecordHandler,
        job_of: Callable[[asyncio.Task[None] | None], Job | None],
    ) -> None:
        self._loop = loop
        self._records = records
        self._job_of = job_of
        self._main = get_ident()
        self._turned = monotonic()
        self._reported = 0.0

    def start(self) -> None:
        signal.signal(LOOP_SIGNAL, self._interrupted)
        self._note_turn()
        start_new_thread(self._watch, ())

    def _note_turn(self) -> None:
        self._turned = monotonic()
        self._loop.call_later(TURN, self._note_turn)

    def _watch(self) -> None:
        turned, limit = 0.0, FIRST_REPORT
        while True:
            sleep(TURN)
            if self._turned != turned:
                turned, limit = self._turned, FIRST_REPORT
            blocked = monotonic() - turned
            if blocked >= limit:
                limit = 2 * blocked
                pthread_kill(self._main, LOOP_SIGNAL)
                sleep(TURN)
                if self._reported < turned:
                    self._reported = monotonic()
                    Context().run(self._report, blocked, None)

    def _interrupted(self, _number: int, frame: FrameType | None) -> None:
        blocked = monotonic() - self._turned
        if blocked >= FIRST_REPORT:
            self._reported = monotonic()
            Context().run(self._report, blocked, frame)

    def _report(self, blocked: float, frame: FrameType | None) -> None:
        job = self._job_of(asyncio.current_task(self._loop))
        if job is None:  # it has just ended, or a callback of a library takes long
            return
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
