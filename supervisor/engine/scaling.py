"""Have more workers while jobs wait, and fewer when some are idle, where the config gives a least and a most number.

One timer serves all groups of workers. There is none while the number of each is fixed.
"""

from __future__ import annotations

import asyncio

from supervisor.engine.fairness import JobBuffers
from supervisor.events import Bus, WorkersScaled
from supervisor.text.units import counted, format_duration
from supervisor.workers.pool import Pool
from supervisor.workers.worker_group import WorkerGroup


class Growth:
    """The decision about the growth of one group. `now` is any clock of seconds.

    Before each step jobs must have waited for `after` seconds, with no worker idle: a claim brings more jobs than can start at once.
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._since: float | None = None

    def step(self, now: float, *, waiting: int, idle: int, starting: int, most: int) -> int:
        """Return by how many workers to grow, at most `most`: one for each job that waits, less those that are starting already."""
        unserved = waiting - starting
        if idle or unserved <= 0:
            self._since = None
            return 0
        if self._since is None:
            self._since = now
        if now - self._since < self._after:
            return 0
        self._since = now
        return min(unserved, most)


class Scaling:
    """Looks at the groups at an interval."""

    def __init__(
        self, pool: Pool, buffers: JobBuffers, bus: Bus, loop: asyncio.AbstractEventLoop, interval: float
    ) -> None:
        self._pool = pool
        self._buffers = buffers
        self._bus = bus
        self._loop = loop
        self._interval = interval
        self._growths: dict[str, Growth] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Look at the groups that the pool has from now on."""
        self.stop()
        self._growths = {
            name: Growth(1.5 * self._interval) for name, group in self._pool.groups.items() if not group.size.is_fixed
        }
        if self._growths:
            self._timer = self._loop.call_later(self._interval, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._pool.stopping:
            return
        self._timer = self._loop.call_later(self._interval, self._look)
        for name, growth in self._growths.items():
            group, before = self._pool.groups[name], self._pool.groups[name].count
            starting = max(0, before - group.ready_count())
            waiting, idle = len(self._buffers.groups[name]), group.idle_count()
            now = self._loop.time()
            if more := growth.step(now, waiting=waiting, idle=idle, starting=starting, most=group.step):
                group.set_count(before + more)
            else:
                group.shrink(group.size.idle_after)
            if group.count != before:
                self._bus.emit(WorkersScaled(_key(name), before, group.count, _why(group, before, waiting)))


def _key(name: str) -> str:
    return f"workers.groups.{name}.count" if name else "workers.count"


def _why(group: WorkerGroup, before: int, waiting: int) -> str:
    if group.count > before:
        return counted(waiting, "job", "wait")
    return f"{before - group.count} idle for {format_duration(group.size.idle_after)}"
