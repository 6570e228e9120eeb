"""The work that is done once a second: to announce this supervisor, check and recover leases, release jobs that wait here in
vain, and prune."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from supervisor.engine.claim_planner import BUFFERED_SECONDS
from supervisor.engine.committer import Committer
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.dispatcher import Dispatcher
from supervisor.engine.fairness import JobBuffers, QueueBuffers
from supervisor.engine.group_shares import GroupShares
from supervisor.engine.held_back import HeldBackRelease
from supervisor.engine.lease_keeper import LeaseKeeper
from supervisor.engine.leases import Leases
from supervisor.engine.presence import Announcer
from supervisor.engine.recovery import Recovery
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.engine.tasks import BackgroundTasks, SingleTask
from supervisor.events import Bus, ClockStepped, SinkMissing, StoreRepaired
from supervisor.stores.protocol import Store
from supervisor.stores.records import PruneRun
from supervisor.workers.pool import Pool

PRUNED_AT_ONCE = 1000
PRUNE_PERIODS = 10
REPAIR_PERIODS = 10
COST = 100.0
"""The next look for jobs to prune or rows to repair starts after so many times the time that the last one took in vain."""
CHECK_PERIODS = 10
SINK_PERIODS = 60
REPORT_SINK_AGAIN = 3600.0  # seconds
RETRY_REFUSED_PERIODS = 5
CLOCK_STEP = 1.0  # seconds
UNTIL_CLOCK_IS_TRUSTED = 3600.0
"""Nothing is pruned for so many seconds after the clock was set forward by as many or more: it may be wrong, and be set back."""


class WallClock:
    """Notices that the wall clock was set. `suspended` returns the seconds for which the machine has been suspended, which the
    clock of the loop leaves out."""

    def __init__(
        self, bus: Bus, loop: asyncio.AbstractEventLoop, wall: Callable[[], float], suspended: Callable[[], float]
    ) -> None:
        self._bus = bus
        self._loop = loop
        self._wall = wall
        self._suspended = suspended
        self._ahead = self._ahead_now()

    def step(self) -> float:
        """Return by how many seconds it was set since the last call, and report that; 0.0 if it was not."""
        before, self._ahead = self._ahead, self._ahead_now()
        step = self._ahead - before
        if abs(step) <= CLOCK_STEP:
            return 0.0
        self._bus.emit(ClockStepped(step))
        return step

    def _ahead_now(self) -> float:
        return self._wall() - self._loop.time() - self._suspended()


@dataclass(eq=False)
class Pruner:
    """Deletes jobs that are past their retention."""

    _writer: Writer
    _config: CurrentConfig
    _now: Callable[[], float]
    _next: float = 0.0
    _not_before: float = 0.0

    def clock_stepped(self, seconds: float) -> None:
        if seconds >= UNTIL_CLOCK_IS_TRUSTED:
            self._not_before = self._now() + UNTIL_CLOCK_IS_TRUSTED

    async def prune_when_due(self) -> None:
        if self._now() >= self._next:
            in_vain = await self.prune()
            self._next = self._now() + COST * in_vain

    async def prune(self) -> float:
        """Delete until there are no more, or the store refuses to. Return the seconds of calls that have deleted nothing: they pass
        over jobs with pending dead letters."""
        in_vain = 0.0
        if self._writer.unavailable or self._now() < self._not_before:
            return in_vain
        retention, run = self._config.settings.retention, PruneRun()

        def prune(store: Store) -> int:
            return store.prune(retention, PRUNED_AT_ONCE, run)

        with suppress(NotDone):
            while run.more:
                began = self._now()
                if not await self._writer.submit(prune, Purpose.PRUNE):
                    in_vain += self._now() - began
        return in_vain


@dataclass(eq=False)
class Repairer:
    """Repairs a store whose rows other programs have changed or locked; not while every worker has a job, since none needs it then."""

    _writer: Writer
    _pool: Pool
    _bus: Bus
    _now: Callable[[], float]
    _on_repaired: Callable[[], None]
    _next: float = 0.0

    async def repair(self) -> None:
        began = self._now()
        if self._writer.unavailable or began < self._next or not self._pool.idle_count():
            return
        wrong = ""
        with suppress(NotDone):
            wrong = await self._writer.submit(lambda store: store.repair(), Purpose.REPAIR)
        self._next = self._now() + COST * (self._now() - began)
        if wrong:
            self._bus.emit(StoreRepaired(wrong))
            self._on_repaired()


@dataclass(eq=False)
class SinkWatch:
    """Reports sinks that dead letters wait for and that no running supervisor has, at two looks in a row: one may be restarting."""

    _writer: Writer
    _bus: Bus
    _now: Callable[[], float]
    _missing: dict[str, float] = field(default_factory=dict)
    """When each is to be reported."""

    async def look(self) -> None:
        if self._writer.unavailable:
            return
        with suppress(NotDone):
            sinks = await self._writer.submit(lambda store: store.sinks(), Purpose.SINKS)
            pending = {row["sink"]: row["pending"] for row in sinks if not row["supervisors"]}
            now, known = self._now(), self._missing
            self._missing = {sink: known.get(sink, now) for sink in pending}
            for sink in sorted(pending.keys() & known.keys()):
                if self._missing[sink] <= now:
                    self._missing[sink] = now + REPORT_SINK_AGAIN
                    self._bus.emit(SinkMissing(sink, pending[sink]))


class Maintenance:
    """Starts each kind of work when it is due, unless the last one still runs."""

    def __init__(
        self, writer: Writer, pool: Pool, leases: Leases, lease_keeper: LeaseKeeper, recovery: Recovery,
        buffers: JobBuffers, dispatcher: Dispatcher, committer: Committer, announcer: Announcer, pruner: Pruner,
        repairer: Repairer, sinks: SinkWatch, shares: GroupShares, clock: WallClock, held_back: HeldBackRelease,
        tasks: BackgroundTasks,
    ) -> None:  # fmt: skip
        self._writer = writer
        self._pool = pool
        self._leases = leases
        self._lease_keeper = lease_keeper
        self._recovery = recovery
        self._buffers = buffers
        self._dispatcher = dispatcher
        self._committer = committer
        self._announcer = announcer
        self._clock, self._pruner, self._shares = clock, pruner, shares
        self._periods = 0
        self._state = ""
        self._looking_around = SingleTask(tasks, self._look_around)
        self._pruning = SingleTask(tasks, pruner.prune_when_due)
        self._repairing = SingleTask(tasks, repairer.repair)
        self._looking_at_sinks = SingleTask(tasks, sinks.look)
        self._releasing_held_back = SingleTask(tasks, held_back.release)
        self._writing_shares = SingleTask(tasks, shares.write)
        self._releasing_unserved = SingleTask(tasks, self._release_unserved)

    def run(self, state: str) -> None:
        """Do what is due in this period; `state` is that of the supervisor."""
        self._periods += 1
        self._state = state
        if step := self._clock.step():  # leases may seem expired: ours to other supervisors, and theirs to this one
            self._recovery.forget()
            self._lease_keeper.extend_soon()
            self._pruner.clock_stepped(step)
            self._announcer.clock_stepped()
        self._looking_around.start()
        if self._shares.is_due and not self._writer.unavailable:
            self._writing_shares.start()
        if self._periods % PRUNE_PERIODS == 0:
            self._pruning.start()
        if self._periods % REPAIR_PERIODS == 0:
            self._repairing.start()
            self._releasing_held_back.start()
        if self._periods % SINK_PERIODS == 0:
            self._looking_at_sinks.start()
        self._committer.retry_locked()
        if self._periods % RETRY_REFUSED_PERIODS == 0:
            self._committer.retry_refused()

    def release_held_back_soon(self) -> None:
        """Release the jobs that are held back for limits which are not set any more."""
        self._releasing_held_back.start()

    def release_unserved_soon(self) -> None:
        """Release the buffered jobs of queues that are paused, or no longer served here."""
        if len(self._buffers):
            self._releasing_unserved.start()

    async def _look_around(self) -> None:
        if self._writer.unavailable:
            return
        self._announcer.announce(self._state)
        if len(self._leases) or self._periods % CHECK_PERIODS == 0:
            await _attempt(self._lease_keeper.check())
        await _attempt(self._recovery.sweep())
        if len(self._buffers):
            await _attempt(self._release_unserved())
        self._buffers.keep_paid_of(self._pool.slots)
        self._release_surplus()
        if self._standing_still():
            await self._release_to_idle()

    async def _release_unserved(self) -> None:
        self._committer.release(self._buffers.take_unserved(), "queue not served")
        for queue in sorted(await self._writer.submit(lambda store: store.paused(), Purpose.PAUSED)):
            self._committer.release(self._buffers.take_queue(queue), "paused")

    def _release_surplus(self) -> None:
        """Release surplus jobs: they take longer than was expected when they were claimed."""
        for name, buffers in self._buffers.groups.items():
            group = self._pool.groups[name]
            workers = group.ready_count()
            surplus = buffers.take_surplus(2 * BUFFERED_SECONDS * workers, group.times, workers + group.to_come())
            self._committer.release(surplus, "more than can be held")

    async def _release_to_idle(self) -> None:
        """Release the buffered jobs of groups that stand still and have no idle worker, if another supervisor has one."""
        stats = await self._writer.submit(lambda store: store.stats(), Purpose.STATS)
        others = [row for row in stats["supervisors"] if any(worker["state"] == "idle" for worker in row["workers"])]
        for buffers in self._standing_still() if others else ():
            self._committer.release(buffers.take_all(), "others idle")

    def _standing_still(self) -> list[QueueBuffers]:
        """Return the buffers with jobs that can't be started: all workers of the group run long jobs."""
        idle = {name: group.idle_count() for name, group in self._pool.groups.items()}
        found = [buffers for name, buffers in self._buffers.groups.items() if not idle[name]]
        found += () if self._pool.async_workers.room() else (self._buffers.of_async,)
        return [buffers for buffers in found if len(buffers) and self._dispatcher.stands_still(buffers)]


async def _attempt(work: Awaitable[object]) -> None:
    """Await the work, and go on if the store does not do it."""
    with suppress(NotDone):
        await work
