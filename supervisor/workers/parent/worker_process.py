"""One worker process, as the supervisor controls it: its start, its signals, its exit."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from enum import Enum
from functools import partial
from typing import Any, Protocol

from supervisor.workers.channels import SupervisorEnds, close_all
from supervisor.workers.interface import ExitReport, Timeouts, WorkerListener, WorkerOptions, where_it_hangs
from supervisor.workers.parent.async_job_channel import AsyncJobChannel
from supervisor.workers.parent.forkserver_client import ForkserverClient
from supervisor.workers.parent.heartbeat_reader import HeartbeatReader
from supervisor.workers.parent.job_channel import JobChannel
from supervisor.workers.parent.stack_text import StackReader
from supervisor.workers.system import linux, stuck
from supervisor.workers.system import process_tree as proctree

MAX_REASON = 500  # characters
NOT_READY = "not ready {:g}s after its start (plugins.import_timeout of {:g}s and {:g}s): {}"
STACK_QUIET = 0.002  # seconds: after such a pause nothing is added to a stack that is whole


class Phase(Enum):
    OPEN = "open"  # it takes jobs, or will when it is started
    RETIRING = "retiring"  # it was asked to exit after its jobs
    DUMPING = "dumping"  # its stack was requested; SIGKILL follows
    KILLED = "killed"  # SIGKILL was sent, or will be as soon as its pid is known
    STUCK = "stuck"  # SIGKILL has not ended it for seconds; it does no more, and has been reported as ended
    EXITED = "exited"  # it exited, and not from a SIGKILL of the supervisor; or it could not be started


class ProcessOwner(Protocol):
    """The backend, as its worker processes use it."""

    def drop_order(self, process: ForkedWorker) -> bool: ...
    def reap(self, process: ForkedWorker) -> None: ...
    def oom_killer_has_struck(self) -> bool: ...


class ForkedWorker:
    """Implements WorkerProcess: a process forked or spawned by a forkserver."""

    def __init__(
        self, number: int, serial: int, ends: SupervisorEnds, owner: ProcessOwner, listener: WorkerListener,
        loop: asyncio.AbstractEventLoop, options: WorkerOptions, timeouts: Timeouts, concurrency: int = 0,
    ) -> None:  # fmt: skip
        self.concurrency = concurrency
        self.number = number
        self.serial = serial
        self.token = secrets.token_hex(16)
        self.pid: int | None = None
        self.phase = Phase.OPEN
        self.forkserver: ForkserverClient | None = None  # the one that was ordered to fork it
        self.start_error: str | None = None
        self.doing = ""
        self._ends: SupervisorEnds | None = ends
        self._owner = owner
        self._listener = listener
        self._loop = loop
        self._timeouts = timeouts
        self._import_timeout = options.import_timeout
        self._pidfd: int | None = None
        self._unready: asyncio.TimerHandle | None = None
        self._killing: asyncio.TimerHandle | None = None
        self._warned = False  # that it can't be killed
        self._survivors: tuple[str, ...] = ()
        self._stack = StackReader(loop, ends.stack, self._stack_received)
        reported = None
        if concurrency:
            from supervisor.workers.loop_reports import LoopState  # of async workers only

            self.loop_state = LoopState(loop.time)
            reported = self.loop_state.receive
        self._heartbeat = HeartbeatReader(
            loop, ends.heartbeat, listener.heartbeat, self.channel_broken, self.channel_closed, reported
        )
        of_jobs = loop, ends, self.token.encode(), self, listener, options.result_limit
        self._jobs = jobs = (AsyncJobChannel if concurrency else JobChannel)(*of_jobs)
        self.async_jobs: Any = jobs
        # Hot paths: callers call the channel itself.
        self.send, self.reclaim, self.untaken, self.drain = jobs.send, jobs.reclaim, jobs.untaken, jobs.drain
        self.correct = jobs.correct

    # its start

    def forked(self, pid: int, pidfd: int) -> None:
        def overdue() -> None:
            where = where_it_hangs(self.doing)
            self._listener.not_ready(
                NOT_READY.format(seconds, self._import_timeout, self._timeouts.worker_ready, where)
            )

        self.pid = pid
        self._pidfd = pidfd
        self._loop.add_reader(pidfd, self._exited)
        if self.concurrency:
            self.loop_state.ask = partial(linux.send_signal, pidfd, linux.LOOP_SIGNAL)
        seconds = self._import_timeout + self._timeouts.worker_ready
        self._unready = self._loop.call_later(seconds, overdue)
        self._jobs.listen()
        if self.phase is Phase.KILLED:
            self._kill_now()

    def became_ready(self) -> None:
        _cancel(self._unready)
        self.doing = ""
        self._listener.ready()

    def not_ready(self, why: str) -> None:
        """It exits by itself."""
        self.start_error = why[:MAX_REASON]

    # the end that the supervisor wants

    def retire(self, *, cancelled: bool = False) -> None:
        if cancelled and self._pidfd is not None and not self._is_ending():
            linux.send_signal(self._pidfd, linux.CANCEL_SIGNAL)
        if self.phase is not Phase.OPEN:
            return
        self.phase = Phase.RETIRING
        if not self._owner.drop_order(self):
            self._jobs.send_no_more()

    def kill(self, *, with_stack: bool = False) -> None:
        if self._is_ending():
            return
        self._jobs.stop_sending()
        if self._pidfd is None or not with_stack:
            self._kill_now()
            return
        self.phase = Phase.DUMPING
        # The signal may interrupt the call that hangs, so that the job ends; but it has failed already, and must not succeed.
        self._jobs.ignore_outcomes()
        self._stack.expect()
        linux.send_signal(self._pidfd, linux.STACK_SIGNAL)
        self._killing = self._loop.call_later(self._timeouts.stack, self._kill_now)

    def _is_ending(self) -> bool:
        return self.phase in (Phase.DUMPING, Phase.KILLED, Phase.STUCK, Phase.EXITED)

    def _stack_received(self) -> None:
        if self.phase is Phase.DUMPING and self._killing is not None and self._stack.is_whole():
            deadline = min(self._killing.when(), self._loop.time() + STACK_QUIET)
            self._killing.cancel()
            self._killing = self._loop.call_at(deadline, self._kill_now)

    def _kill_now(self) -> None:
        self._killing = None
        self.phase = Phase.KILLED
        if self.pid is None or self._pidfd is None:  # its pid will follow, if the order was sent
            self._owner.drop_order(self)
            return
        below = proctree.Snapshot(self.pid)
        self._kill_group()
        linux.send_signal(self._pidfd, signal.SIGKILL)  # it may have joined another group
        self._survivors = below.kill()
        self._killing = self._loop.call_later(self._timeouts.kill, self._outlived_kill)

    def _outlived_kill(self) -> None:
        """Report its end in advance if it is certain, so that its job need not wait for it; else kill it again."""
        assert self.pid is not None and self._pidfd is not None
        if stuck.has_exited(self._pidfd):  # the loop is about to find that
            return
        where = stuck.where(self.pid)
        if not stuck.will_do_no_more(self.pid):
            if not self._warned:
                self._listener.warn(f"can't be killed ({where}): its job stays in flight until it exits")
            self._warned = True
            self._kill_now()
            return
        self.phase = Phase.STUCK
        self.drain()
        stderr, stack = self._last_output()
        report = ExitReport(
            self.pid, stack=stack, stderr=stderr, stuck=where, survivors=self._survivors, doing=self.doing
        )
        self._listener.ended(report)
        self._close_channels()

    def _kill_group(self) -> None:
        """Kill the group of the process. This is safe until it is reaped: before, no other process can have its pid."""
        if self.pid is not None and self._pidfd is not None and linux.exists(self._pidfd):
            linux.kill_group(self.pid)

    # faults (JobChannelOwner)

    def channel_broken(self, why: str) -> None:
        if not self._is_ending():
            self._listener.channel_broken(why)
            self.kill()

    def channel_closed(self, why: str) -> None:
        """Expect an exit, which should be the cause of the closed channel; if it does not follow, the channel is broken."""
        if not self._is_ending():
            self._loop.call_later(self._timeouts.closed_channel, self.channel_broken, why)

    def job_channel_closed(self, why: str) -> None:
        if self.phase is not Phase.RETIRING:
            self.channel_closed(why)

    # its exit

    def _exited(self) -> None:
        """Kill what is left of the group, then have the process reaped: as long as it is a zombie, its pid is not reused."""
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        self._note_exit()
        self._kill_group()
        if self.phase is not Phase.STUCK:
            self.drain()
            self._listener.exited()
        self._owner.reap(self)

    def _note_exit(self) -> None:
        if not self._was_killed():
            self.phase = Phase.EXITED
        self._jobs.stop_sending()
        _cancel(self._unready)
        _cancel(self._killing)
        self._killing = None

    def _was_killed(self) -> bool:
        return self.phase in (Phase.KILLED, Phase.STUCK)

    def reaped(self, status: int | None, peak: int | None) -> None:
        """Report the end, or why there was no start, and close the channels. `status` is that of waitpid, `peak` is bytes."""
        self._note_exit()
        stderr, stack = self._last_output()
        code = None if status is None else os.waitstatus_to_exitcode(status)  # below zero: the number of a signal
        name = linux.name_of_signal(-code) if code is not None and code < 0 else None
        oom = code == -signal.SIGKILL and not self._was_killed() and self._owner.oom_killer_has_struck()
        code = code if name is None else None
        pid = (self.pid or 0) if self.start_error is None else 0
        self._listener.ended(
            ExitReport(
                pid, code, name, peak, oom, stack, stderr, self.start_error, survivors=self._survivors, doing=self.doing
            )
        )
        self._close()

    def _last_output(self) -> tuple[str | None, str | None]:
        """Return the end of the process's stderr, and its stack; neither if its channels are closed."""
        return (None, None) if self._ends is None else (self._jobs.finish_output(), self._stack.stack())

    def abandon(self) -> None:
        """Stop waiting for the process, and receive nothing more from it."""
        if self.phase is not Phase.STUCK:
            self._listener.warn(f"has not exited {self._timeouts.kill:g}s after SIGKILL, and is left running")
            self._last_output()
            self._close()

    def release_in_copy(self) -> None:
        """Close, in a copy of this process, the write end that keeps the worker running."""
        if self._ends is not None:
            os.close(self._ends.parent_death)

    def _close(self) -> None:
        self._close_channels()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _close_channels(self) -> None:
        _cancel(self._unready)
        _cancel(self._killing)
        ends, self._ends = self._ends, None
        if ends is not None:
            self._jobs.close()
            self._heartbeat.close()
            self._stack.close()
            close_all(ends)

    # what it uses

    def cpu_seconds(self) -> float | None:
        now = None if self.pid is None or self._pidfd is None else proctree.stat(self.pid)
        return None if now is None or now.state in proctree.ENDED else now.cpu_seconds

    def memory(self) -> int | None:
        return None if self.pid is None or self._pidfd is None else proctree.resident_bytes(self.pid)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
