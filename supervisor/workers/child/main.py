"""The child: takes jobs one by one from its channel, runs each, and writes its outcome before it starts the next.

It shares nothing with its siblings, and it touches nothing of the store.
"""

from __future__ import annotations

import _thread
import errno
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic, perf_counter_ns, sleep
from typing import Any, NoReturn

import orjson

from supervisor.events import HookFailed
from supervisor.handlers import Handler
from supervisor.jobs import Job
from supervisor.plugins.manager import PluginManager
from supervisor.text import strict_json as payloads
from supervisor.text.units import parse_duration
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import WorkerEnds, set_apart
from supervisor.workers.child import error_report as failure
from supervisor.workers.child.middleware import Middleware
from supervisor.workers.child.process_state import (
    TRIALS,
    ProcessState,
    SideEffectTimer,
    StackDumper,
    obey_signals_in_forks,
    quiet_signals,
)
from supervisor.workers.child.stdio import Input, Output, flush_streams
from supervisor.workers.system import linux
from supervisor.workers.system.process_tree import MARK

CHUNK = 1 << 16
SYS = vars(sys)
PERIOD = 0.25  # seconds; how often, at least, the heart looks whether a beat is due and arms the stack dump
SILENT_PERIODS = 2
PROGRAM = 100_000  # ns: none starts and ends in less
LONG = 1_000_000  # ns: what took so long can pay for the closer look at what it left
NO_JOB = 0


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What one worker is told."""

    number: int
    owner: str
    token: str
    heartbeat: float
    heartbeats: Mapping[str, float]
    result_limit: int


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What the hooks of a worker's life are given."""

    pid: int
    number: int


def worker_main(setup: WorkerSetup, ends: WorkerEnds, load: Callable[[], PluginManager]) -> NoReturn:
    """The whole life of a worker, in a process that is its alone. `load` gives the plugins, imported or yet to be."""
    status = 1
    try:
        ends = set_apart(ends)
        linux.die_with_parent(ends.parent_death)
        _settle_in(setup, ends)
        status = JobRunner(setup, ends, load()).run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        flush_streams()
        os._exit(status)


def _settle_in(setup: WorkerSetup, ends: WorkerEnds) -> None:
    signal.set_wakeup_fd(-1)
    quiet_signals()
    obey_signals_in_forks()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for pipe, fd in ((null, 0), (ends.stdout, 1), (ends.stderr, 2)):
        os.dup2(pipe, fd)
    os.close(null)
    os.environ[MARK] = f"{setup.owner}:{os.getpid()}"
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    linux.prefer_as_oom_victim()


class Heartbeat:
    """The one thread: writes a byte at each interval, as long as this process's interpreter turns."""

    def __init__(self, pipe: int, interval: float, shortest: float, stack: StackDumper) -> None:
        self.interval = interval
        self._pipe = pipe
        self._every_period = min(PERIOD, shortest)
        self._stack = stack

    def start(self) -> None:
        self._arm()
        # Not by `threading`: nothing waits for it to begin, and jobs that count threads don't see it.
        _thread.start_new_thread(self.run, ())

    def run(self) -> None:
        last = float("-inf")
        while True:
            try:
                now = monotonic()
                if now - last >= self.interval:  # by the job that runs now
                    last = now
                    self._write()
            except MemoryError:  # a job may have left no room for even a number: no reason not to beat
                self._write()
            sleep(self._every_period)
            self._arm()

    def _write(self) -> None:
        try:
            os.write(self._pipe, b".")
        except BrokenPipeError:  # the supervisor has gone, and a job had left the group that goes with it
            os.kill(os.getpid(), signal.SIGKILL)
        except OSError:  # the supervisor is stopped, and has beats enough to read; or a job has closed the pipe
            pass

    def _arm(self) -> None:
        try:
            self._stack.arm()
            self._stack.dump_after(max(SILENT_PERIODS * self._every_period, PERIOD))
        except Exception:  # and nothing that takes memory to suppress it, of which a job may have left too little
            pass


class JobRunner:
    def __init__(self, setup: WorkerSetup, ends: WorkerEnds, plugins: PluginManager) -> None:
        self._plugins = plugins
        self._handlers = plugins.handlers
        self._result_limit = setup.result_limit
        self._jobs, self._outcomes, self._permits = ends.jobs, ends.outcomes, ends.permits
        self._permit: bytes | None = None  # of a later frame, taken while looking for one of an earlier frame
        self._pid = os.getpid()
        self._info = WorkerInfo(self._pid, setup.number)
        token = setup.token.encode()
        self._stdin = Input()
        self._programs = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._stdout = Output("stdout", 1, ends.stdout, token)
        self._stderr = Output("stderr", 2, ends.stderr, token)
        self._stack = StackDumper(ends.stack)
        self._heartbeats = {**_handler_heartbeats(self._handlers), **setup.heartbeats}
        self._interval = setup.heartbeat
        self._heartbeat = Heartbeat(
            ends.heartbeat, setup.heartbeat, min([setup.heartbeat, *self._heartbeats.values()]), self._stack
        )
        self._middleware = _middleware(plugins)

    def run(self) -> int:
        """Until the supervisor has no more for it; gives the exit status."""
        self._heartbeat.start()
        self._plugins.call("supervisor_worker_started", worker=self._info)
        self._process_state = ProcessState(self._stack.arm)
        self._environ = os.environ
        self._side_effects = SideEffectTimer(self._process_state.mask)
        self._slight, self._serious = self._side_effects.look(TRIALS)
        for output in (self._stdout, self._stderr):
            output.settle(NO_JOB, mark=True)
        os.write(self._outcomes, wire.READY + b"\n")
        try:
            for line in self._frames():
                frame, jobs = orjson.loads(line)
                self._run_frame(bytes((frame,)), jobs)
                self._heartbeat.interval = self._interval  # idle, it is watched by the common timeout
                self._slight, self._serious = self._side_effects.look()
        except OSError as error:  # not of a job, whose errors are told as its outcome
            if error.errno != errno.EBADF:
                raise
            print("a job has closed what its worker talks with", file=sys.stderr)
            return 1
        self._plugins.call("supervisor_worker_stopping", worker=self._info)
        return 0

    def _frames(self) -> Iterator[bytes]:
        lines = wire.Lines()
        while data := os.read(self._jobs, CHUNK):
            for line in lines.split(data):
                if line == wire.NO_MORE:
                    return
                yield line

    def _run_frame(self, frame: bytes, jobs: list[list[Any]]) -> None:
        """Whoever takes a job's permit first has the job: where this finds none, the supervisor took the rest back."""
        outcomes, permits, permit = self._outcomes, self._permits, self._permit
        run, read, write = self._run_job, os.read, os.write
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
            reply = run(*row)
            while (written := write(outcomes, reply)) < len(reply):  # a signal came in between
                reply = reply[written:]
        self._permit = permit

    def _run_job(
        self, job_id: int, name: str, payload: str, attempt: int, queue: str, headers: str | None, priority: int
    ) -> bytes:
        """One attempt, as the line that tells of it. Hot path: plain on purpose."""
        handler = self._handlers.get(name)
        if handler is None:
            return wire.encode_failure(job_id, 0, "unknown", failure.unknown_handler(name))
        try:
            value = payloads.decode(payload)
            told_headers = None if headers is None else payloads.decode_object(headers, "headers")
        except payloads.NotJSON as error:
            return wire.encode_failure(job_id, 0, "rejected", failure.bad_payload(error))
        if self._heartbeats:
            self._heartbeat.interval = self._heartbeats.get(name, self._interval)
        job = Job(job_id, name, value, attempt, queue, told_headers, priority)
        middleware = self._middleware
        start = perf_counter_ns()
        try:
            result = handler.function(job) if middleware is None else middleware.run(job, handler.function)
            took = perf_counter_ns() - start
            if result is None:
                reply = b"[%d,%d,null]\n" % (job_id, took // 1000)
            else:
                reply = self._encode_result(job_id, took // 1000, result)
        except BaseException as error:
            took = perf_counter_ns() - start
            reply = wire.encode_failure(job_id, took // 1000, *failure.told(error, handler, globals()))
        out, err = self._stdout.stream, self._stderr.stream
        own = took if middleware is None else middleware.took or took
        if (
            own > self._serious
            or out.wrote
            or err.wrote
            or SYS.get("stdout") is not out
            or SYS.get("stderr") is not err
            or SYS.get("stdin") is not self._stdin.stream
            or os.environ is not self._environ
        ):
            self._clean_up(job_id, took)
        elif own > self._slight:
            self._tidy_up()
        return reply

    def _encode_result(self, job_id: int, took: int, result: Any) -> bytes:
        """A result that is no JSON fails the job for good: the handler has done its work, and must not do it twice."""
        try:
            text = payloads.encode(result, limit=self._result_limit, what="result")
        except payloads.NotJSON as error:
            return wire.encode_failure(job_id, took, "failed", failure.bad_result(error))
        return orjson.dumps([job_id, took, text]) + b"\n"

    def _tidy_up(self) -> None:
        self._never_wait_for_permits()
        self._stdout.make_blocking()
        self._stderr.make_blocking()
        self._process_state.restore_cheap()

    def _never_wait_for_permits(self) -> None:
        try:
            os.set_blocking(self._permits, False)
        except OSError:  # the job has closed it; its outcome is told all the same
            pass

    def _clean_up(self, job_id: int, took: int) -> None:
        if os.getpid() != self._pid:  # the job forked, and this is the copy that came back from it
            os._exit(0)
        long = took > LONG
        self._never_wait_for_permits()
        self._stdin.settle()
        mark = long or (took > PROGRAM and self._programs_ended())
        self._stdout.settle(job_id, mark=mark)
        self._stderr.settle(job_id, mark=mark)
        self._process_state.restore(thorough=long)

    def _programs_ended(self) -> bool:
        """Whether any has since this was last asked."""
        before, self._programs = self._programs, resource.getrusage(resource.RUSAGE_CHILDREN)
        return self._programs != before


def _handler_heartbeats(handlers: Mapping[str, Handler]) -> dict[str, float]:
    return {name: parse_duration(own.heartbeat) for name, own in handlers.items() if own.heartbeat is not None}


def _middleware(plugins: PluginManager) -> Middleware | None:
    """None if no plugin has any, so that nobody pays for it."""
    wrappers = plugins.wrappers("supervisor_run")
    return Middleware(wrappers) if wrappers else None


def report_hook(failed: HookFailed) -> None:
    """On the worker's stderr, which the supervisor logs; a hook that raises stops nothing."""
    print(f"{failed.hook} of {failed.plugin} raised {failed.error}\n{failed.traceback}".rstrip(), file=sys.stderr)


def freeze_memory() -> None:
    """Before forks: what is imported stays shared, since no collection touches it."""
    gc.collect()
    gc.freeze()
