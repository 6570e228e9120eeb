"""Keep the leases: extend them in time, check them, and give up those that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from supervisor.engine.committer import Committer
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.fairness import JobBuffers
from supervisor.engine.leases import Leases
from supervisor.engine.limits import Limits
from supervisor.engine.store_writer import NotDone, Writer
from supervisor.engine.tasks import BackgroundTasks
from supervisor.events import Bus, JobCancelled, JobsStale, WorkerExited
from supervisor.jobs import JobState, Lease
from supervisor.stores.protocol import Store
from supervisor.workers.blame import CANCELLED, LEASE_LOST
from supervisor.workers.cancel import cancel, kill_if_running
from supervisor.workers.pool import Pool
from supervisor.workers.slot import WorkerSlot


@dataclass(eq=False)
class LeaseKeeper:
    """Extends leases every third of their time to live, so that one extend may fail before a lease expires."""

    _writer: Writer
    _leases: Leases
    _buffers: JobBuffers
    _committer: Committer
    _pool: Pool
    _bus: Bus
    _loop: asyncio.AbstractEventLoop
    _tasks: BackgroundTasks
    _limits: Limits
    _config: CurrentConfig
    _timer: asyncio.TimerHandle | None = None
    _gaps_to_check: int = 0
    in_grace: dict[int, tuple[WorkerSlot, Lease]] = field(default_factory=dict)
    """By job: those that were asked to end and may still run, though their leases are dropped."""

    def start(self) -> None:
        self._timer = self._loop.call_later(self._leases.ttl / 3, self._extend_again)
        self._leases.reports.on_change = lambda: self._tasks.start(self._extend_reporting())

    def stop(self) -> None:
        self._leases.reports.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _extend_again(self) -> None:
        self.start()
        self.extend_soon()

    def extend_soon(self) -> None:
        self._tasks.start(self._extend())

    async def _extend(self) -> None:
        self.give_up(await self._leases.extend(), "extend")

    async def _extend_reporting(self) -> None:
        self.give_up(await self._leases.extend_reporting(), "extend")

    def check_if_few(self) -> None:
        if 0 < len(self._leases) <= self._limits.checked_leases:
            self._tasks.start(self.check())

    async def check(self) -> None:
        lost, unknown_here = await self._leases.check()
        self.give_up(lost, "check")
        if unknown_here:
            found = await self._writer.submit(lambda store: store.leases(unknown_here))
            self._leases.add(found)
            self._committer.release(found, "late claim")

    def gap_ended(self) -> None:
        """Trust no lease until all have been extended."""
        self._gaps_to_check += 1
        self._leases.checked_since_gap = False

    async def check_after_gap(self) -> None:
        """Extend all leases. An extend that was submitted before the gap proves nothing."""
        try:
            await self._leases.until_extended()
            await self._extend()
        finally:
            self._gaps_to_check -= 1
            self._leases.checked_since_gap = not self._gaps_to_check

    def claimed_again(self, leases: Sequence[Lease], overtaken: Sequence[Lease]) -> None:
        """Kill the workers that run these jobs under an older token, also in their grace: no job must run twice at once."""
        for id in self.in_grace.keys() & {lease.id for lease in leases}:
            kill_if_running(self._pool, *self.in_grace.pop(id))
        self.give_up(overtaken, "claim", at_once=True)

    def give_up(self, lost: Sequence[Lease], noticed_by: str, *, at_once: bool = False) -> None:
        """Drop leases that are no longer ours: kill the workers that run their jobs, and drop the jobs that wait."""
        if not lost:
            return
        self._buffers.take_out(lost)
        self._pool.async_workers.give_up(lost)
        self._leases.drop(lost)
        self._leases.reports.ended(lost)
        killed: dict[int, HeldExit] = {}  # by job
        for lease in lost:
            slot = self._pool.slot_of(lease.id)
            if slot is None:
                continue
            slot.reclaim_blocked()  # the jobs behind it, and it too if it has not started
            slot.process.drain()  # the jobs before it may have ended
            if slot.current is not None and slot.current.id == lease.id:
                grace = None if at_once else self._config.cancel_grace(lease.handler)
                if grace is not None:
                    self.in_grace = {id: it for id, it in self.in_grace.items() if it[0].current is it[1]}
                    self.in_grace[lease.id] = slot, slot.current
                cancel(self._pool, slot, grace, self._loop)
                killed[lease.id] = HeldExit(slot, self._bus)
        self._tasks.start(self._report(lost, killed, noticed_by))

    async def _report(self, lost: Sequence[Lease], killed: Mapping[int, HeldExit], noticed_by: str) -> None:
        """Ask the store which of the jobs were cancelled and which were taken over. If they are very many, ask only about those
        that ran, since the writer does nothing else meanwhile."""
        asked = lost if len(lost) <= self._limits.checked_leases else [lease for lease in lost if lease.id in killed]
        cancelled: set[int] = set()
        timer = self._loop.call_later(self._limits.exit_held, _report_exits, killed, cancelled)
        try:
            with suppress(NotDone):
                cancelled = await self._writer.submit(lambda store: _cancelled(store, asked))
        finally:
            timer.cancel()
            _report_exits(killed, cancelled)
        stale = [lease for lease in lost if lease.id not in cancelled]
        for lease in stale:
            if lease.id in killed:
                kill_if_running(self._pool, killed[lease.id].slot, lease)  # another worker may run it now
        if stale:
            self._bus.emit(JobsStale(stale, noticed_by))
        for lease in lost:
            if lease.id in cancelled and lease.id in killed:
                self._bus.emit(JobCancelled(lease, killed[lease.id].pid))


class HeldExit:
    """Holds the event of the exit of a killed worker until it is known whether its job was cancelled."""

    def __init__(self, slot: WorkerSlot, bus: Bus) -> None:
        self.pid = slot.process.pid or 0
        self.slot = slot
        self._bus = bus
        self._event: WorkerExited | None = None
        self._cause: str | None = None
        slot.emit_exit = self._exited

    def _exited(self, event: WorkerExited) -> None:
        self._event = event
        if self._cause is not None:
            self.report(self._cause)

    def report(self, cause: str) -> None:
        """Emit the event, with this cause, now or as soon as the worker exits."""
        event, self._event, self._cause = self._event, None, cause
        if event is not None:
            self._bus.emit(event._replace(cause=cause) if event.cause == LEASE_LOST.name else event)


def _report_exits(killed: Mapping[int, HeldExit], cancelled: Container[int]) -> None:
    for job_id, exit in killed.items():
        exit.report((CANCELLED if job_id in cancelled else LEASE_LOST).name)


def _cancelled(store: Store, leases: Sequence[Lease]) -> set[int]:
    jobs = [store.get(lease.id) for lease in leases]
    return {job["id"] for job in jobs if job is not None and job["state"] == JobState.CANCELLED.value}
