"""Start and replace the forkserver, keep the workers forked from each, and reap these processes. This part knows no jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from supervisor.errors import NoForkserver
from supervisor.plugins.reports import SourceReport
from supervisor.retry import GrowingDelay
from supervisor.text.os_errors import reason
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import WorkerEnds, close_all, open_channels
from supervisor.workers.interface import (
    USUAL_TIMEOUTS,
    BackendListener,
    Timeouts,
    WorkerListener,
    WorkerOptions,
    WorkerProcess,
    Written,
)  # fmt: skip
from supervisor.workers.parent.forkserver_client import ForkserverClient
from supervisor.workers.parent.worker_process import ForkedWorker, Phase
from supervisor.workers.system import descriptors, linux, marks
from supervisor.workers.system import process_tree as proctree
from supervisor.workers.system.orphans import END_SECONDS, Orphans

ORPHANS_INTERVAL = 1.0
RESTART_DELAYS = (0.4, 10.0)  # seconds, the first and the longest, after the first restart, which is at once
SETTLED_AFTER = 10.0  # seconds: a forkserver that ran for so long exited for a new reason
START_ATTEMPTS = 3


_all: WeakSet[ForkserverBackend] = WeakSet()


def _release_in_forked_copy() -> None:
    """Close, in a copy of the supervisor that a plugin has forked, the pipes that keep workers running."""
    for backend in _all:
        backend.release_in_copy()


os.register_at_fork(after_in_child=_release_in_forked_copy)


def _running() -> set[int]:
    """Return the pids of all workers and forkservers, also of a forkserver that has exited while workers of it run: they may use the
    programs that its imports have started."""
    workers = [process for backend in _all for process in backend._workers.values()]
    forkservers = [backend._forkserver for backend in _all] + [process.forkserver for process in workers]
    return {each.pid for each in (*workers, *forkservers) if each is not None and each.pid is not None}


class ForkserverBackend:
    """Implements WorkerBackend and ForkserverListener: one forkserver at a time, and the workers of this and earlier ones."""

    def __init__(
        self, options: WorkerOptions, listener: BackendListener, loop: asyncio.AbstractEventLoop,
        timeouts: Timeouts = USUAL_TIMEOUTS,
    ) -> None:  # fmt: skip
        self.options = options
        self.misfits: Sequence[Sequence[Any]] = ()
        self.schedule_misfits: Sequence[Sequence[str]] = ()
        self.loop = loop
        self._listener = listener
        self._timeouts = timeouts
        self._forkserver: ForkserverClient | None = None
        self._first_ready: asyncio.Future[list[SourceReport]] | None = None
        self._blamed: dict[str, SourceReport] = {}  # sources whose import ended a forkserver
        self._restart: asyncio.TimerHandle | None = None
        self._restart_delays = GrowingDelay(*RESTART_DELAYS)
        self._quick_exits = 0
        self._stopping = False
        self._serial = 0
        # Workers by serial number: all; those whose order has no answer; those whose order is not sent; those being reaped.
        self._workers: dict[int, ForkedWorker] = {}
        self._ordered: dict[int, ForkedWorker] = {}
        self._waiting: dict[int, WorkerEnds] = {}
        self._reaping: dict[int, ForkedWorker] = {}
        self._changed = asyncio.Event()
        self._orphans = Orphans(options.owner)
        self._orphans_timer: asyncio.TimerHandle | None = None
        self._oom_kills = linux.oom_kills()
        _all.add(self)

    # WorkerBackend

    async def start(self) -> Sequence[SourceReport]:
        """Start the forkserver; return its reports once the plugins are imported. Raises NoForkserver if it can't be started."""
        linux.become_subreaper()
        marks.mark_supervisor(self.options.owner)
        self._first_ready = self.loop.create_future()
        self._start_forkserver()
        self._look_for_orphans()
        return await self._first_ready

    def fork(self, number: int, listener: WorkerListener, concurrency: int = 0) -> WorkerProcess:
        # Each worker that is ordered needs one more descriptor later, its pidfd.
        ours, theirs = open_channels(descriptors.end_of_channels() - len(self._ordered))
        self._serial += 1
        process = ForkedWorker(
            number, self._serial, ours, self, listener, self.loop, self.options, self._timeouts, concurrency
        )
        self._workers[process.serial] = self._ordered[process.serial] = process
        self._waiting[process.serial] = theirs
        self._send_orders()
        return process

    async def stop(self) -> None:
        """Kill the workers that are left, end the forkserver, and kill the orphans of both."""
        self._stopping = True
        for timer in (self._restart, self._orphans_timer):
            if timer is not None:
                timer.cancel()
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.cancel()
        for process in list(self._workers.values()):
            process.kill()
        try:
            async with asyncio.timeout(self._timeouts.kill):
                await self._until(lambda: all(process.phase is Phase.STUCK for process in self._workers.values()))
        except TimeoutError:
            for process in self._workers.values():
                process.abandon()
        await self._stop_forkserver()
        deadline = self.loop.time() + END_SECONDS
        while self._orphans.end(_running()) and self.loop.time() < deadline:
            await asyncio.sleep(proctree.END_INTERVAL)

    async def _stop_forkserver(self) -> None:
        if self._forkserver is None:
            return
        self._forkserver.stop()
        try:
            async with asyncio.timeout(self._timeouts.forkserver_stop):
                await self._until(lambda: self._forkserver is None)
        except TimeoutError:
            if self._forkserver is not None:  # it may have exited just when the time was up
                self._forkserver.kill()
                await self._until(lambda: self._forkserver is None)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._changed.clear()
            await self._changed.wait()

    def release_in_copy(self) -> None:
        """Close, in a copy of this process, the descriptors that keep the forkserver and the workers running."""
        for process in self._workers.values():
            process.release_in_copy()
        if self._forkserver is not None:
            self._forkserver.release_in_copy()

    # workers (ProcessOwner)

    def _send_orders(self) -> None:
        forkserver = self._forkserver
        if forkserver is None or not forkserver.ready:
            return
        for serial, ends in self._waiting.items():
            process = self._ordered[serial]
            process.forkserver = forkserver
            forkserver.ask(wire.Fork(serial, process.number, process.token, process.concurrency), ends)
        self._waiting.clear()

    def drop_order(self, process: ForkedWorker) -> bool:
        """Drop the order for this worker, and return True, if it was not sent yet. `ended` follows later, since the caller may be
        iterating over all workers."""
        if process.serial not in self._waiting:
            return False
        close_all(self._waiting.pop(process.serial))
        process.start_error = "no forkserver was ready"
        self.loop.call_soon(self._ended, process, None, None)
        return True

    def reap(self, process: ForkedWorker) -> None:
        """Reap a process that has exited. Its group was signalled before, since its pid may be reused from now on."""
        self._reaping[process.serial] = process
        forkserver = self._forkserver
        if forkserver is not None and process.forkserver is forkserver:
            forkserver.ask(wire.Reap(process.serial))
        else:
            self._reap_adopted(process)

    def _reap_adopted(self, process: ForkedWorker) -> None:
        """Reap a worker that has become a child of this process, since its forkserver has exited."""
        del self._reaping[process.serial]
        self._ended(process, *(proctree.reap(process.pid or 0) or proctree.Exit(None, None)))

    def _ended(self, process: ForkedWorker, status: int | None, peak: int | None) -> None:
        del self._workers[process.serial]
        self._ordered.pop(process.serial, None)
        process.reaped(status, peak)
        self._changed.set()

    def oom_killer_has_struck(self) -> bool:
        """Return whether the kernel has killed a process for memory since the last call."""
        before, self._oom_kills = self._oom_kills, linux.oom_kills()
        return before is not None and self._oom_kills is not None and self._oom_kills > before

    # the forkserver (ForkserverListener)

    def _start_forkserver(self) -> None:
        self._restart = None
        try:
            self._forkserver = ForkserverClient(self.loop, self.options, self, tuple(self._blamed), self._timeouts)
        except OSError as error:
            how = f"could not be started: {reason(error)}"
            self._listener.forkserver_exited(0, how)
            self._start_again(how)

    def forkserver_ready(self, forkserver: ForkserverClient, reports: list[SourceReport]) -> None:
        every = [*reports, *self._blamed.values()]
        self.misfits, self.schedule_misfits = forkserver.misfits, forkserver.schedule_misfits
        self._listener.forkserver_started(self, forkserver.pid, every)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_result(every)
        self._send_orders()

    def forked(self, serial: int, pid: int, pidfd: int) -> None:
        self._answered(self._ordered, serial).forked(pid, pidfd)

    def not_forked(self, serial: int, why: str) -> None:
        process = self._answered(self._ordered, serial)
        process.start_error = why
        self._ended(process, None, None)

    def lost(self, serial: int, pid: int, why: str) -> None:
        """It ends as soon as it is reaped: its channels are closed then, and the forkserver takes it for an orphan."""
        process = self._answered(self._ordered, serial)
        process.pid, process.start_error = pid, why
        self.reap(process)

    def reaped(self, serial: int, status: int | None, peak: int | None) -> None:
        self._ended(self._answered(self._reaping, serial), status, peak)

    def _answered(self, asked: dict[int, ForkedWorker], serial: int) -> ForkedWorker:
        process = asked.get(serial)
        if process is None or process.forkserver is not self._forkserver:
            raise wire.Broken(f"an answer about worker {serial}, which was not asked for")
        return asked.pop(serial)

    def forkserver_output(self, written: Written) -> None:
        self._listener.forkserver_output(written)

    def forkserver_ended(self, forkserver: ForkserverClient, how: str, blamed: SourceReport | None) -> None:
        """Start another forkserver. The workers keep running, as children of this process, which is a subreaper."""
        self._forkserver = None
        for process in list(self._reaping.values()):
            if process.forkserver is forkserver:
                self._reap_adopted(process)
        for process in list(self._ordered.values()):
            if process.forkserver is forkserver:
                process.start_error = f"the forkserver {how}"
                self._ended(process, None, None)
        self._changed.set()
        if self._stopping:
            return
        self._listener.forkserver_exited(forkserver.pid, how)
        if blamed is not None:
            self._blamed[blamed.source] = blamed
            self._start_forkserver()
            return
        if self.loop.time() - forkserver.started > SETTLED_AFTER:
            self._quick_exits = 0
            self._restart_delays.reset()
        self._start_again(how)

    def _start_again(self, how: str) -> None:
        """Start another forkserver, at once or after a growing delay. If none was ever ready, give up after START_ATTEMPTS."""
        self._quick_exits += 1
        if self._first_ready is not None and not self._first_ready.done() and self._quick_exits >= START_ATTEMPTS:
            self._first_ready.set_exception(NoForkserver(f"no forkserver could be started: the last one {how}"))
            return
        delay = 0.0 if self._quick_exits == 1 else self._restart_delays.next()
        self._restart = self.loop.call_later(delay, self._start_forkserver)

    # orphans

    def _look_for_orphans(self) -> None:
        self._orphans.sweep(_running())
        self._orphans_timer = self.loop.call_later(ORPHANS_INTERVAL, self._look_for_orphans)
