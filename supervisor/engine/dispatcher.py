"""Send jobs from the queue buffers to the workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from supervisor.engine.committer import Committer
from supervisor.engine.fairness import JobBuffers, QueueBuffers
from supervisor.engine.leases import Leases
from supervisor.engine.watchdog import Watchdog
from supervisor.jobs import LEASE_POLICY
from supervisor.workers.async_workers import AsyncWorkers
from supervisor.workers.pool import Pool
from supervisor.workers.run_times import FRAME_JOBS, FRAME_SECONDS
from supervisor.workers.slot import WorkerSlot

BLOCKED_SECONDS = 1.0
MAKE_WAY_EVERY = FRAME_SECONDS  # a shorter frame makes way by itself


@dataclass(eq=False)
class Dispatcher:
    """Sends the buffered jobs to workers that have room, in frames."""

    _pool: Pool
    _leases: Leases
    _buffers: JobBuffers
    _committer: Committer
    _watchdog: Watchdog
    _loop: asyncio.AbstractEventLoop
    _made_way_at: float = float("-inf")

    def may_dispatch(self) -> bool:
        """Return whether a job may start now: not between a gap and the check of the leases, nor while the store is too slow to
        take results."""
        if self._watchdog.late():
            self._watchdog.sweep()
        return self._leases.checked_since_gap and not self._committer.overfull

    def dispatch(self) -> None:
        for name, buffers in self._buffers.groups.items():
            if len(buffers):
                group = self._pool.groups[name]
                self._send(buffers, group.slots_with_room(), group.count, self.with_retries)
        if len(self._buffers.of_async):
            self._send_to_tasks(self._pool.async_workers)
        if self._buffers.suspects:
            self._buffers.suspects = self._pool.async_workers.run_apart(self._buffers.suspects)

    def _send(
        self, buffers: QueueBuffers, slots: Sequence[WorkerSlot], workers: int,
        with_retries: Callable[[WorkerSlot], Counter[str]],
    ) -> None:  # fmt: skip
        if buffers.has_new:
            buffers.has_new, buffers.moved_at = False, self._loop.time()
        if not slots:
            return
        most = max(1, min(FRAME_JOBS, -(-len(buffers) // len(slots))))
        for slot in slots:
            frame = slot.frame_for(buffers.in_turn(workers, partial(with_retries, slot)), most)
            if frame:
                buffers.dispatched(len(frame))
                buffers.moved_at = self._loop.time()
                slot.send(frame)
                self._watchdog.work_sent(slot)
            if not len(buffers):
                return

    def _send_to_tasks(self, workers: AsyncWorkers) -> None:
        buffers, slots = self._buffers.of_async, workers.slots_with_room()
        leases = buffers.without_choice(len(slots))
        if leases:
            buffers.has_new, buffers.moved_at = False, self._loop.time()
            for slot, lease in zip(slots, leases, strict=False):
                slot.send((lease,))
            for slot in {id(lease[LEASE_POLICY]): slot for slot, lease in zip(slots, leases, strict=False)}.values():
                self._watchdog.work_sent(slot)
        if len(buffers):
            self._send(buffers, slots[len(leases) :], workers.concurrency, self._tasks_with_retries)

    def with_retries(self, but: WorkerSlot | None = None) -> Counter[str]:
        """Return how many workers, except `but`, hold retries of each queue: `retry.max_in_flight` limits workers, not jobs, since
        a frame of many short retries takes one worker."""
        return Counter([queue for slot in self._pool.workers.values() if slot is not but for queue in slot.retries])

    def _tasks_with_retries(self, but: WorkerSlot) -> Counter[str]:
        """Return how many slots of async workers, except `but`, hold a retry of each queue."""
        slots = self._pool.async_workers.slots
        return Counter([queue for slot in slots if slot is not but for queue in slot.retries])

    def make_way(self, *, for_fresh: bool) -> None:
        """Reclaim unstarted jobs from workers, if jobs claimed now go before some of these: fresh jobs go before retries if
        `for_fresh`, else retries go before fresh jobs."""
        now = self._loop.time()
        if now < self._made_way_at + MAKE_WAY_EVERY:
            return
        self._made_way_at = now
        sent = [slot for slot in self._pool.workers.values() if len(slot.sent) > 1]
        if any(slot.retries if for_fresh else slot.retries.total() < len(slot.sent) for slot in sent):
            self._pool.reclaim_unstarted()

    def stands_still(self, buffers: QueueBuffers, seconds: float = BLOCKED_SECONDS) -> bool:
        """Return whether for so long no job has come into these buffers, or gone to a worker: all workers have the same jobs."""
        return self._loop.time() - buffers.moved_at > seconds
