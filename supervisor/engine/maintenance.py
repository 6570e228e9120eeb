"""What is done once a second: tell of oneself, check and recover leases, give back what waits here in vain, prune."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from supervisor.engine.presence import presence
from supervisor.engine.store_writer import ignore_abandoned
from supervisor.errors import StoreError
from supervisor.events import Bus, ClockStepped, PruneRefused
from supervisor.stores.protocol import Store
from supervisor.stores.records import Retention

if TYPE_CHECKING:
    from supervisor.engine.coordinator import Engine

MAX_PRUNED = 1000
PRUNE_PERIODS = 10
UNTRACKED_PERIODS = 10
RETRY_REFUSED_PERIODS = 5
CLOCK_STEP = 1.0


class Housekeeping:
    """`news` says that workers or jobs have changed since the supervisor last told of itself."""

    def __init__(
        self, engine: Engine, bus: Bus, loop: asyncio.AbstractEventLoop, wall: Callable[[], float],
        suspended: Callable[[], float],
    ) -> None:  # fmt: skip
        self.news = True
        self._engine = engine
        self._loop = loop
        self._bus = bus
        self._wall = wall
        self._suspended = suspended
        self._wall_ahead = self._ahead()
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._periods = 0
        self._announced_at = 0.0
        self._prune_refused = ""

    def tick(self, state: str) -> None:
        self._periods += 1
        self._watch_the_clock()
        self._begin(self._look_around, state)
        if self._periods % PRUNE_PERIODS == 0:
            self._begin(self.prune)
        self._engine.committer.retry_locked()
        if self._periods % RETRY_REFUSED_PERIODS == 0:
            self._engine.committer.retry_refused()

    def look_for_paused(self) -> None:
        """Somebody rang: it may have been for a queue that was paused."""
        self._begin(self._release_paused)

    def _begin(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Each at most once at a time: while the store is slow to answer, what is asked of it must not heap up."""
        task = self._under_way.get(work.__name__)
        if task is None or task.done():
            self._under_way[work.__name__] = self._engine.spawn(work(*arguments))

    def _watch_the_clock(self) -> None:
        """After a step of it our leases may seem expired to others, and theirs to us."""
        before, self._wall_ahead = self._wall_ahead, self._ahead()
        if abs(step := self._wall_ahead - before) > CLOCK_STEP:
            self._bus.emit(ClockStepped(step))
            self._engine.recovery.forget()
            self._engine.spawn(self._engine.extend_leases())

    def _ahead(self) -> float:
        return self._wall() - self._loop.time() - self._suspended()

    async def _look_around(self, state: str) -> None:
        if self._engine.writer.unavailable:
            return
        self._announce(state)
        if len(self._engine.leases) or self._periods % UNTRACKED_PERIODS == 0:
            await self._engine.check_leases()
        await self._engine.recovery.sweep()
        if len(self._engine.fetcher):
            await self._release_paused()
        self._engine.fetcher.forget_started()
        self._engine.release(self._engine.fetcher.surplus(), "more than can be held")
        if self._engine.fetcher.has_blocked_jobs():
            await self._release_to_idle()

    def _announce(self, state: str) -> None:
        """With news, or every ttl/3; start marks go along."""
        now = self._loop.time()
        if self.news or now - self._announced_at >= self._engine.settings.lease.ttl / 3:
            self.news, self._announced_at = False, now
            row = presence(state, self._engine.pool, now, self._engine.settings.lease.ttl)
            running, ttl = self._engine.running(), self._engine.settings.lease.ttl

            def announce(store: Store) -> None:
                store.announce(row)
                if running:
                    store.extend((), ttl, running)

            self._engine.writer.submit(announce).add_done_callback(ignore_abandoned)

    async def _release_paused(self) -> None:
        """Jobs held here of a queue that was paused meanwhile."""
        for queue in sorted(await self._engine.writer.submit(lambda store: store.paused())):
            self._engine.release(self._engine.fetcher.take_queue(queue), "paused")

    async def _release_to_idle(self) -> None:
        """What waits here goes back while another supervisor idles."""
        stats = await self._engine.writer.submit(lambda store: store.stats())
        others = [row for row in stats["supervisors"] if any(_idle(worker) for worker in row["workers"])]
        if others and not self._engine.pool.idle_count():
            self._engine.release(self._engine.fetcher.take_all(), "others idle")

    async def prune(self) -> None:
        if self._engine.writer.unavailable:
            return
        kept = self._engine.settings.retention
        keep = Retention(kept.succeeded, kept.cancelled, kept.failed)
        refused = ""
        try:
            while await self._engine.writer.submit(lambda store: store.prune(keep, MAX_PRUNED)) >= MAX_PRUNED:
                pass
        except StoreError as error:  # jobs run without it
            refused = str(error)
            if refused != self._prune_refused:
                self._bus.emit(PruneRefused(refused))
        self._prune_refused = refused


def _idle(worker: Mapping[str, Any]) -> bool:
    return bool(worker["state"] == "idle")
