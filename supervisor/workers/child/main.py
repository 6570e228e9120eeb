"""The worker process: it takes jobs one by one, runs each, and writes its outcome before it starts the next.

It shares nothing with other workers, and does not use the store.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from os import read, write  # before the plugins, which may replace them, as eventlet does
from os import umask as set_umask
from time import perf_counter_ns
from typing import Any, NoReturn

import orjson

from supervisor.handlers import Handler
from supervisor.jobs import Job
from supervisor.plugins.forked_copy import end_copy
from supervisor.plugins.manager import PluginManager
from supervisor.text import strict_json as payloads
from supervisor.text.os_errors import no_more_threads
from supervisor.text.units import parse_duration
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import CHUNK, WorkerEnds, move_out_of_reach
from supervisor.workers.child import error_report, exit_functions
from supervisor.workers.child.heartbeat import Heartbeat
from supervisor.workers.child.identity import Identity, IdentityChanged
from supervisor.workers.child.interruption import Interrupter
from supervisor.workers.child.job_context import fresh_contexts
from supervisor.workers.child.job_resources import Lowered, PriorityLowered, with_resources
from supervisor.workers.child.middleware import Middleware, Wrapper
from supervisor.workers.child.process_state import (
    TRIALS,
    ProcessState,
    SideEffectTimer,
    obey_signals_in_forks,
    quiet_signals,
)  # fmt: skip
from supervisor.workers.child.progress import ProgressSender
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.child.stack_dump import StackDumper
from supervisor.workers.child.stdio import Input, Output, flush_streams
from supervisor.workers.system import linux, marks
from supervisor.workers.system.title import set_title

PROGRAM = 100_000  # ns: no program starts and exits in less
LONG = 1_000_000  # ns: after such a job a thorough look at its side effects costs little
NO_JOB = 0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The argument of the hooks supervisor_worker_started and supervisor_worker_stopping."""

    pid: int
    number: int


def worker_main(
    hello: wire.Hello, order: wire.Fork, ends: WorkerEnds, records: RecordHandler,
    load: Callable[[Callable[[str], None]], PluginManager],
) -> NoReturn:  # fmt: skip
    """Run the ordered worker in this process, and exit. `load` returns the plugins; if it imports them, it first reports each by
    the function that it gets."""
    status = 1

    def report(doing: str) -> None:
        with suppress(OSError):  # the supervisor has exited, or a job has closed the channel
            write(ends.outcomes, wire.encode_doing(doing))

    try:
        ends = move_out_of_reach(ends)
        records.connect(ends.stderr, order.token)
        linux.arm_parent_death(ends.parent_death)
        _set_up_process(hello.owner, ends)
        set_title(f"worker {order.number}")
        plugins = load(report)
        plugins.on_call = lambda call: report(call.text)
        status = _run(hello, order, ends, records, plugins, report)
    except BaseException as error:
        records.report_exception("the worker itself failed", error)
    finally:
        flush_streams()
        os._exit(status)


def _set_up_process(owner: str, ends: WorkerEnds) -> None:
    signal.set_wakeup_fd(-1)
    quiet_signals()
    obey_signals_in_forks()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for pipe, fd in ((null, 0), (ends.stdout, 1), (ends.stderr, 2)):
        os.dup2(pipe, fd)
    os.close(null)
    marks.set_mark(owner, os.getpid())
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    linux.prefer_as_oom_victim()


def _run(
    hello: wire.Hello, order: wire.Fork, ends: WorkerEnds, records: RecordHandler, plugins: PluginManager,
    report: Callable[[str], None],
) -> int:  # fmt: skip
    """Run the hooks, the jobs and the exit functions, and return the exit status."""
    status, stack, info = 0, StackDumper(ends.stack), WorkerInfo(os.getpid(), order.number)
    intervals, progress = _heartbeats(plugins, hello), ProgressSender(records)
    interrupter = Interrupter({} if order.concurrency else plugins.handlers, hello.interruptions)
    shortest, needed = min([hello.heartbeat, *intervals.values()]), interrupter if interrupter.needed else None
    heartbeat = Heartbeat(ends.heartbeat, hello.heartbeat, shortest, stack, needed, progress.send_due)
    try:
        heartbeat.start()
    except RuntimeError:
        os.write(ends.outcomes, wire.encode_not_ready(f"no thread for its heartbeat: {no_more_threads()}"))
        return 1
    plugins.call("supervisor_worker_started", worker=info)
    try:
        if order.concurrency:
            from supervisor.workers.child.async_main import run_async  # asyncio takes memory

            run_async(hello, order.token, order.concurrency, ends, records, plugins, progress)
        else:
            # It is made after the hooks, since it restores the state of the process that it finds.
            context = hello, order.token, ends, records, plugins.wrappers("supervisor_run"), interrupter.handlers
            JobRunner(*context, heartbeat, intervals, stack, progress).run()
    except OSError as error:  # not one of a job, whose errors become its outcome
        if error.errno != errno.EBADF:
            raise
        records.report(WARNING, "a job closed a channel of its worker: the worker exits and is replaced")
        return 1
    except PriorityLowered:
        status = wire.STATUS_LOWERED
    except IdentityChanged as reason:
        records.report(WARNING, str(reason))
        return 1
    plugins.call("supervisor_worker_stopping", worker=info)
    report("threads and exit functions (atexit) of plugins")
    exit_functions.run(partial(records.report, WARNING), status)
    return status


def _heartbeats(plugins: PluginManager, hello: wire.Hello) -> dict[str, float]:
    """Return the intervals of handlers that have their own, in seconds."""
    by_decorator = {name: it.heartbeat for name, it in plugins.handlers.items() if it.heartbeat is not None}
    return {**{name: parse_duration(each) for name, each in by_decorator.items()}, **hello.heartbeats}


class JobRunner:
    """Runs jobs until the supervisor has no more. After each job it restores what the job has changed in the process."""

    def __init__(
        self, hello: wire.Hello, token: str, ends: WorkerEnds, records: RecordHandler, wrappers: Sequence[Wrapper],
        handlers: Mapping[str, Handler], heartbeat: Heartbeat, intervals: Mapping[str, float], stack: StackDumper,
        progress: ProgressSender,
    ) -> None:  # fmt: skip
        self._progress = progress
        self._handlers = with_resources(handlers, hello.resources, self._end_after_job)
        self._records = records
        self._result_limit = hello.result_limit
        self._token = token.encode()
        self._pid = os.getpid()
        self._jobs, self._outcomes, self._permits = ends.jobs, ends.outcomes, ends.permits
        self._permit: bytes | None = None  # of a later frame, taken while one of an earlier frame was wanted
        self._heartbeat = heartbeat
        self._interval = hello.heartbeat
        self._intervals = intervals
        self._middleware = Middleware(wrappers) if wrappers else None
        self._stdin = Input()
        self._stdout = Output("stdout", 1, ends.stdout)
        self._stderr = Output("stderr", 2, ends.stderr)
        self._programs = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._process_state = ProcessState(stack.arm)
        self._identity = Identity()
        self._fresh_context = fresh_contexts()
        self._environ = os.environ
        context = None if self._middleware else self._fresh_context()
        self._umask = self._process_state.umask
        self._side_effects = SideEffectTimer(context)
        self._no_side_effects = self._side_effects.measure(TRIALS)  # ns
        os.register_at_fork(after_in_child=self._suspect_every_job)

    def run(self) -> None:
        """Run frames of jobs until the supervisor sends no more. Raises OSError if a job has closed a channel."""
        self._restore_output(NO_JOB, mark=True)
        write(self._outcomes, wire.READY + b"\n")
        for line in self._frames():
            frame, jobs = orjson.loads(line)
            self._run_frame(bytes((frame,)), jobs)
            self._records.job = None
            self._heartbeat.interval = self._interval  # without a job, the common heartbeat_timeout applies
            self._no_side_effects = self._side_effects.measure()

    def _frames(self) -> Iterator[bytes]:
        lines = wire.Lines()
        while data := read(self._jobs, CHUNK):
            for line in lines.split(data):
                if line == wire.NO_MORE:
                    return
                yield line

    def _run_frame(self, frame: bytes, jobs: list[list[Any]]) -> None:
        """Run the jobs of the frame that have a permit: the supervisor has reclaimed the others. Hot path."""
        outcomes, permits, permit = self._outcomes, self._permits, self._permit
        run = self._run_job
        for row in jobs:
            if permit is None:
                try:
                    permit = read(permits, 1)
                except BlockingIOError:
                    break
            if permit != frame:
                if not permit:
                    raise OSError(errno.EBADF, "the channel of permits has an end")
                break
            permit = None
            reply = run(row)
            while (written := write(outcomes, reply)) < len(reply):  # a signal came in between
                reply = reply[written:]
        self._permit = permit

    def _run_job(self, row: list[Any]) -> bytes:
        """Run one attempt; return the line with its outcome. Hot path."""
        job_id, name, payload, attempt, queue, headers, priority, max_retries = row
        try:
            handler = self._handlers[name]
            value = payloads.decode(payload)
            fields = None if headers is None else payloads.decode_object(headers, "headers")
        except KeyError:
            return wire.encode_failure(job_id, 0, "unknown", error_report.unknown_handler(name))
        except payloads.NotJSON as error:
            return wire.encode_failure(job_id, 0, "rejected", error_report.bad_payload(error))
        if self._intervals:
            self._heartbeat.interval = self._intervals.get(name, self._interval)
        job = self._records.job = Job(job_id, name, value, attempt, queue, fields, priority, max_retries)
        middleware = self._middleware
        context = self._fresh_context()
        start = perf_counter_ns()
        try:
            if middleware is None:
                result = context.run(handler.function, job)
            else:
                result = context.run(middleware.run, job, handler.function)
            took = perf_counter_ns() - start
            us = took // 1000
            reply = b"[%d,%d,null]\n" % (job_id, us) if result is None else self._encode_result(job_id, us, result)
        except BaseException as error:
            took = perf_counter_ns() - start
            self._end_if_copy(error)
            reply = wire.encode_failure(job_id, took // 1000, *error_report.report(error, handler, globals()))
        out, err = self._stdout.stream, self._stderr.stream
        try:
            replaced = sys.stdout is not out or sys.stderr is not err or sys.stdin is not self._stdin.stream
        except AttributeError:  # the job has deleted one of them
            replaced = True
        set_umask(self._umask)
        own = took if middleware is None else middleware.took or took
        if own > self._no_side_effects or out.wrote or err.wrote or replaced or os.environ is not self._environ:
            reply = self._restore(job_id, took, reply)
        return reply

    def _end_if_copy(self, error: BaseException) -> None:
        """End this process if it is a copy that the job forked, in which the handler has raised the error too."""
        if os.getpid() != self._pid:
            end_copy(error_report.without_worker_frames(error, globals()))

    def _encode_result(self, job_id: int, took: int, result: Any) -> bytes:
        """Return the outcome. If the result is not JSON, the job fails for good: its work must not be done twice."""
        try:
            if not (limit := self._result_limit):
                payloads.unused(result, "result")
            text = payloads.encode(result, limit=limit, what="result") if limit else None
        except payloads.NotJSON as error:
            return wire.encode_failure(job_id, took, "failed", error_report.bad_result(error))
        return orjson.dumps([job_id, took, text]) + b"\n"

    def _unblock_permits(self) -> None:
        """Make reads of permits non-blocking again, since the worker must never wait for a permit."""
        try:
            os.set_blocking(self._permits, False)
        except OSError:  # the job has closed it; its outcome is sent all the same
            pass

    def _suspect_every_job(self) -> None:
        """Make a copy that a job or a wrapper forked call `_restore` after the job, however short. `_restore` ends the copy."""
        self._no_side_effects = -1

    def _end_after_job(self) -> None:
        """Make the worker exit after the job that has just ended."""
        self._no_side_effects = -1
        self._identity = Lowered()

    def _restore(self, job_id: int, took: int, reply: bytes) -> bytes:
        """Return the line with the outcome, with a note if the job has written something."""
        if os.getpid() != self._pid:  # the job forked, and this is the copy, which returned from the handler too
            end_copy(None)
        long = took > LONG
        self._unblock_permits()
        self._stdin.restore()
        if self._progress.unsent:
            self._progress.send(job_id)
        if self._restore_output(job_id, mark=long or (took > PROGRAM and self._programs_ended())):
            reply = wire.with_output(reply)
        moved = self._process_state.restore(thorough=long)
        try:
            self._identity.check(thorough=moved or took > PROGRAM)
        except IdentityChanged:
            while reply:
                reply = reply[write(self._outcomes, reply) :]
            raise
        return reply

    def _restore_output(self, job_id: int, *, mark: bool) -> bool:
        """Restore the streams, and mark those written to; with `mark` both, since the supervisor may have read their output. Return
        whether one was written to."""
        any_wrote = False
        for output in (self._stdout, self._stderr):
            wrote = output.restore()
            any_wrote = any_wrote or wrote
            if wrote or mark:
                try:
                    write(output.pipe, b"%b %d\n" % (self._token, job_id))
                except BlockingIOError:  # a program of the job has made the pipe non-blocking, and it is full
                    pass
                output.marked()
        return any_wrote

    def _programs_ended(self) -> bool:
        """Return whether any program has ended since the last call."""
        before, self._programs = self._programs, resource.getrusage(resource.RUSAGE_CHILDREN)
        return self._programs != before
