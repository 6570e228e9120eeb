"""The metrics that are read when they are asked for: from the engine, from /proc, and seldom from the store."""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from supervisor import __version__
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.tasks import drop_error
from supervisor.http.health import readiness
from supervisor.http.view import View
from supervisor.stores.protocol import Store
from supervisor.telemetry.metrics import MAX_QUEUES, PREFIX
from supervisor.workers.interface import State
from supervisor.workers.system.process_tree import resident_bytes

OF_NO_GROUP, ASYNC = "(others)", "(async)"
"""The groups without a name of their own: of the queues in no group, and of async handlers."""
TIERS = ("fresh", "retry")
STORE_SECONDS = 5.0
"""The store is read for metrics at most once in this time, however often they are asked for."""
STORE_TIMEOUT = 0.25
"""An answer waits for the store for so long, and then has what was read before."""
STORE_OUTDATED = 60.0
"""Without an answer of the store for so long, there are no figures of it: old ones would hide that."""


class StoreFigures(NamedTuple):
    oldest: Mapping[str, Mapping[str, float]] = {}
    pending: Mapping[str, int] = {}


def read_figures(store: Store) -> StoreFigures:
    """Read what only the store knows. The cost does not depend on the number of jobs."""
    oldest: dict[str, dict[str, float]] = {}
    for queue, tier, seconds in store.oldest_ready(MAX_QUEUES):
        oldest.setdefault(queue, {})[TIERS[tier]] = seconds
    return StoreFigures(oldest, {row["sink"]: row["pending"] for row in store.sinks()})


class Gauges:
    """Call `snapshot` on the loop, and the function that it returns on any thread: it reads the memory of the workers."""

    def __init__(self, view: View, loop: asyncio.AbstractEventLoop, started: float) -> None:
        self._view, self._loop, self._started = view, loop, started
        self._figures = StoreFigures()
        self._read_at = self._asked_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def snapshot(self) -> Callable[[], dict[str, Any]]:
        await self._read_store()
        if self._loop.time() - self._read_at > STORE_OUTDATED:
            self._figures = StoreFigures()
        view = self._view
        ready = readiness(view.state(), view.problems())
        found = {
            "build_info": {__version__: {platform.python_version(): 1}},
            "start_time_seconds": self._started,
            "ready": int(ready["ready"]),
            "not_ready": dict.fromkeys((each["reason"] for each in ready["reasons"]), 1),
            "oldest_ready_seconds": self._figures.oldest,
            "dead_letters_pending": self._figures.pending,
            **of_engine(view.engine, time.time() - self._loop.time()),
        }
        pids = [] if view.engine is None else list(_pids(view.engine))

        def read() -> dict[str, Any]:
            return {PREFIX + name: value for name, value in {**found, **_memory(pids)}.items()}

        return read

    async def _read_store(self) -> None:
        if self._reading is None and self._loop.time() - self._asked_at >= STORE_SECONDS:
            self._asked_at = self._loop.time()
            self._reading = self._loop.create_task(self._read())
            self._reading.add_done_callback(drop_error)  # an unavailable store is shown by other metrics
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=STORE_TIMEOUT)

    async def _read(self) -> None:
        try:
            self._figures = await self._view.read(read_figures)
            self._read_at = self._loop.time()
        finally:
            self._reading = None


def of_engine(engine: Coordinator | None, ahead: float) -> dict[str, Any]:
    """Return the figures of the engine. `ahead` is the time of the wall less that of the loop."""
    if engine is None:
        return {
            "workers": {}, "workers_wanted": {}, "leases": None, "store_available": 0,
            "last_claim_timestamp_seconds": None, "last_commit_timestamp_seconds": None,
        }  # fmt: skip
    pool, writer = engine.pool, engine.writer
    claimed_at = engine.fetcher.claimed_at
    wanted = {name or OF_NO_GROUP: group.count for name, group in pool.groups.items()}
    if options := pool.async_workers.options.workers:
        wanted[ASYNC] = options
    return {
        "workers": _workers(engine),
        "workers_wanted": wanted,
        "leases": len(engine.leases),
        "store_available": int(not writer.unavailable),
        "last_claim_timestamp_seconds": None if claimed_at is None else claimed_at + ahead,
        "last_commit_timestamp_seconds": writer.answered_at + ahead,
    }


def _workers(engine: Coordinator) -> dict[str, dict[str, int]]:
    """Return the number of workers by group and state. Every state is there, so that a sum over time has no gaps."""
    counts: Counter[tuple[str, str]] = Counter()
    for name, group in engine.pool.groups.items():
        for slot in group.workers.values():
            busy = "busy" if slot.sent else "idle" if slot.state is State.READY else slot.state.value
            counts[name or OF_NO_GROUP, busy if busy in ("busy", "idle", "starting") else "ending"] += 1
    groups = [name or OF_NO_GROUP for name in engine.pool.groups]
    for worker in engine.pool.async_workers.workers:
        state = "starting" if worker.ready_at is None else "idle" if worker.idle else "busy"
        counts[ASYNC, "ending" if worker.leaving and worker.idle else state] += 1
        groups.append(ASYNC)
    return {name: {state: counts[name, state] for state in ("busy", "idle", "starting", "ending")} for name in groups}


def _pids(engine: Coordinator) -> Iterator[tuple[str, int]]:
    for name, group in engine.pool.groups.items():
        yield from ((name or OF_NO_GROUP, pid) for slot in group.workers.values() if (pid := slot.process.pid))
    yield from ((ASYNC, pid) for worker in engine.pool.async_workers.workers if (pid := worker.process.pid))


def _memory(pids: Iterable[tuple[str, int]]) -> dict[str, dict[str, int]]:
    total: Counter[str] = Counter()
    largest: dict[str, int] = {}
    for group, pid in pids:
        resident = resident_bytes(pid) or 0
        total[group] += resident
        largest[group] = max(resident, largest.get(group, 0))
    return {"workers_memory_bytes": dict(total), "largest_worker_memory_bytes": largest}
