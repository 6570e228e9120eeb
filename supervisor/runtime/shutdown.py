"""End a run, from the request to stop to the exit code; each step has a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum, IntEnum
from os import EX_TEMPFAIL
from typing import Any, NamedTuple

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.store_writer import CallFailed
from supervisor.events import Bus, StoreBecameUnavailable
from supervisor.plugins.manager import PluginManager
from supervisor.runtime.drain import Left, count_left
from supervisor.runtime.forkservers import Forkservers
from supervisor.runtime.hook_runner import HookRunner
from supervisor.runtime.registration import Registration
from supervisor.runtime.signals import StopRequest
from supervisor.runtime.tasks import cancel, done_or_set
from supervisor.runtime.web import Web
from supervisor.workers.pool import Pool


class ExitCode(IntEnum):
    DRAINED = 0
    FATAL = 1
    MISTAKE = 2
    FORCED = 3
    LEFT_BEHIND = 4
    UNAVAILABLE = EX_TEMPFAIL


class ShutdownLimits(NamedTuple):
    """The limits of the steps, in seconds."""

    flush: float = 5.0  # for the store, a sink or a hook to end its work
    dead_letters: float = 2.0  # for pending dead letters to be published
    forced: float = 1.0  # for each step after a second signal


USUAL_LIMITS = ShutdownLimits()


@dataclass(frozen=True)
class Serving:
    """The parts that move jobs."""

    engine: Coordinator
    dead_letters: DeadLetterPublisher


@dataclass
class Parts:
    """The parts of one run. Each is idle until the start reaches it; `serving` does not exist before the store is joined and the
    plugins are loaded, nor `periods` before jobs are claimed."""

    pool: Pool
    plugins: PluginManager
    registration: Registration
    forkservers: Forkservers
    hooks: HookRunner
    serving: Serving | None = None
    periods: asyncio.Task[None] | None = None
    web: Web | None = None


class Settled(Enum):
    """How many of the outcomes the store has taken; UNKNOWN if it has not answered in time."""

    ALL = "all"
    SOME = "some"
    UNKNOWN = "unknown"


class Shutdown:
    """Ends the parts, however far the start came; jobs in flight have `grace` seconds to end."""

    def __init__(
        self, parts: Parts, stop: StopRequest, bus: Bus, grace: float, limits: ShutdownLimits = USUAL_LIMITS
    ) -> None:
        self._parts = parts
        self._stop = stop
        self._bus = bus
        self._grace = grace
        self._limits = limits

    async def run(self, *, drain: bool) -> tuple[ExitCode, Left]:
        """End all parts, and return the exit code and what is left."""
        serving, left = self._parts.serving, Left({}, {})
        if serving is None:
            settled = Settled.UNKNOWN if drain else Settled.ALL  # a drain that has not begun has not done its work
            await self._stop_processes()
            await self._parts.registration.leave(self._limits.flush)
        else:
            settled, left = await self._finish_jobs(serving, drain)
            await self._stop_processes()
            timeout = 0.0 if settled is Settled.UNKNOWN else self._limits.flush
            await self.wait_for(serving.engine.close(timeout), 2 * self._limits.flush)
        await self.wait_for(self._parts.hooks.stop())
        if processes := len(self._parts.pool.slots) + len(self._parts.pool.stuck):
            left = left._replace(remaining={**left.remaining, "processes_that_do_not_exit": processes})
            return ExitCode.FATAL, left
        if serving is None and drain and self._stop.fault is None and not self._stop.signalled.is_set():
            return ExitCode.UNAVAILABLE, left  # it has given up to join the store
        return self.exit_code(settled, left.remaining), left

    async def _finish_jobs(self, serving: Serving, drain: bool) -> tuple[Settled, Left]:
        """Wait for running jobs, settle all outcomes and publish dead letters. Only a drain counts the jobs that are left in the
        store."""
        engine = serving.engine
        await engine.drain(self._grace, self._stop.forced)
        settled = await self._settle(engine)
        left = Left({} if settled is Settled.ALL else self._report_unsettled(engine), {})
        await self._stop_publishing(serving.dead_letters, settled)
        if settled is Settled.ALL and engine.committer.unsettled:
            # While dead letters were published, these were tried too.
            await self.wait_for(engine.committer.finish(tries=1))
            if engine.committer.unsettled:
                settled, left = Settled.SOME, Left(self._report_unsettled(engine), {})
        if drain and settled is Settled.ALL:
            await self.prune(engine)
            counting = asyncio.ensure_future(count_left(engine, self._parts.registration.latest))
            try:
                settled = Settled.ALL if await self.wait_for(counting) else Settled.UNKNOWN
                left = counting.result() if settled is Settled.ALL else left
            except CallFailed:
                settled = Settled.UNKNOWN
        return settled, left

    async def _stop_processes(self) -> None:
        """Stop the forkservers and their workers: an older one that takes too long for its workers is stopped with the rest."""
        forkservers = self._parts.forkservers
        await self.wait_for(forkservers.retired())
        await forkservers.stop()
        if self._parts.periods is not None:
            self._parts.periods.cancel()
        await self.wait_for(self._parts.registration.joined())

    def exit_code(self, settled: Settled, remaining: dict[str, int]) -> ExitCode:
        if self._stop.fault is not None or settled is not Settled.ALL:
            return ExitCode.FATAL
        if self._stop.forced.is_set():
            return ExitCode.FORCED
        return ExitCode.LEFT_BEHIND if remaining else ExitCode.DRAINED

    async def wait_for(self, work: Awaitable[Any], seconds: float | None = None) -> bool:
        """Return whether the work has ended within `seconds` (by default those of a flush), and cancel it otherwise. A second
        signal cuts the wait short."""
        seconds = self._limits.flush if seconds is None else seconds
        task = asyncio.ensure_future(work)
        await done_or_set(task, self._stop.forced, seconds)
        if not task.done() and self._stop.forced.is_set():
            await asyncio.wait((task,), timeout=min(seconds, self._limits.forced))
        if not task.done():
            await cancel(task)
            return False
        task.result()
        return True

    async def prune(self, engine: Coordinator) -> None:
        """Delete old jobs, which otherwise would never happen if each run is a short drain. A signal cuts it short."""
        if self._stop.signalled.is_set():
            return
        pruning = asyncio.ensure_future(engine.prune())
        await done_or_set(pruning, self._stop.signalled, self._limits.flush)
        if pruning.done():
            pruning.result()
        else:
            await cancel(pruning)

    async def _settle(self, engine: Coordinator) -> Settled:
        """Settle all outcomes, however many they are, as long as the store takes some of them."""
        while True:
            before = engine.committer.batches_settled
            if await self.wait_for(engine.settle_all()):
                return Settled.ALL
            if self._stop.forced.is_set() or engine.committer.batches_settled == before:
                return Settled.UNKNOWN

    def _report_unsettled(self, engine: Coordinator) -> dict[str, int]:
        """Return the number of leases left: their jobs are recovered when they expire. Emit the reason if no event has done so."""
        if not engine.writer.unavailable and not engine.committer.unsettled:
            self._bus.emit(StoreBecameUnavailable(f"{engine.store_url}: it has not answered at the end"))
        return {"unsettled": len(engine.leases)} if len(engine.leases) else {}

    async def _stop_publishing(self, dead_letters: DeadLetterPublisher, settled: Settled) -> None:
        flush, forced = self._limits.flush, self._limits.forced
        if settled is not Settled.UNKNOWN and not self._stop.forced.is_set():
            await self.wait_for(dead_letters.settle_down(), self._limits.dead_letters)
        stopped = await self.wait_for(dead_letters.stop(), forced if settled is Settled.UNKNOWN else flush)
        await self.wait_for(dead_letters.close(), flush if stopped else forced)
