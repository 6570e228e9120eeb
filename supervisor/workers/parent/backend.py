"""Real processes behind port.Children: one nursery, its workers, and what becomes of both. No books of jobs here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from weakref import WeakSet

from supervisor.errors import NoForkserver
from supervisor.plugins.reports import SourceReport
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import WorkerEnds, close_ends, open_channels
from supervisor.workers.interface import WorkerListener, WorkerOptions
from supervisor.workers.parent.forkserver_client import ForkserverClient
from supervisor.workers.parent.worker_process import ForkedWorker
from supervisor.workers.system import linux
from supervisor.workers.system.orphans import AdoptedOrphans

ORPHANS_INTERVAL = 1.0
UNREADY_FOR = (
    30.0  # seconds besides the time for imports; a worker silent for so long found a lock taken, or a hook hangs
)
RESTART_DELAYS = (0.1, 10.0)
SETTLED_AFTER = 10.0  # seconds; a nursery that lived so long died of something new
START_ATTEMPTS = 3
STOP_TIMEOUT = 5.0
KILL_TIMEOUT = 5.0  # seconds; a process that waits for a disk or a network file system is deaf even to SIGKILL


_all: WeakSet[ForkserverBackend] = WeakSet()


def _release_in_forked_copy() -> None:
    """A plugin has forked the supervisor: what dies with that must not live as long as the copy."""
    for backend in _all:
        backend.release_in_copy()


os.register_at_fork(after_in_child=_release_in_forked_copy)


class ForkserverBackend:
    """port.Children: one nursery at a time, and the workers of it and of those before it."""

    def __init__(self, options: WorkerOptions, listener: WorkerListener, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.listener = listener
        self.loop = loop
        self._forkserver: ForkserverClient | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._quick_deaths = 0
        self._blamed: dict[str, SourceReport] = {}
        self._first_ready: asyncio.Future[list[SourceReport]] | None = None
        self._changed: asyncio.Future[None] | None = None
        self._serial = 0
        self._living: dict[int, ForkedWorker] = {}
        self._ordered: dict[int, ForkedWorker] = {}  # not yet answered
        self._waiting: dict[int, WorkerEnds] = {}  # not yet sent: no nursery is ready
        self._reaping: dict[int, ForkedWorker] = {}
        self._unready: dict[int, asyncio.TimerHandle] = {}
        self._adopted = False
        self._orphans = AdoptedOrphans(options.owner)
        self._orphans_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._ooms = linux.oom_kills()
        _all.add(self)

    # port.Children

    async def start(self) -> Sequence[SourceReport]:
        """Raises NoForkserver if none can be started."""
        linux.become_subreaper()
        self._first_ready = self.loop.create_future()
        self._start_forkserver()
        self._look_for_orphans()
        return await self._first_ready

    def fork(self, number: int) -> ForkedWorker:
        self._serial += 1
        try:
            ours, theirs = open_channels()
        except OSError as error:
            start_error = ForkedWorker(self, number, self._serial, None, self.options.result_limit)
            start_error.start_error = f"no channels: {error.strerror}"
            self._living[start_error.serial] = start_error
            self.loop.call_soon(self._bury, start_error, None, None)
            return start_error
        process = ForkedWorker(self, number, self._serial, ours, self.options.result_limit)
        self._living[process.serial] = self._ordered[process.serial] = process
        self._waiting[process.serial] = theirs
        self._send_orders()
        return process

    async def stop(self) -> None:
        self._stopping = True
        for timer in (self._restart, self._orphans_timer):
            if timer is not None:
                timer.cancel()
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.cancel()
        self._drop_waiting()
        for process in list(self._living.values()):
            process.kill()
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                await self._until(lambda: not self._living)
        except TimeoutError:
            self._leave_behind()
        if self._forkserver is not None:
            self._forkserver.stop()
            try:
                async with asyncio.timeout(STOP_TIMEOUT):
                    await self._until(lambda: self._forkserver is None)
            except TimeoutError:
                if self._forkserver is not None:  # it may have ended in the very turn in which the patience did
                    self._forkserver.kill()
                    await self._until(lambda: self._forkserver is None)
        if self._adopted:
            self._orphans.finish()

    def release_in_copy(self) -> None:
        """In a copy of this process: of what keeps the nursery and the workers alive."""
        for process in self._living.values():
            process.release_in_copy()
        if self._forkserver is not None:
            self._forkserver.release_in_copy()

    def _leave_behind(self) -> None:
        for process in self._living.values():
            self.listener.output(process, "stderr", None, [f"not dead {KILL_TIMEOUT:g}s after SIGKILL: left behind"])
            process.abandon()
        for timer in self._unready.values():
            timer.cancel()

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._changed = self.loop.create_future()
            await self._changed

    def _notify_changed(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # workers

    def _send_orders(self) -> None:
        forkserver = self._forkserver
        if forkserver is None or not forkserver.ready:
            return
        for serial, ends in self._waiting.items():
            process = self._ordered[serial]
            process.forkserver = forkserver
            forkserver.fork(wire.Fork(serial, process.number, process.token), ends)
        self._waiting.clear()

    def _drop_waiting(self) -> None:
        for serial, ends in self._waiting.items():
            close_ends(ends)
            self._bury(self._ordered[serial], None, None)
        self._waiting.clear()

    def drop_order(self, process: ForkedWorker) -> bool:
        """It is to end: True if no nursery was asked for it yet, so that none will be. Its end is told later, for whoever ends
        the living walks over them."""
        ends = self._waiting.pop(process.serial, None)
        if ends is None:
            return False
        close_ends(ends)
        process.start_error = "no nursery was ready"
        self.loop.call_soon(self._bury, process, None, None)
        return True

    def is_ready(self, process: ForkedWorker) -> None:
        self._unready.pop(process.serial).cancel()

    def reap(self, process: ForkedWorker) -> None:
        """Called once its group has been signalled: only now may its number be given up."""
        self._reaping[process.serial] = process
        forkserver = self._forkserver
        if forkserver is not None and process.forkserver is forkserver:
            forkserver.reap(process.serial)
        else:
            self._reap_adopted(process)

    def _reap_adopted(self, process: ForkedWorker) -> None:
        """Its nursery is dead, so it is this process's child."""
        del self._reaping[process.serial]
        try:
            _pid, status, usage = os.wait4(process.pid or 0, 0)
        except ChildProcessError:  # somebody else reaped it
            self._bury(process, None, None)
        else:
            self._bury(process, status, usage.ru_maxrss * 1024)

    def _bury(self, process: ForkedWorker, status: int | None, peak: int | None) -> None:
        del self._living[process.serial]
        self._ordered.pop(process.serial, None)
        timer = self._unready.pop(process.serial, None)
        if timer is not None:
            timer.cancel()
        process.is_over(status, peak)
        self._notify_changed()

    def oom_killer_was_here(self) -> bool:
        before, self._ooms = self._ooms, linux.oom_kills()
        return before is not None and self._ooms is not None and self._ooms > before

    # the nursery (link.Ear)

    def _start_forkserver(self) -> None:
        self._restart = None
        try:
            self._forkserver = ForkserverClient(self.loop, self.options, self, tuple(self._blamed))
        except OSError as error:
            how = f"could not be started: {error.strerror}"
            self.listener.forkserver_exited(0, how)
            self._start_again(how)

    def forkserver_ready(self, link: ForkserverClient, reports: list[SourceReport]) -> None:
        every = [*reports, *self._blamed.values()]
        self.listener.forkserver_started(self, link.pid, every)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_result(every)
        self._send_orders()

    def forked(self, serial: int, pid: int, pidfd: int) -> None:
        process = self._answered(self._ordered, serial)
        timeout = self.options.import_timeout + UNREADY_FOR
        self._unready[serial] = self.loop.call_later(timeout, process.never_ready, timeout)
        process.was_forked(pid, pidfd)

    def not_forked(self, serial: int, why: str) -> None:
        process = self._answered(self._ordered, serial)
        process.start_error = why
        self._bury(process, None, None)

    def reaped(self, serial: int, status: int | None, peak: int | None) -> None:
        self._bury(self._answered(self._reaping, serial), status, peak)

    def _answered(self, asked: dict[int, ForkedWorker], serial: int) -> ForkedWorker:
        process = asked.get(serial)
        if process is None or process.forkserver is not self._forkserver:
            raise wire.Broken(f"an answer about worker {serial}, which was not asked for")
        return asked.pop(serial)

    def forkserver_output(self, link: ForkserverClient, stream: str, lines: Sequence[str]) -> None:
        self.listener.output(None, stream, None, lines)

    def forkserver_ended(self, link: ForkserverClient, how: str, blamed: SourceReport | None) -> None:
        """Its workers live on, as children of this process, which is a subreaper."""
        self._forkserver = None
        self._adopted = True
        for process in list(self._reaping.values()):
            if process.forkserver is link:
                self._reap_adopted(process)
        for process in list(self._ordered.values()):
            if process.forkserver is link:
                process.start_error = f"the nursery {how}"
                self._bury(process, None, None)
        self._notify_changed()
        if self._stopping:
            return
        self.listener.forkserver_exited(link.pid, how)
        if blamed is not None:
            self._blamed[blamed.source] = blamed
            self._start_forkserver()
            return
        if self.loop.time() - link.started > SETTLED_AFTER:
            self._quick_deaths = 0
        self._start_again(how)

    def _start_again(self, how: str) -> None:
        """At once, then with growing delays; but a supervisor that never had a nursery gives up."""
        self._quick_deaths += 1
        if self._first_ready is not None and not self._first_ready.done() and self._quick_deaths >= START_ATTEMPTS:
            self._first_ready.set_exception(NoForkserver(f"no nursery could be started: the last one {how}"))
            return
        first, most = RESTART_DELAYS
        delay = 0.0 if self._quick_deaths == 1 else min(most, first * 2 ** min(self._quick_deaths, 16))
        self._restart = self.loop.call_later(delay, self._start_forkserver)

    # what lands here

    def _look_for_orphans(self) -> None:
        known = {process.pid for process in self._living.values()}
        self._orphans.reap({pid for pid in known if pid is not None})
        if self._adopted:
            self._orphans.sweep()
        self._orphans_timer = self.loop.call_later(ORPHANS_INTERVAL, self._look_for_orphans)
