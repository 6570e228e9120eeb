"""Replace workers that are older than `workers.max_age`, and kill workers with more memory than `workers.max_memory_hard`.

One timer serves all workers. There is none while neither limit is set.
"""

from __future__ import annotations

import asyncio

from supervisor.config.settings import WorkerSettings
from supervisor.retry import Random
from supervisor.text.units import format_duration
from supervisor.workers.async_worker import AsyncWorker
from supervisor.workers.blame import ExitCause, past_memory_limit
from supervisor.workers.interface import State
from supervisor.workers.limits import MIN_GROWTH
from supervisor.workers.pool import Pool
from supervisor.workers.slot import WorkerSlot

MEMORY_INTERVAL = 0.1
AGE_INTERVALS = (0.1, 1.0)  # seconds, the least and the most; in between it is a tenth of the age
JITTER = 0.2
"""The share of `max_age` by which a worker may be replaced earlier: workers that start together are replaced one by one."""


class LimitWatch:
    """`random` returns numbers from 0 to 1."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self._pool = pool
        self._loop = loop
        self._random = random
        self._max_age: float | None = None
        self._max_memory: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ages: dict[int, float] = {}  # seconds, by number of a worker: when it is replaced
        self._warned: set[int] = set()  # the workers that are too large without a job

    def watch(self, settings: WorkerSettings) -> None:
        """Hold the limits of these settings from now on, for the workers that run too."""
        self.stop()
        self._max_age, self._max_memory = settings.max_age, settings.max_memory_hard
        self._ages.clear()
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._max_memory is not None:
            self._timer = self._loop.call_later(MEMORY_INTERVAL, self._look)
        elif self._max_age is not None:
            least, most = AGE_INTERVALS
            self._timer = self._loop.call_later(min(most, max(least, self._max_age / 10)), self._look)

    def _look(self) -> None:
        self._arm()
        slots, workers = [*self._pool.workers.values()], [*self._pool.async_workers.workers]
        if self._max_memory is not None:
            for slot in slots:
                self._check_memory(slot, self._max_memory)
            for worker in workers:
                self._check_async_memory(worker, self._max_memory)
        if self._max_age is not None and not self._pool.stopping:
            for slot in slots:
                if slot.state is State.READY and (reached := self._reached_by_age(slot, self._max_age)):
                    self._replace(slot, reached)
            for worker in workers:
                if not worker.leaving and (reached := self._reached_by_age(worker, self._max_age)):
                    self._pool.async_workers.replace_old(worker, reached)
        present = {slot.number for slot in slots} | {worker.number for worker in workers}
        self._ages = {number: age for number, age in self._ages.items() if number in present}
        self._warned &= present

    def _replace(self, slot: WorkerSlot, reached: ExitCause) -> None:
        """Replace the worker after its job, unless as many as are wanted still run their last jobs."""
        if slot.pool.may_replace():
            slot.reached = reached
            slot.pool.replace_used_up(slot)

    def _reached_by_age(self, worker: WorkerSlot | AsyncWorker, max_age: float) -> ExitCause | None:
        if worker.ready_at is None:
            return None
        if worker.number not in self._ages:
            self._ages[worker.number] = max_age * (1 - JITTER * self._random())
        age = self._loop.time() - worker.ready_at
        if age < self._ages[worker.number]:
            return None
        return ExitCause("max_age", f"it is {format_duration(age)} old, workers.max_age is {format_duration(max_age)}")

    def _check_memory(self, slot: WorkerSlot, most: int) -> None:
        """Kill the worker if it is too large. If that was found after its last job already, the one that it runs is not blamed."""
        exits = slot.state is State.ENDING or (slot.state is State.RETIRING and not slot.sent)
        size = None if exits or slot.ready_at is None else slot.process.memory()
        if size is None or size <= most:
            return
        if not slot.sent and size <= slot.memory_at_start * MIN_GROWTH:
            self._warn(slot, size, most)
            return
        was_large = slot.reached is not None and slot.reached.cause == "max_memory"
        self._pool.kill(slot, past_memory_limit(size, most, blamed=not was_large))

    def _check_async_memory(self, worker: AsyncWorker, most: int) -> None:
        size = None if worker.ready_at is None else worker.process.memory()
        if size is None or size <= most:
            return
        if worker.idle and size <= worker.memory_at_start * MIN_GROWTH:
            self._warn(worker, size, most)
            return
        worker.kill_for_any(past_memory_limit(size, most))

    def _warn(self, worker: WorkerSlot | AsyncWorker, size: int, most: int) -> None:
        if worker.number not in self._warned:
            self._warned.add(worker.number)
            worker.warn(
                f"has {size / 1e6:.0f}MB without a job, and workers.max_memory_hard is {most / 1e6:g}MB: "
                "each of its jobs will be killed"
            )
