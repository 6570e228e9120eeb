"""Decide how many jobs are claimed, and from which queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from supervisor.config.settings import Settings
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.dispatcher import Dispatcher
from supervisor.engine.fairness import JobBuffers
from supervisor.engine.leases import Leases
from supervisor.engine.limits import Limits
from supervisor.engine.shares import TokenBucket, retries_limit, share_out
from supervisor.stores.records import ClaimRequest, Resolve, Waiting
from supervisor.workers.pool import Pool

BUFFERED_SECONDS = 0.100
"""The seconds of work, by recent run times, that are claimed ahead for each worker."""
BUFFERED_JOBS = 20_000


class Demand(NamedTuple):
    """The jobs that the fetcher wants, as a value that the thread of the store writer may read while the loop goes on.

    Without capacity only jobs that overtake those held already are wanted: retries that have tokens, and fresh jobs of queues
    that have only retries buffered. Nothing is wanted then if the payloads held are `large`.
    """

    capacity: int
    turn: int
    settings: Settings
    resolve: Resolve
    tokens: Mapping[str, TokenBucket]
    buffered: Mapping[str, tuple[int, int]]  # fresh jobs and retries
    workers: int
    with_retries: Mapping[str, int]  # workers that hold retries of a queue
    large: bool
    # Of queues whose jobs only one kind of worker can run, if there are two; and the limit of all other queues.
    limits: Mapping[str, int] = MappingProxyType({})
    otherwise: int = 0

    def requests(self, waiting: Mapping[str, Waiting], more: bool = False) -> list[ClaimRequest]:
        """Return the requests for a claim, if these jobs are ready in the store, and with `more` further ones behind them: then
        the first queues have their turn."""
        if self.capacity:
            return self._shared_out(waiting, None if more else self.turn)
        if self.large:
            return []
        requests = [self._overtaking(queue, ready) for queue, ready in waiting.items()]
        return [request for request in requests if request.limit > 0]

    def _shared_out(self, waiting: Mapping[str, Waiting], turn: int | None) -> list[ClaimRequest]:
        requests = []
        most = {queue: self._max_retries(queue, ready.fresh > 0) for queue, ready in waiting.items()}
        claimable = {queue: ready.fresh + _at_most(ready.retries, most[queue]) for queue, ready in waiting.items()}
        if self.limits:
            claimable = {
                queue: min(count, self.limits.get(queue, self.otherwise)) for queue, count in claimable.items()
            }
        for queue, limit in share_out(self.capacity, claimable, turn).items():
            first = self._allowance(queue, limit) if waiting[queue].fresh else limit
            retries = _at_most(min(limit, waiting[queue].retries), most[queue])
            requests.append(ClaimRequest(queue, limit, min(first, retries), retries, self._urgent_from(queue)))
        return requests

    def _overtaking(self, queue: str, ready: Waiting) -> ClaimRequest:
        fresh_buffered, retries_buffered = self.buffered.get(queue, (0, 0))
        overtaking = min(ready.retries, _at_most(fresh_buffered, self._max_retries(queue, True)))
        retries = max(0, self._allowance(queue, retries_buffered + overtaking) - retries_buffered)
        fresh = 0 if fresh_buffered else min(ready.fresh, retries_buffered)
        return ClaimRequest(queue, fresh + retries, retries, retries, self._urgent_from(queue))

    def _allowance(self, queue: str, count: int) -> int:
        retry = self.settings.retry_for(queue)
        tokens = self.tokens.get(queue) or TokenBucket(retry.fetch_ratio, retry.burst)
        return tokens.allowance(count)

    def _max_retries(self, queue: str, fresh_waits: bool) -> int | None:
        """Return 0 while retries have their share of the workers, else None for no limit."""
        if not fresh_waits:
            return None
        limit = retries_limit(self.settings.retry_for(queue), self.workers)
        return None if limit is None or self.with_retries.get(queue, 0) < limit else 0

    def _urgent_from(self, queue: str) -> int:
        return self.settings.retry_for(queue).urgent


@dataclass(eq=False)
class ClaimPlanner:
    """Works out how many more jobs this supervisor may hold."""

    _pool: Pool
    _leases: Leases
    _buffers: JobBuffers
    _dispatcher: Dispatcher
    _config: CurrentConfig
    _limits: Limits

    def room(self, wanted: int) -> int:
        """Return how many more jobs to claim, besides the `wanted` ones that are being claimed."""
        if not self._config.async_handlers:
            return self._sync_room(wanted)
        return max(0, self._sync_room(0)) + max(0, self._async_room()) - wanted

    def _async_room(self) -> int:
        """Return how many jobs the async workers can take besides the buffered ones: 100 ms of work ahead for each of their slots, if
        the jobs are that short, else one for each slot that is free."""
        workers = self._pool.async_workers
        free, mean = workers.room() - len(self._buffers.of_async), workers.times.mean
        if mean is None or mean >= BUFFERED_SECONDS or self._large:
            return free
        per_slot = min(self._limits.buffered_per_worker, BUFFERED_SECONDS / max(mean, 1e-6))
        target = min(BUFFERED_JOBS, int(per_slot * len(workers.slots)))
        ahead = min(target - len(self._buffers.of_async), self._limits.claimed_at_once)
        return max(ahead if ahead >= target // 2 else 0, free)

    def _limits_of_queues(self) -> tuple[dict[str, int], int]:
        """Return the limits of queues that had jobs of one kind only, or of both, and the limit of all others. A queue with jobs of
        both kinds waits for the kind that has the least room."""
        sync, of_async = max(0, self._sync_room(0)), max(0, self._async_room())
        sync_queues, async_queues = self._buffers.sync_queues, self._buffers.async_queues
        limits = dict.fromkeys(sync_queues, sync) | dict.fromkeys(async_queues, of_async)
        return limits | dict.fromkeys(sync_queues & async_queues, min(sync, of_async)), max(sync, of_async)

    def _sync_room(self, wanted: int) -> int:
        """Return 100 ms of work for each worker that is not async, or one job for each idle one if payloads are large or all are
        busy with long jobs, less the jobs that are buffered or wanted."""
        idle = self._pool.idle_count()
        if self._large or (not idle and self._dispatcher.stands_still(BUFFERED_SECONDS)):
            return idle - wanted
        mean = self._pool.times.mean
        target = idle
        if mean is not None and mean < BUFFERED_SECONDS:
            per_worker = min(self._limits.buffered_per_worker, BUFFERED_SECONDS / max(mean, 1e-6))
            target = max(idle, min(BUFFERED_JOBS, int(per_worker) * self._pool.ready_count()))
        at_once = self._limits.claimed_at_once
        room = min(target - len(self._buffers.of_sync) - wanted, at_once)
        # A worker that is idle after a dispatch can start none of the buffered jobs.
        return max(room if room >= min(target // 2, at_once) else 0, idle - wanted)

    def demand(self, capacity: int) -> Demand:
        by_queue = self._buffers.of_sync.by_queue
        limits, otherwise = self._limits_of_queues() if self._config.async_handlers else ({}, capacity)
        return Demand(
            capacity,
            self._buffers.of_sync.turn,
            self._config.settings,
            self._config.resolve,
            tokens={queue: buffer.tokens.copy() for queue, buffer in by_queue.items() if not buffer.tokens.full},
            buffered={queue: (len(it.fresh), len(it.retries)) for queue, it in by_queue.items() if len(it)},
            workers=self._pool.count,
            with_retries=self._dispatcher.with_retries(),
            large=self._large,
            limits=limits,
            otherwise=otherwise,
        )

    @property
    def _large(self) -> bool:
        return self._leases.bytes >= self._limits.held_bytes


def _at_most(number: int, limit: int | None) -> int:
    return number if limit is None else max(0, min(number, limit))
