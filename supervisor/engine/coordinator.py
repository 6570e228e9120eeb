"""The parts that move jobs, wired together: what the pool tells goes to the fetcher and the committer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from supervisor.config.settings import Settings
from supervisor.engine.committer import Committer, release
from supervisor.engine.fetcher import HEAD_START, Fetcher
from supervisor.engine.leases import Leases
from supervisor.engine.maintenance import Housekeeping
from supervisor.engine.plugin_changes import emit_plugin_events
from supervisor.engine.poll_intervals import USUAL, PollIntervals
from supervisor.engine.presence import presence
from supervisor.engine.recovery import Recovery
from supervisor.engine.store_writer import Abandoned, Writer, ignore_abandoned
from supervisor.engine.unknown_handlers import MissingHandlers
from supervisor.engine.watchdog import Watchdog, seconds_suspended
from supervisor.events import (
    MAX_COUNTED,
    Bus,
    Event,
    JobCancelled,
    JobsReleased,
    JobsSettled,
    JobsStale,
    JobStarted,
    LeasesRecovered,
    StoreAvailableAgain,
    WorkerExited,
    WorkerStarted,
)
from supervisor.handlers import HandlerInfo
from supervisor.jobs import Cause, JobState, Kind, Lease, Outcome, Policy
from supervisor.plugins.reports import SourceReport, news, same_plugins
from supervisor.retry import Random, release_for_later, unknown_handler
from supervisor.stores.protocol import Store
from supervisor.workers.interface import WorkerBackend
from supervisor.workers.kill_reasons import LEASE_LOST, SHUTDOWN
from supervisor.workers.pool import Pool

MAX_CHECKED = 200
KILL_SECONDS = 10.0
FORCED_SECONDS = 2.0
"""The same where a second signal came: what is not seen dead by then is recovered when its lease ends."""


class Engine:
    """Implements the pool's listener. All of it runs on the loop; only what is given to the writer does not."""

    def __init__(
        self, store: Store, pool: Pool, settings: Settings, reports: Sequence[SourceReport], bus: Bus,
        loop: asyncio.AbstractEventLoop, writer: Writer, *, random: Random, wall: Callable[[], float] = time.time,
        suspended: Callable[[], float] = seconds_suspended, intervals: PollIntervals = USUAL,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.pool = pool
        self.writer = writer
        self.store_url = store.url
        self.on_dead_letter: Callable[[], None] = lambda: None
        # Ids of jobs put off because no plugin serves them, where someone asks.
        self.unknown_jobs: set[int] | None = None
        self.changes = asyncio.Event()
        self._store = store
        self._bus = bus
        self._loop = loop
        self._infos: Mapping[str, HandlerInfo] = {}
        self._reports = list(reports)
        self._absences = MissingHandlers()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order they were begun
        self._housekeeping = Housekeeping(self, bus, loop, wall, suspended)
        self._learn(reports)
        ttl = settings.lease.ttl
        self.leases = Leases(self.writer, ttl, self.running)
        self.committer = Committer(
            self.writer, self.leases, settings, bus, random=random, now=loop.time, ready=self._ready_in, running=self.running,
            relieved=self._relieved,
        )  # fmt: skip
        self.recovery = Recovery(self.writer, ttl, bus, now=loop.time, decide=self.committer.decide)
        self.fetcher = Fetcher(
            self.writer, pool, self.leases, settings, bus, loop, known=self._known, unknown=self._unknown,
            overtaken=self._overtaken, release=self.release, may_dispatch=self._may_dispatch,
            dispatched=lambda worker: self.watchdog.work_sent(worker), intervals=intervals,
        )  # fmt: skip
        self.watchdog = Watchdog(
            pool, bus, loop, settings.workers.heartbeat_timeout, woke_from_gap=self._woke_from_gap, suspended=suspended,
            intervals=intervals,
        )  # fmt: skip
        self._extension: asyncio.TimerHandle | None = None
        self._checking_after_gap = False
        self._pump_asked = False
        bus.subscribe(self._on_event)

    def _known(self, handler: str) -> bool:
        return handler in self._infos

    def _learn(self, reports: Sequence[SourceReport]) -> None:
        self._reports = list(reports)
        self._infos = {info.name: info for report in reports for info in report.handlers}
        self._absences.end(self._infos)
        if self.unknown_jobs is not None:  # those that still are will be found out again
            self.unknown_jobs.clear()

    async def recover(self) -> None:
        """At start, until none is left that may be recovered at once."""
        while await self.recovery.sweep():
            pass

    def serve(self, backend: WorkerBackend) -> None:
        notification_fd = self._store.notification_fd()
        if notification_fd is not None:
            self._loop.add_reader(notification_fd, self._notified)
        self._extend_later()
        self.watchdog.start()
        self.pool.open(backend, self)
        self.fetcher.open(self._resolver())

    def _resolver(self) -> Callable[[str, str], Policy]:
        settings, infos = self.settings, self._infos
        return lambda handler, queue: settings.policy(handler, queue, infos)

    # what the pool tells (PoolListener)

    def jobs_ended(self, outcomes: list[Outcome]) -> None:
        held = self.leases.outcomes_of_ours(outcomes)
        unknown = [outcome for outcome in held if outcome[4] is not None and _not_known(outcome)]
        if unknown:
            held = [outcome for outcome in held if not _not_known(outcome)]
            self._not_imported([outcome for outcome in unknown if self._known(outcome.lease.handler)])
            self._unknown([outcome.lease for outcome in unknown if not self._known(outcome.lease.handler)])
        self.committer.add(held)

    def jobs_reclaimed(self, leases: list[Lease]) -> None:
        if self.fetcher.closed:
            self.release(leases, "shutdown")
        else:
            self.fetcher.requeue(self.leases.of_ours(leases))
            self._pump_soon()

    def _pump_soon(self) -> None:
        """Not now: the pool may be walking over its workers."""
        if not self._pump_asked:
            self._pump_asked = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_asked = False
        self.fetcher.pump()

    def workers_changed(self) -> None:
        self.changes.set()
        self.fetcher.worker_changed()
        self.watchdog.work_ended()

    def plugins_reported(self, reports: Sequence[SourceReport]) -> None:
        """By a new nursery, after the last one died: a file may have been changed, mended or torn meanwhile."""
        before = self._reports
        self._learn(reports)
        if not same_plugins(reports, before):
            emit_plugin_events(self._bus, news(reports, before), self.settings)
            self._serve_by(self.pool.backend)

    # what goes on besides

    def running(self, seconds: float = 0.0) -> list[Lease]:
        return [lease for _, lease in self.pool.running(seconds)]

    def _ready_in(self, queue: str) -> int:
        return self.fetcher.ready_in(queue)

    def _notified(self) -> None:
        self._store.clear_notifications()
        self.fetcher.notify()
        if 0 < len(self.leases) <= MAX_CHECKED:
            self.spawn(self.check_leases())
        if len(self.fetcher):
            self._housekeeping.look_for_paused()

    def _not_imported(self, outcomes: list[Outcome]) -> None:
        """By the worker that was to run these, unlike its siblings: they are not missed here."""
        if not outcomes:
            return
        leases = [outcome.lease for outcome in outcomes]
        failure = outcomes[0].failure
        replaced = failure is not None and self.pool.replace(failure.pid or 0)
        self._bus.emit(JobsReleased(leases, "not_imported"))
        self.committer.add(release(leases) if replaced else [release_for_later(lease) for lease in leases])

    def _unknown(self, leases: list[Lease]) -> None:
        if not leases:
            return
        now, grace = self._loop.time(), self.settings.unknown_handler.grace
        outcomes = []
        for lease in leases:
            again_in = lease.policy.backoff.max
            missed_for = self._absences.missed_for(lease, now, grace=grace, again_in=again_in)
            outcomes.append(unknown_handler(lease, unknown_for=missed_for, grace=grace))
        if self.unknown_jobs is not None:
            self.unknown_jobs.update(lease.id for lease in leases)
        self._bus.emit(JobsReleased(leases, "unknown_handler"))
        self.committer.add(outcomes)

    def release(self, leases: list[Lease], reason: str) -> None:
        held = self.leases.of_ours(leases)
        if held:
            self._bus.emit(JobsReleased(held, reason))
            self.committer.add(release(held))

    def _overtaken(self, claimed: Sequence[Lease]) -> None:
        """Ours under a new token: what still runs under the old one must not run twice."""
        self._give_up(self.leases.same_jobs(claimed), "claim")

    def _on_event(self, event: Event) -> None:
        """What others have done that the engine must act on."""
        if isinstance(event, JobsSettled | LeasesRecovered):
            self._housekeeping.news = True
            if isinstance(event, LeasesRecovered):
                self._after_settle(event.outcomes)
                self.fetcher.notify()
            else:
                self._after_settle(event.outcomes, event.age)
        elif isinstance(event, StoreAvailableAgain):
            self.recovery.forget()
        elif isinstance(event, JobStarted | WorkerStarted | WorkerExited):
            self._housekeeping.news = True

    def _after_settle(self, outcomes: Sequence[Outcome], age: float = 0.0) -> None:
        soonest: float | None = None
        notify, succeeded = False, JobState.SUCCEEDED
        for outcome in [outcome for outcome in outcomes if outcome[7] is not succeeded]:
            if outcome.dead_letter:
                self.on_dead_letter()
            elif outcome.state is JobState.READY:
                notify = True
            elif outcome.state is JobState.SCHEDULED:
                put_off = outcome.kind is Kind.RELEASED
                notify = notify or put_off  # others may have its handler
                delay = outcome.delay + HEAD_START if put_off else outcome.delay
                soonest = delay if soonest is None else min(soonest, delay)
        if soonest is not None:
            self.fetcher.due_at(self._loop.time() + soonest - age)
        if notify:
            self.fetcher.released()
            self.spawn(self._notify_others())
        self.changes.set()

    async def _notify_others(self) -> None:
        await self.writer.submit(lambda store: None)  # after the commit
        await self._loop.run_in_executor(None, self._store.notify)

    # leases

    def _extend_later(self) -> None:
        self._extension = self._loop.call_later(self.settings.lease.ttl / 3, self._extend)

    def _extend(self) -> None:
        self._extend_later()
        self.spawn(self.extend_leases())

    async def extend_leases(self) -> None:
        self._give_up(await self.leases.extend(), "extend")

    async def check_leases(self) -> None:
        lost, untracked = await self.leases.check()
        self._give_up(lost, "check")
        if untracked:
            self.leases.add(found := await self.writer.submit(lambda store: store.leases([id for id, _ in untracked])))
            self.release(found, "late claim")

    def _give_up(self, lost: list[Lease], what: str) -> None:
        """Leases that are not ours any more: what runs is killed at once, what waits is dropped."""
        if not lost:
            return
        self.fetcher.take_out(lost)
        self.leases.drop(lost)
        killed: dict[int, int] = {}
        for lease in lost:
            worker = self.pool.slot_of(lease.id)
            if worker is None:
                continue
            self.pool.reclaim_blocked(worker)  # the jobs behind it, and it too if it has not started
            worker.process.drain()  # those before it may have ended
            if worker.current is not None and worker.current.id == lease.id:
                killed[lease.id] = worker.process.pid or 0
                self.pool.kill(worker, LEASE_LOST)
        self.spawn(self._tell_lost(lost, killed, what))

    async def _tell_lost(self, lost: list[Lease], killed: Mapping[int, int], what: str) -> None:
        """Cancelled, or taken over: the store is asked when all is killed; of a crowd, only for what ran, since nothing else is
        written meanwhile. `killed` has pids, by job."""
        asked = lost if len(lost) <= MAX_CHECKED else [lease for lease in lost if lease.id in killed]
        cancelled = await self.writer.submit(lambda store: _cancelled(store, asked))
        stale = [lease for lease in lost if lease.id not in cancelled]
        if stale:
            self._bus.emit(JobsStale(stale, what))
        for lease in lost:
            if lease.id in cancelled and lease.id in killed:
                self._bus.emit(JobCancelled(lease, killed[lease.id]))

    def _may_dispatch(self) -> bool:
        if self.watchdog.late():
            self.watchdog.sweep()
        return not self._checking_after_gap and not self.committer.overfull

    def _relieved(self) -> None:
        self.fetcher.pump()

    def _woke_from_gap(self) -> None:
        """Leases are checked before anything else is dispatched."""
        self.recovery.forget()
        self._checking_after_gap = True
        self.spawn(self._check_after_gap())

    async def _check_after_gap(self) -> None:
        try:
            await self.leases.extended()  # what was asked for before the gap proves nothing
            await self.extend_leases()
        finally:
            self._checking_after_gap = False
            self.fetcher.pump()

    def tick(self, state: str) -> None:
        """Once a second; `state` is the supervisor's."""
        self._housekeeping.tick(state)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Abandoned):
            self._loop.call_exception_handler({"message": "a part of the engine failed", "exception": error})

    # changes while it runs

    def newly_broken(self, reports: Sequence[SourceReport]) -> tuple[str, ...]:
        """Files that served before and no longer do, each with its error."""
        serving = {report.source for report in self._reports if report.error is None}
        return tuple(
            f"{report.source}:{report.line or ''}: {report.error}"
            for report in reports
            if report.error is not None and report.source in serving
        )

    def renew(self, settings: Settings, backend: WorkerBackend, reports: Sequence[SourceReport]) -> None:
        """Workers of the old nursery end after what they run; no job is dropped."""
        self.settings = settings
        self._learn(reports)
        self.committer.configure(settings)
        self.watchdog.idle_heartbeat_timeout = settings.workers.heartbeat_timeout
        self.pool.max_jobs, self.pool.max_memory = settings.workers.max_jobs, settings.workers.max_memory
        self.pool.count = settings.workers.count
        self._serve_by(backend)

    def _serve_by(self, backend: WorkerBackend) -> None:
        self.fetcher.configure(self.settings, self._resolver())
        self.pool.renew(backend)
        self.fetcher.notify()

    async def until_gone(self, backend: WorkerBackend) -> None:
        """Until no worker of these is left."""
        while any(worker.backend is backend for worker in self.pool.workers.values()):
            self.changes.clear()
            await _first_of(self.changes, timeout=1.0)

    def status(self, owner: str, state: str) -> dict[str, Any]:
        row = presence(state, self.pool, self._loop.time(), self.settings.lease.ttl)
        return {
            "owner": owner, "state": row.state, "workers": list(row.workers), "leases": len(self.leases),
            "held": len(self.fetcher), "store_away": self.writer.unavailable,
        }  # fmt: skip

    # ending

    @property
    def quiet(self) -> bool:
        return self.fetcher.quiet and not len(self.leases) and self.committer.idle

    async def remaining(self, latest: float | None, most: int = MAX_COUNTED) -> dict[str, int]:
        served = self.settings.workers.queues
        return await self.writer.submit(lambda store: store.remaining(served, latest, most))

    async def drain(self, grace: float, forced: asyncio.Event) -> None:
        """Claim no more, give back what has not started, wait for what runs; then kill and release it."""
        self.release(self.fetcher.close(), "shutdown")
        self.pool.reclaim_unstarted()
        self.pool.stop()
        deadline = self._loop.time() + grace
        while self.pool.workers and not forced.is_set() and self._loop.time() < deadline:
            self.changes.clear()
            await _first_of(self.changes, forced, timeout=deadline - self._loop.time())
        if self.pool.workers:
            self.pool.kill_all(SHUTDOWN)
        killed_at = self._loop.time()
        while self.pool.workers and self._loop.time() - killed_at < (
            FORCED_SECONDS if forced.is_set() else KILL_SECONDS
        ):
            self.changes.clear()
            await _first_of(self.changes, timeout=1.0)

    async def settle_all(self) -> None:
        """Settle what has ended."""
        if self.fetcher.claiming:
            await self.writer.submit(lambda store: None)  # it may bring jobs, which are given back
        await self.committer.finish()

    async def prune(self) -> None:
        """Delete what is past its retention, until there is no more of it."""
        await self._housekeeping.prune()

    async def close(self, timeout: float) -> None:
        for task in [*self._tasks]:
            task.cancel()
        self.watchdog.stop()
        if self._extension is not None:
            self._extension.cancel()
        notification_fd = self._store.notification_fd()
        if notification_fd is not None:
            self._loop.remove_reader(notification_fd)
        self.writer.submit(lambda store: store.leave()).add_done_callback(ignore_abandoned)
        if await self.writer.close(timeout):
            self._store.close()


def _cancelled(store: Store, leases: Sequence[Lease]) -> set[int]:
    jobs = [store.get(lease.id) for lease in leases]
    return {job["id"] for job in jobs if job is not None and job["state"] == JobState.CANCELLED.value}


def _not_known(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.cause is Cause.UNKNOWN_HANDLER


async def _first_of(*events: asyncio.Event, timeout: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
