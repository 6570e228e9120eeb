"""Wire the parts of the engine, and pass reports from one part to another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from typing import Any

from supervisor.config.settings import Settings
from supervisor.engine.claim_planner import ClaimPlanner
from supervisor.engine.committer import Committer, RetryDecider, Summary
from supervisor.engine.current_config import CurrentConfig, emit_plugin_events
from supervisor.engine.dispatcher import Dispatcher
from supervisor.engine.fairness import JobBuffers
from supervisor.engine.fetcher import Fetcher, Intake
from supervisor.engine.group_shares import GroupShares
from supervisor.engine.held_back import HeldBackRelease
from supervisor.engine.job_reports import JobReports
from supervisor.engine.lease_keeper import LeaseKeeper
from supervisor.engine.leases import Leases
from supervisor.engine.limit_watch import LimitWatch
from supervisor.engine.limits import DEFAULT_LIMITS, Limits
from supervisor.engine.maintenance import Maintenance, Pruner, Repairer, SinkWatch, WallClock
from supervisor.engine.own_problems import OwnProblems
from supervisor.engine.presence import Announcer
from supervisor.engine.recovery import Recovery
from supervisor.engine.scaling import Scaling
from supervisor.engine.schedules import ScheduleTimer
from supervisor.engine.self_report import SelfReport
from supervisor.engine.store_writer import Purpose, Writer
from supervisor.engine.suspects import Suspects
from supervisor.engine.tasks import BackgroundTasks, report_error
from supervisor.engine.unknown_handlers import UnknownHandlers
from supervisor.engine.watchdog import Watchdog, seconds_suspended
from supervisor.events import MAX_COUNTED, Bus
from supervisor.plugins.reports import SourceReport, changed_reports, same_plugins
from supervisor.retry import Random
from supervisor.stores.protocol import Store
from supervisor.text.os_errors import reason
from supervisor.workers.blame import SHUTDOWN
from supervisor.workers.interface import WorkerBackend
from supervisor.workers.limits import Limits as WorkerLimits
from supervisor.workers.limits import limits_of
from supervisor.workers.pool import Pool
from supervisor.workers.worker_group import OTHERS

KILL_SECONDS = 10.0
FORCED_SECONDS = 2.0
"""Seconds for which killed workers are awaited at the end, and the same after a second signal. The jobs of those that have not
exited by then are recovered when their leases expire."""


class Coordinator:
    """The engine as the rest of the program sees it. It runs on the loop, except for the calls that it gives to the writer.

    It is the listener of the pool: outcomes go straight to the committer, and reclaimed jobs to the fetcher. `changes` is set
    whenever something has changed that a drain may wait for.
    """

    def __init__(
        self, store: Store, pool: Pool, settings: Settings, reports: Sequence[SourceReport], bus: Bus,
        loop: asyncio.AbstractEventLoop, writer: Writer, *, random: Random, on_dead_letter: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time, suspended: Callable[[], float] = seconds_suspended,
        limits: Limits = DEFAULT_LIMITS, executor: Executor | None = None,
    ) -> None:  # fmt: skip
        ttl, now, self.pool, self.writer, self.store_url = settings.lease.ttl, loop.time, pool, writer, store.url
        self.changes, self.tasks, self._executor = asyncio.Event(), BackgroundTasks(loop), executor
        self._store, self._bus, self._loop, self._on_dead_letter = store, bus, loop, on_dead_letter
        self.config = config = CurrentConfig(settings, reports)
        self.leases, self.buffers = leases, buffers = Leases(writer, pool, ttl, JobReports(loop)), JobBuffers(config)
        self.unknown_handlers = unknown = UnknownHandlers(config, pool, writer, bus, now, limits)
        decider, heartbeat_timeout = RetryDecider(config, buffers, random, now), settings.workers.heartbeat_timeout
        self.committer = committer = Committer(
            writer, leases, decider, unknown, bus, now=now, limits=limits, on_settled=self._settled,
            on_relieved=lambda: self.fetcher.pump(),
        )  # fmt: skip
        keeper = LeaseKeeper(writer, leases, buffers, committer, pool, bus, loop, self.tasks, limits, config)
        self.lease_keeper, self.limit_watch = keeper, LimitWatch(pool, loop, random)
        self.recovery = Recovery(writer, decider, bus, ttl=ttl, now=now, limits=limits, on_recovered=self._recovered)
        self.watchdog = watchdog = Watchdog(pool, bus, loop, heartbeat_timeout, self._woke_from_gap, suspended, limits)
        dispatcher = Dispatcher(pool, leases, buffers, committer, watchdog, loop)
        planner = ClaimPlanner(pool, leases, buffers, dispatcher, config, limits)
        self._suspects = suspects = Suspects(writer, leases, buffers, committer, keeper, pool, loop, random)
        intake = Intake(leases, buffers, committer, unknown, suspects, keeper, config)
        self.fetcher = Fetcher(writer, planner, dispatcher, buffers, intake, bus, loop, limits, self._notify_others)
        self.self_report = SelfReport(config, pool, writer, dispatcher, decider, unknown, suspects, bus, ttl, now)
        self._announcer = announcer = Announcer(writer, pool, leases, loop, self.self_report)
        self.problems = OwnProblems(self.self_report, writer, self.fetcher, announcer, now).now
        self.scaling, pruner = Scaling(pool, buffers, bus, loop, limits.scaling), Pruner(writer, config, now)
        self.schedules = ScheduleTimer(store, config, writer, bus, loop, self.tasks, random, wall, self.fetcher.notify)
        repairer, clock = Repairer(writer, pool, bus, now, self.fetcher.notify), WallClock(bus, loop, wall, suspended)
        self._maintenance = maintenance = Maintenance(
            writer, pool, leases, keeper, self.recovery, buffers, dispatcher, committer, announcer, pruner, repairer,
            SinkWatch(writer, bus, now), GroupShares(writer, config), clock, HeldBackRelease(writer, config, self._recovered, now),
            self.tasks,
        )  # fmt: skip
        self.jobs_ended, self.job_wrote, self.prune = committer.jobs_ended, leases.job_wrote, pruner.prune
        self.recover, self.jobs_reclaimed = self.recovery.recover_all, self.fetcher.jobs_reclaimed
        self.maintain, self.announce, self.blocked = maintenance.run, announcer.announce, self.self_report.blocked

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def handlers(self) -> Collection[str]:
        """The names of the handlers that the plugins serve."""
        return self.config.handlers.keys()

    def serve(self, backend: WorkerBackend) -> None:
        notification_fd = self._store.notification_fd()
        if notification_fd is not None:
            self._loop.add_reader(notification_fd, self.store_notified)
        self.self_report.limits_reached = self.fetcher.limits_reached
        self.self_report.limits_reached_until = self.fetcher.limits_reached_until
        self.lease_keeper.start()
        self.watchdog.start()
        self.limit_watch.watch(self.settings.workers)
        self.scaling.watch()
        self.pool.async_workers.options = self.config.async_options
        self.pool.open(backend, self)
        self.unknown_handlers.serve(self.config.handlers.keys())
        self.fetcher.open()
        self._maintenance.release_held_back_soon()

    # reports of the parts

    def workers_changed(self) -> None:
        self.changes.set()
        self.fetcher.worker_changed()
        self.watchdog.work_ended()

    def plugins_reported(self, reports: Sequence[SourceReport]) -> None:
        """Use the plugins that a new forkserver has found: a file may have changed since the last one started."""
        before = self.config.reports
        self._replace(self.settings, reports)
        if not same_plugins(reports, before):
            emit_plugin_events(self._bus, changed_reports(reports, before), self.settings)
            self._serve_by(self.pool.backend)

    def _settled(self, summary: Summary) -> None:
        if summary.dead_letters:
            self._on_dead_letter()
        if summary.due_in is not None:
            self.fetcher.timers.due_at(self._loop.time() + summary.due_in)
        if self._suspects.busy:
            self._suspects.look()
        if summary.ready:
            groups = {self.config.group_of.get(queue, OTHERS) for queue in summary.ready}
            self.fetcher.jobs_released(worker_idle=any(self.pool.groups[name].idle_count() for name in groups))
        if summary.ready or (summary.due_in is not None and self.fetcher.closed):
            self._notify_others()
        self.changes.set()

    def _recovered(self, summary: Summary) -> None:
        self._settled(summary)
        self.fetcher.notify()

    def _woke_from_gap(self) -> None:
        self.recovery.forget()
        self.lease_keeper.gap_ended()
        self.tasks.start(self._check_after_gap())

    async def _check_after_gap(self) -> None:
        try:
            await self.lease_keeper.check_after_gap()
        finally:
            self.fetcher.pump()

    def store_notified(self) -> None:
        self._store.clear_notifications()
        self.fetcher.notify()
        self.lease_keeper.check_if_few()
        self._maintenance.release_unserved_soon()

    def _notify_others(self) -> None:
        self.tasks.start(self._notify())

    async def _notify(self) -> None:
        await self.writer.submit(lambda store: None)  # after the commit
        await self._loop.run_in_executor(self._executor, self._store.notify)

    # changes while it runs

    async def first_worker(self, settings: Settings, backend: WorkerBackend) -> tuple[str, ...]:
        """Start a worker of a backend that is to be taken over: while none can be started, the old workers must go on. Return the
        reason why it ended before it was ready, if it did; otherwise it is one of the pool."""
        try:
            slot = self.pool.fork_first(backend, _worker_limits(settings))
        except OSError as error:
            return (f"no new worker could be started: {reason(error)}",)
        while slot.ready_at is None and slot.number in self.pool.workers:
            await self._until_change(timeout=1.0)
        return () if slot.ready_at is not None else (f"the first new worker ended before it was ready: {slot.how}",)

    def renew(self, settings: Settings, backend: WorkerBackend, reports: Sequence[SourceReport]) -> None:
        """Serve with these settings and plugins. The old workers exit after the job that they run; no job is dropped."""
        self.pool.configure(settings.workers.sizes)
        self._replace(settings, reports)
        self.watchdog.idle_heartbeat_timeout = settings.workers.heartbeat_timeout
        self.pool.limits = _worker_limits(settings)
        self.limit_watch.watch(settings.workers)
        self._serve_by(backend)
        self.scaling.watch()

    def _replace(self, settings: Settings, reports: Sequence[SourceReport]) -> None:
        before = {*self.handlers}
        self.config.replace(settings, reports)
        self.unknown_handlers.serve(self.config.handlers.keys() - before)
        self.schedules.replace()

    def _serve_by(self, backend: WorkerBackend) -> None:
        self.buffers.reconfigure()
        self.pool.async_workers.options = self.config.async_options
        self.pool.renew(backend)
        self._maintenance.release_unserved_soon()
        self._maintenance.release_held_back_soon()
        self.fetcher.notify()

    async def until_gone(self, backend: WorkerBackend) -> None:
        while any(worker.backend is backend for worker in self.pool.slots):
            await self._until_change(timeout=1.0)

    def status(self, owner: str, state: str) -> dict[str, Any]:
        row = self._announcer.presence(state)
        return {
            "owner": owner, "state": row.state, "workers": list(row.workers), "leases": len(self.leases),
            "buffered": len(self.buffers), "store_unavailable": self.writer.unavailable,
        }  # fmt: skip

    # ending

    @property
    def quiet(self) -> bool:
        """Whether nothing is claimable in the store, held or unsettled."""
        return self.fetcher.quiet and not len(self.leases) and self.committer.idle

    async def remaining(self, latest: float | None, most: int = MAX_COUNTED) -> dict[str, int]:
        """Return what `Store.remaining` counts in the queues served here; of scheduled jobs only those that a plugin serves."""
        served, handlers = self.settings.workers.queues, self.handlers
        return await self.writer.submit(lambda store: store.remaining(served, latest, most, handlers), Purpose.COUNT)

    async def drain(self, grace: float, forced: asyncio.Event) -> None:
        """Claim no more, release jobs that have not started, and wait for those that run, for `grace` seconds or until `forced`
        is set; then kill and release them."""
        self.schedules.stop()
        self.committer.release(self.fetcher.close(), "shutdown")
        self._notify_others()  # nothing comes due here any more
        self.pool.reclaim_unstarted()
        self.pool.stop()
        deadline = self._loop.time() + grace
        while self.pool.slots and not forced.is_set() and self._loop.time() < deadline:
            await self._until_change(forced, timeout=deadline - self._loop.time())
        if self.pool.slots:
            self.pool.kill_all(SHUTDOWN)
        killed_at = self._loop.time()
        while self.pool.slots:
            if self._loop.time() - killed_at >= (FORCED_SECONDS if forced.is_set() else KILL_SECONDS):
                return
            await self._until_change(timeout=1.0)

    async def _until_change(self, *or_events: asyncio.Event, timeout: float) -> None:
        self.changes.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (self.changes, *or_events)]
        await asyncio.wait(waits, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def settle_all(self) -> None:
        if self.fetcher.claiming:
            await self.writer.submit(lambda store: None)  # the claim may bring jobs, which are released
        await self.committer.finish()

    async def close(self, timeout: float) -> None:
        self.tasks.cancel()
        self.watchdog.stop()
        self.limit_watch.stop()
        self.scaling.stop()
        self.lease_keeper.stop()
        self.schedules.stop()
        notification_fd = self._store.notification_fd()
        if notification_fd is not None:
            self._loop.remove_reader(notification_fd)
        if reports := self.leases.reports.changes():  # of lines that were read after the outcome
            keep = self.writer.submit(lambda store: store.keep_reports(reports), Purpose.REPORT)
            keep.add_done_callback(report_error)
        self.writer.submit(_leave, Purpose.LEAVE).add_done_callback(report_error)
        if await self.writer.close(timeout):
            self._store.close()


def _worker_limits(settings: Settings) -> WorkerLimits:
    workers = settings.workers
    return limits_of(workers.max_jobs, workers.max_memory, workers.max_memory_hard)


def _leave(store: Store) -> None:
    """Have the others look, since no job comes due here any more: the last of those that ran may have been scheduled again."""
    store.notify()
    store.leave()
