"""Run the jobs of async handlers at once: each is a task of one event loop, and its outcome is written as soon as it ends.

Each job is a frame of its own, with a number, which is also its permit. The worker takes permits as far as it may run more jobs, and
starts their jobs. Nothing that a job changes in the process is restored.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from logging import WARNING
from time import perf_counter_ns
from typing import Any

import orjson

from supervisor.jobs import Job
from supervisor.plugins.forked_copy import end_copy
from supervisor.plugins.manager import PluginManager
from supervisor.text import strict_json as payloads
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import CHUNK, WorkerEnds
from supervisor.workers.child import error_report
from supervisor.workers.child.async_interruption import AsyncInterrupter
from supervisor.workers.child.job_context import CURRENT, fresh_contexts
from supervisor.workers.child.job_threads import JobThreads
from supervisor.workers.child.loop_watch import LoopWatch
from supervisor.workers.child.middleware import async_middleware
from supervisor.workers.child.progress import ProgressSender
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.child.task_output import TaskOutput

MIN_THREADS = 32  # for asyncio.to_thread
STOPPED = "a job has called loop.stop() on the event loop of its worker, which goes on"


def run_async(
    hello: wire.Hello, token: str, concurrency: int, ends: WorkerEnds, records: RecordHandler, plugins: PluginManager,
    progress: ProgressSender,
) -> None:  # fmt: skip
    """Run jobs until the supervisor sends no more. Raises OSError if a job has closed a channel, and whatever ends the event loop.

    No task is cancelled at the end: if the loop has ended by itself, the jobs that ran must not seem to have failed.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # The default pool has few threads, and calls that hang would soon fill it.
    threads, output = JobThreads(max(MIN_THREADS, concurrency)), TaskOutput(token, ends, records, progress)
    loop.set_default_executor(threads)
    runner = AsyncJobRunner(hello, ends, concurrency, output, plugins, lambda job: _report_left(threads, job, records))
    os.register_at_fork(after_in_child=runner.leave_channels)
    main = loop.create_task(runner.run(records))
    while not main.done():
        try:
            loop.run_until_complete(main)
        except RuntimeError:
            if main.done() or loop.is_closed():
                raise
            records.report(WARNING, STOPPED)


def _report_left(threads: JobThreads, job: Job, records: RecordHandler) -> None:
    if (left := threads.left_by(job)) is not None:
        records.report(WARNING, left)


class AsyncJobRunner:
    """Runs jobs until the supervisor sends no more and the last one has ended."""

    def __init__(
        self, hello: wire.Hello, ends: WorkerEnds, concurrency: int, output: TaskOutput, plugins: PluginManager,
        failed: Callable[[Job], None],
    ) -> None:  # fmt: skip
        self._failed = failed
        self._interrupter = AsyncInterrupter(plugins.handlers, hello.interruptions)
        self._handlers = self._interrupter.handlers
        self._run_function = async_middleware(plugins.wrappers("supervisor_run"))
        self._output = output
        self._jobs: dict[asyncio.Task[None] | None, Job] = {}
        self._result_limit = hello.result_limit
        self._ends = ends
        self._lines = wire.Lines()
        self._is_copy = False
        self._permitted: set[int] = set()  # frames whose permit was taken before they have come
        self._waiting: dict[int, list[Any]] = {}  # jobs whose permit was not taken yet, by frame
        self._running: dict[int, asyncio.Task[None]] = {}
        self._concurrency = concurrency
        self._gathered: list[bytes] = []  # outcomes of this turn of the loop
        self._unsent: deque[bytes] = deque()
        self._writing = False
        self._no_more = False
        self._changed = asyncio.Event()
        self._fault: OSError | None = None

    async def run(self, records: RecordHandler) -> None:
        """Run jobs. Raises OSError if a job has closed a channel."""
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop, records, self._jobs.get, self._ends.heartbeat)
        self._watch.start()
        self._fresh_context = fresh_contexts()
        os.set_blocking(self._ends.outcomes, False)
        self._send(wire.READY + b"\n")
        self._loop.add_reader(self._ends.jobs, self._read_jobs)
        while self._fault is None and not (self._no_more and not (self._running or self._gathered or self._unsent)):
            self._changed.clear()
            with suppress(asyncio.CancelledError):  # a job may cancel all tasks of the loop
                await self._changed.wait()
        if self._fault is not None:
            raise self._fault

    def leave_channels(self) -> None:
        """Keep a copy of this process, which a job has forked, from the channels: its loop may run the tasks of the copy too."""
        self._is_copy = True
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (self._ends.jobs, self._ends.outcomes, self._ends.permits):
            os.dup2(null, fd)
        os.close(null)

    # the channels

    def _read_jobs(self) -> None:
        try:
            data = os.read(self._ends.jobs, CHUNK)
        except OSError as error:
            self._fail(error)
            return
        for line in self._lines.split(data):
            if line == wire.NO_MORE:
                data = b""
                break
            first, second = orjson.loads(line)
            if first in (wire.CANCEL, wire.JOB_CANCELLED):
                self._cancel(second, of_job=first == wire.JOB_CANCELLED)
            else:
                self._waiting.update(enumerate(second, first))
        if not data:
            self._loop.remove_reader(self._ends.jobs)
            self._no_more = True
            self._changed.set()
        self._take_permits()

    def _take_permits(self) -> None:
        """Start waiting jobs as far as there is room. Their permits were written before them: nothing else calls for a look."""
        room = self._concurrency - len(self._running) - len(self._permitted)
        if self._waiting and room > 0:
            self._read_permits(room)
        if self._permitted:
            self._start_permitted()

    def _read_permits(self, room: int) -> None:
        try:
            data = os.read(self._ends.permits, room * wire.PERMIT_BYTES)
        except BlockingIOError:  # the supervisor has reclaimed them
            return
        except OSError as error:
            self._fail(error)
            return
        if not data:
            self._fail(OSError(errno.EBADF, "the channel of permits has an end"))
            return
        self._permitted.update(wire.decode_permits(data))
        self._start_permitted()

    def _start_permitted(self) -> None:
        ready = self._permitted & self._waiting.keys()
        self._permitted -= ready
        for frame in sorted(ready):
            run = self._run_job(frame, *self._waiting.pop(frame))
            self._running[frame] = self._loop.create_task(run, context=self._fresh_context())

    def _cancel(self, frame: int, *, of_job: bool) -> None:
        """Cancel the task, or forget its job: its permit was reclaimed. `of_job` is whether its job was cancelled."""
        self._watch.note_cancel()
        if frame in self._permitted:  # a task must not be cancelled before its first step: it would have no outcome
            self._start_permitted()
            self._loop.call_soon(self._cancel_task, frame, of_job)
        else:
            self._waiting.pop(frame, None)
            self._cancel_task(frame, of_job)

    def _cancel_task(self, frame: int, of_job: bool) -> None:
        task = self._running.get(frame)
        if task is None:
            return
        job = self._jobs.get(task) if of_job else None
        if job is None or not self._interrupter.cancel(job):
            task.cancel()

    def _fail(self, error: OSError) -> None:
        self._fault = error
        self._changed.set()

    def _send(self, line: bytes) -> None:
        """Write the line at the end of this turn of the loop, together with all others: each write wakes the supervisor."""
        if not self._gathered:
            self._loop.call_soon(self._send_gathered)
        self._gathered.append(line)

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._unsent.append(b"".join(gathered))
        if len(self._unsent) == 1:
            self._send_unsent()
        self._take_permits()

    def _send_unsent(self) -> None:
        """Write what the pipe takes; a supervisor that is stopped must not stop the loop."""
        unsent = self._unsent
        try:
            while unsent:
                written = os.write(self._ends.outcomes, unsent[0])
                if written == len(unsent[0]):
                    unsent.popleft()
                else:
                    unsent[0] = unsent[0][written:]
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._ends.outcomes, self._send_unsent)
            return
        except OSError as error:
            self._fail(error)
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._ends.outcomes)
        if self._no_more:
            self._changed.set()

    # jobs

    async def _run_job(
        self,
        frame: int,
        job_id: int,
        name: str,
        payload: str,
        attempt: int,
        queue: str,
        headers: str | None,
        priority: int,
        max_retries: int,
    ) -> None:
        reply = await self._reply(frame, job_id, name, payload, attempt, queue, headers, priority, max_retries)
        if (job := self._jobs.pop(self._running.pop(frame), None)) is not None and self._output.ended(job):
            reply = wire.with_output(reply)
        self._send(reply)

    async def _reply(
        self, frame: int, job_id: int, name: str, payload: str, attempt: int, queue: str, headers: str | None,
        priority: int, max_retries: int,
    ) -> bytes:  # fmt: skip
        """Run one attempt; return the line with its outcome."""
        handler = self._handlers.get(name)
        if handler is None:
            return wire.encode_failure(job_id, 0, "unknown", error_report.unknown_handler(name))
        try:
            value = payloads.decode(payload)
            fields = None if headers is None else payloads.decode_object(headers, "headers")
        except payloads.NotJSON as error:
            return wire.encode_failure(job_id, 0, "rejected", error_report.bad_payload(error))
        job = Job(job_id, name, value, attempt, queue, fields, priority, max_retries)
        CURRENT.set(job)
        self._jobs[self._running[frame]] = job
        start = perf_counter_ns()
        try:
            result = await self._run_function(job, handler.function)
            took = _microseconds_since(start)
            self._end_if_copy(None)
        except BaseException as error:
            self._end_if_copy(error)
            self._failed(job)
            return wire.encode_failure(
                job_id, _microseconds_since(start), *error_report.report(error, handler, globals())
            )
        try:
            if not (limit := self._result_limit):
                payloads.unused(result, "result")
            text = payloads.encode(result, limit=limit, what="result") if limit and result is not None else None
        except payloads.NotJSON as error:
            return wire.encode_failure(job_id, took, "failed", error_report.bad_result(error))
        return orjson.dumps([job_id, took, text]) + b"\n"

    def _end_if_copy(self, error: BaseException | None) -> None:
        """End this process if it is a copy that the job forked, which has returned from the handler too."""
        if self._is_copy:
            end_copy(error and error_report.without_worker_frames(error, globals()))


def _microseconds_since(start: int) -> int:
    return (perf_counter_ns() - start) // 1000
