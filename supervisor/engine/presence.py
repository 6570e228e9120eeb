"""The row in which a supervisor publishes what it and its workers do, in the format of `status --json`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from supervisor.engine.leases import Leases
from supervisor.engine.self_report import SelfReport
from supervisor.engine.store_writer import Purpose, Writer
from supervisor.engine.tasks import report_error
from supervisor.stores.records import Presence
from supervisor.workers.interface import State
from supervisor.workers.pool import Pool
from supervisor.workers.slot import WorkerSlot

WATCHED_SECONDS, WATCHED_INTERVAL = 30.0, 2.0
"""For so long after somebody has asked whether the supervisor is ready, its row is written at this interval: an idle supervisor
would otherwise not notice for long that the store takes no writes."""


@dataclass(eq=False)
class Announcer:
    """Writes the row when it has changed, and at least every third of the time to live."""

    _writer: Writer
    _pool: Pool
    _leases: Leases
    _loop: asyncio.AbstractEventLoop
    _self_report: SelfReport
    _last: tuple[Any, ...] = ()
    _announced_at: float = 0.0
    _watched_until: float = 0.0

    def presence(self, state: str) -> Presence:
        """Return the row; `state` is that of the supervisor."""
        now = self._loop.time()
        rows = [
            {
                "pid": slot.process.pid,
                "state": _state(slot),
                "group": slot.pool.name or None,
                "async": slot.pool is self._pool.async_workers,
                "current_job": _current_job(slot, now),
            }
            for slot in (*self._shown(), *self._pool.stuck.values())
        ]
        return Presence(state, rows, self._pool.idle_count(), self._leases.ttl, self._self_report.about())

    def _shown(self) -> Iterable[WorkerSlot]:
        """Return the slots, without those of an async worker that have no job; one of them, if it has no job at all."""
        yield from self._pool.workers.values()
        tasks = self._pool.async_workers.slots
        busy = {slot.process.pid for slot in tasks if slot.sent}
        for slot in tasks:
            if slot.sent:
                yield slot
            elif slot.process.pid not in busy:
                busy.add(slot.process.pid)
                yield slot

    def watched(self) -> None:
        self._watched_until = self._loop.time() + WATCHED_SECONDS

    def clock_stepped(self) -> None:
        """Write the row soon: it has a time by the clock of before."""
        self._last = ()

    def announce(self, state: str) -> None:
        """Write the row, if need be, and start marks for the jobs that run. Do nothing while the store is unavailable."""
        if self._writer.unavailable:
            return
        now, running, ttl = self._loop.time(), self._leases.running(), self._leases.ttl
        workers = [(slot.process.pid, slot.state, slot.current and slot.current[:2]) for slot in self._pool.slots]
        row = self.presence(state)
        current = (state, workers, [*self._pool.stuck], [lease[:2] for lease in running], row.about)
        interval = ttl / 3 if now > self._watched_until else min(ttl / 3, WATCHED_INTERVAL)
        if current == self._last and now - self._announced_at < interval:
            return
        self._last, self._announced_at = current, now
        written = self._writer.submit(
            lambda store: store.announce(_aged(row, self._loop.time() - now)), Purpose.ANNOUNCE
        )
        written.add_done_callback(report_error)
        if running:
            marks = self._writer.submit(lambda store: store.extend((), ttl, running), Purpose.EXTEND)
            marks.add_done_callback(report_error)


def _aged(row: Presence, seconds: float) -> Presence:
    """Return a row that is written so many seconds after it was made: the store may have been locked until now."""
    workers = [
        worker if (job := worker["current_job"]) is None
        else {**worker, "current_job": {**job, "running_for": round(job["running_for"] + seconds, 6)}}
        for worker in row.workers
    ]  # fmt: skip
    return replace(row, workers=workers)


def _state(slot: WorkerSlot) -> str:
    if slot.stuck is not None:
        return f"stuck in the kernel: {slot.stuck}"
    if slot.state is State.READY:
        return "busy" if slot.sent else "idle"
    return str(slot.state.value)


def _current_job(slot: WorkerSlot, now: float) -> dict[str, Any] | None:
    lease = slot.current
    if lease is None:
        return None
    return {
        "job_id": lease.id,
        "handler": lease.handler,
        "retry_count": lease.retries,
        "is_retry": lease.retries > 0,
        "running_for": round(now - slot.started, 6),
    }
