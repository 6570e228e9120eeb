"""Real processes behind port.Children: one nursery, its workers, and what becomes of both. No books of jobs here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from weakref import WeakSet

from supervisor.plugins.manager import SourceReport
from supervisor.plugins.validation import NoNursery
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import WorkerEnds, close_ends, open_channels
from supervisor.workers.interface import ChildOptions, Listener
from supervisor.workers.parent.forkserver_client import NurseryLink
from supervisor.workers.parent.worker_process import ProcessChild
from supervisor.workers.system import linux
from supervisor.workers.system.orphans import Landed

STRAYS_EVERY = 1.0
UNREADY_FOR = (
    30.0  # seconds besides the time for imports; a worker silent for so long found a lock taken, or a hook hangs
)
RESTART_DELAYS = (0.1, 10.0)
SETTLED_AFTER = 10.0  # seconds; a nursery that lived so long died of something new
START_ATTEMPTS = 3
STOP_PATIENCE = 5.0
KILL_PATIENCE = 5.0  # seconds; a process that waits for a disk or a network file system is deaf even to SIGKILL


_all: WeakSet[ProcessChildren] = WeakSet()


def _let_go_in_copy() -> None:
    """A plugin has forked the supervisor: what dies with that must not live as long as the copy."""
    for children in _all:
        children.let_go()


os.register_at_fork(after_in_child=_let_go_in_copy)


class ProcessChildren:
    """port.Children: one nursery at a time, and the workers of it and of those before it."""

    def __init__(self, options: ChildOptions, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.listener = listener
        self.loop = loop
        self._nursery: NurseryLink | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._quick_deaths = 0
        self._blamed: dict[str, SourceReport] = {}
        self._first_ready: asyncio.Future[list[SourceReport]] | None = None
        self._changed: asyncio.Future[None] | None = None
        self._serial = 0
        self._living: dict[int, ProcessChild] = {}
        self._ordered: dict[int, ProcessChild] = {}  # not yet answered
        self._waiting: dict[int, WorkerEnds] = {}  # not yet sent: no nursery is ready
        self._reaping: dict[int, ProcessChild] = {}
        self._unready: dict[int, asyncio.TimerHandle] = {}
        self._adopted = False
        self._landed = Landed(options.owner)
        self._strays_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._ooms = linux.oom_kills()
        _all.add(self)

    # port.Children

    async def start(self) -> Sequence[SourceReport]:
        """Raises NoNursery if none can be started."""
        linux.become_subreaper()
        self._first_ready = self.loop.create_future()
        self._start_nursery()
        self._look_for_strays()
        return await self._first_ready

    def fork(self, number: int) -> ProcessChild:
        self._serial += 1
        try:
            ours, theirs = open_channels()
        except OSError as error:
            unborn = ProcessChild(self, number, self._serial, None, self.options.result_limit)
            unborn.why_unborn = f"no channels: {error.strerror}"
            self._living[unborn.serial] = unborn
            self.loop.call_soon(self._bury, unborn, None, None)
            return unborn
        child = ProcessChild(self, number, self._serial, ours, self.options.result_limit)
        self._living[child.serial] = self._ordered[child.serial] = child
        self._waiting[child.serial] = theirs
        self._send_orders()
        return child

    async def stop(self) -> None:
        self._stopping = True
        for timer in (self._restart, self._strays_timer):
            if timer is not None:
                timer.cancel()
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.cancel()
        self._drop_waiting()
        for child in list(self._living.values()):
            child.kill()
        try:
            async with asyncio.timeout(KILL_PATIENCE):
                await self._until(lambda: not self._living)
        except TimeoutError:
            self._leave_behind()
        if self._nursery is not None:
            self._nursery.stop()
            try:
                async with asyncio.timeout(STOP_PATIENCE):
                    await self._until(lambda: self._nursery is None)
            except TimeoutError:
                if self._nursery is not None:  # it may have ended in the very turn in which the patience did
                    self._nursery.kill()
                    await self._until(lambda: self._nursery is None)
        if self._adopted:
            self._landed.finish()

    def let_go(self) -> None:
        """In a copy of this process: of what keeps the nursery and the workers alive."""
        for child in self._living.values():
            child.let_go()
        if self._nursery is not None:
            self._nursery.let_go()

    def _leave_behind(self) -> None:
        for child in self._living.values():
            self.listener.said(child, "stderr", None, [f"not dead {KILL_PATIENCE:g}s after SIGKILL: left behind"])
            child.abandon()
        for timer in self._unready.values():
            timer.cancel()

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._changed = self.loop.create_future()
            await self._changed

    def _tell_changed(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # workers

    def _send_orders(self) -> None:
        nursery = self._nursery
        if nursery is None or not nursery.ready:
            return
        for serial, ends in self._waiting.items():
            child = self._ordered[serial]
            child.nursery = nursery
            nursery.fork(wire.Fork(serial, child.number, child.token), ends)
        self._waiting.clear()

    def _drop_waiting(self) -> None:
        for serial, ends in self._waiting.items():
            close_ends(ends)
            self._bury(self._ordered[serial], None, None)
        self._waiting.clear()

    def drop_order(self, child: ProcessChild) -> bool:
        """It is to end: True if no nursery was asked for it yet, so that none will be. Its end is told later, for whoever ends
        the living walks over them."""
        ends = self._waiting.pop(child.serial, None)
        if ends is None:
            return False
        close_ends(ends)
        child.why_unborn = "no nursery was ready"
        self.loop.call_soon(self._bury, child, None, None)
        return True

    def is_ready(self, child: ProcessChild) -> None:
        self._unready.pop(child.serial).cancel()

    def reap(self, child: ProcessChild) -> None:
        """Called once its group has been signalled: only now may its number be given up."""
        self._reaping[child.serial] = child
        nursery = self._nursery
        if nursery is not None and child.nursery is nursery:
            nursery.reap(child.serial)
        else:
            self._reap_adopted(child)

    def _reap_adopted(self, child: ProcessChild) -> None:
        """Its nursery is dead, so it is this process's child."""
        del self._reaping[child.serial]
        try:
            _pid, status, usage = os.wait4(child.pid or 0, 0)
        except ChildProcessError:  # somebody else reaped it
            self._bury(child, None, None)
        else:
            self._bury(child, status, usage.ru_maxrss * 1024)

    def _bury(self, child: ProcessChild, status: int | None, peak: int | None) -> None:
        del self._living[child.serial]
        self._ordered.pop(child.serial, None)
        timer = self._unready.pop(child.serial, None)
        if timer is not None:
            timer.cancel()
        child.is_over(status, peak)
        self._tell_changed()

    def oom_killer_was_here(self) -> bool:
        before, self._ooms = self._ooms, linux.oom_kills()
        return before is not None and self._ooms is not None and self._ooms > before

    # the nursery (link.Ear)

    def _start_nursery(self) -> None:
        self._restart = None
        try:
            self._nursery = NurseryLink(self.loop, self.options, self, tuple(self._blamed))
        except OSError as error:
            how = f"could not be started: {error.strerror}"
            self.listener.nursery_died(0, how)
            self._start_again(how)

    def nursery_ready(self, link: NurseryLink, reports: list[SourceReport]) -> None:
        every = [*reports, *self._blamed.values()]
        self.listener.nursery_started(self, link.pid, every)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_result(every)
        self._send_orders()

    def forked(self, serial: int, pid: int, pidfd: int) -> None:
        child = self._answered(self._ordered, serial)
        patience = self.options.import_timeout + UNREADY_FOR
        self._unready[serial] = self.loop.call_later(patience, child.never_ready, patience)
        child.was_forked(pid, pidfd)

    def not_forked(self, serial: int, why: str) -> None:
        child = self._answered(self._ordered, serial)
        child.why_unborn = why
        self._bury(child, None, None)

    def reaped(self, serial: int, status: int | None, peak: int | None) -> None:
        self._bury(self._answered(self._reaping, serial), status, peak)

    def _answered(self, asked: dict[int, ProcessChild], serial: int) -> ProcessChild:
        child = asked.get(serial)
        if child is None or child.nursery is not self._nursery:
            raise wire.Broken(f"an answer about worker {serial}, which was not asked for")
        return asked.pop(serial)

    def nursery_said(self, link: NurseryLink, stream: str, lines: Sequence[str]) -> None:
        self.listener.said(None, stream, None, lines)

    def nursery_ended(self, link: NurseryLink, how: str, blamed: SourceReport | None) -> None:
        """Its workers live on, as children of this process, which is a subreaper."""
        self._nursery = None
        self._adopted = True
        for child in list(self._reaping.values()):
            if child.nursery is link:
                self._reap_adopted(child)
        for child in list(self._ordered.values()):
            if child.nursery is link:
                child.why_unborn = f"the nursery {how}"
                self._bury(child, None, None)
        self._tell_changed()
        if self._stopping:
            return
        self.listener.nursery_died(link.pid, how)
        if blamed is not None:
            self._blamed[blamed.source] = blamed
            self._start_nursery()
            return
        if self.loop.time() - link.started > SETTLED_AFTER:
            self._quick_deaths = 0
        self._start_again(how)

    def _start_again(self, how: str) -> None:
        """At once, then with growing delays; but a supervisor that never had a nursery gives up."""
        self._quick_deaths += 1
        if self._first_ready is not None and not self._first_ready.done() and self._quick_deaths >= START_ATTEMPTS:
            self._first_ready.set_exception(NoNursery(f"no nursery could be started: the last one {how}"))
            return
        first, most = RESTART_DELAYS
        delay = 0.0 if self._quick_deaths == 1 else min(most, first * 2 ** min(self._quick_deaths, 16))
        self._restart = self.loop.call_later(delay, self._start_nursery)

    # what lands here

    def _look_for_strays(self) -> None:
        known = {child.pid for child in self._living.values()}
        self._landed.reap({pid for pid in known if pid is not None})
        if self._adopted:
            self._landed.sweep()
        self._strays_timer = self.loop.call_later(STRAYS_EVERY, self._look_for_strays)
