"""Decide how many jobs are claimed, and from which queues."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
from supervisor.stores.job_limits import JobLimits
from supervisor.stores.records import ClaimRequest, Resolve, Waiting
from supervisor.workers.pool import Pool
from supervisor.workers.worker_group import OTHERS

BUFFERED_SECONDS = 0.100
"""The seconds of work, by recent run times, that are claimed ahead for each worker."""
BUFFERED_JOBS = 20_000
NONE: Mapping[str, int] = MappingProxyType({})


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
    # If there are groups of workers: the demand of each, of which the capacity is the sum, and the group of each queue that is in one.
    groups: Mapping[str, Demand] = MappingProxyType({})
    group_of: Mapping[str, str] = MappingProxyType({})
    # The limits of jobs, if there are any, and how many jobs could be started at once.
    job_limits: JobLimits | None = None
    to_start: int = 0

    def requests(self, waiting: Mapping[str, Waiting], more: bool = False) -> list[ClaimRequest]:
        """Return the requests for a claim, if these jobs are ready in the store, and with `more` further ones behind them: then
        the first queues have their turn."""
        if self.groups:
            parts = self._by_group(waiting).items()
            return [request for name, part in parts for request in self.groups[name].requests(part, more)]
        if self.capacity:
            return self._shared_out(waiting, None if more else self.turn)
        if self.large:
            return []
        requests = [self._overtaking(queue, ready) for queue, ready in waiting.items()]
        return [request for request in requests if request.limit > 0]

    def _by_group(self, waiting: Mapping[str, Waiting]) -> dict[str, dict[str, Waiting]]:
        parts: dict[str, dict[str, Waiting]] = {}
        for queue, ready in waiting.items():
            parts.setdefault(self.group_of.get(queue, OTHERS), {})[queue] = ready
        return parts

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

    def room(self, wanted: int, by_group: Mapping[str, int] = NONE, only: Collection[str] | None = None) -> int:
        """Return how many more jobs to claim, besides the `wanted` ones that are being claimed, of which so many are wanted for each
        group of workers. Without `only`, any group may find jobs in the store."""
        if not self._config.async_handlers and not self._config.group_of:
            return self._sync_room(OTHERS, wanted)
        for_async = max(0, self._async_room()) if self._config.async_handlers else 0
        rooms = self._rooms(by_group)
        for_sync = sum(room for name, room in rooms.items() if only is None or name in only)
        return for_sync + for_async - (wanted - sum(by_group.values()))

    def _rooms(self, by_group: Mapping[str, int] = NONE) -> dict[str, int]:
        return {name: max(0, self._sync_room(name, by_group.get(name, 0))) for name in self._buffers.groups}

    def _async_room(self) -> int:
        """Return how many jobs the async workers can take besides the buffered ones: 100 ms of work ahead for each of their slots, if
        the jobs are that short, else one for each slot that is free; two before any job has ended, so that none of them waits for a
        claim then."""
        workers = self._pool.async_workers
        room, mean = workers.room(), workers.times.mean
        free = room - len(self._buffers.of_async)
        if mean is None and not self._large:
            return free + room
        if mean is None or mean >= BUFFERED_SECONDS or self._large:
            return free
        per_slot = min(self._limits.buffered_per_worker, BUFFERED_SECONDS / max(mean, 1e-6))
        target = min(BUFFERED_JOBS, int(per_slot * workers.concurrency))
        ahead = min(target - len(self._buffers.of_async), self._limits.claimed_at_once)
        return max(ahead if ahead >= target // 2 else 0, free)

    def _limits_of_queues(self, sync: int, of_async: int) -> tuple[dict[str, int], int]:
        """Return the limits of queues that had jobs of one kind only, or of both, and the limit of all others. A queue with jobs of
        both kinds waits for the kind that has the least room."""
        sync_queues, async_queues = self._buffers.sync_queues, self._buffers.async_queues
        limits = dict.fromkeys(sync_queues, sync) | dict.fromkeys(async_queues, of_async)
        return limits | dict.fromkeys(sync_queues & async_queues, min(sync, of_async)), max(sync, of_async)

    def _sync_room(self, name: str, wanted: int) -> int:
        """Return 100 ms of work for each worker of the group, or one job for each idle one if payloads are large or all are
        busy with long jobs, less the jobs that are buffered or wanted."""
        group, buffers = self._pool.groups[name], self._buffers.groups[name]
        idle = group.idle_count()
        if self._large or (not idle and self._dispatcher.stands_still(buffers, BUFFERED_SECONDS)):
            return max(idle, 0 if self._large else idle + group.to_come() - len(buffers)) - wanted
        mean = group.times.mean
        target = idle + group.to_come()
        if mean is not None and mean < BUFFERED_SECONDS:
            per_worker = min(self._limits.buffered_per_worker, BUFFERED_SECONDS / max(mean, 1e-6))
            target = max(target, min(BUFFERED_JOBS, int(per_worker) * group.ready_count()))
        at_once = self._limits.claimed_at_once
        room = min(target - len(buffers) - wanted, at_once)
        # A worker that is idle after a dispatch can start none of the buffered jobs.
        return max(room if room >= min(target // 2, at_once) else 0, idle - wanted)

    def demand(self, capacity: int, by_group: Mapping[str, int] = NONE, to_start: int = 0) -> Demand:
        """Return the demand for so many jobs, besides those that are being claimed for each group, and those of these `to_start` at
        once. Each may have more than its room by what exceeds the sum of these."""
        demand, limits = self._demand_of_groups(capacity, by_group), self._config.job_limits
        return demand if limits is None else demand._replace(job_limits=limits, to_start=self.to_start(to_start))

    def to_start(self, wanted: int = 0) -> int:
        """Return how many jobs workers could start at once, besides the `wanted` ones. A worker that is idle after a dispatch can
        start none of the buffered jobs."""
        free = sum(group.idle_count() + group.to_come() for group in self._pool.groups.values())
        free += self._pool.async_workers.room() if self._config.async_handlers else 0
        return max(0, free - wanted)

    def _demand_of_groups(self, capacity: int, by_group: Mapping[str, int]) -> Demand:
        if not self._config.group_of:
            return self._demand(OTHERS, capacity, max(0, self._async_room()) if self._config.async_handlers else None)
        rooms, async_rooms = self._rooms(by_group), self._async_rooms()
        more = max(0, capacity - sum(rooms.values()) - sum(async_rooms.values()))
        groups = {
            name: self._demand(name, room + async_rooms.get(name, 0) + more, async_rooms.get(name))
            for name, room in rooms.items()
        }
        return groups[OTHERS]._replace(capacity=capacity, groups=groups, group_of=self._config.group_of)

    def _async_rooms(self) -> dict[str, int]:
        """Return the room of the async workers, which serve all queues, as divided among the groups that have had async jobs."""
        if not self._config.async_handlers:
            return {}
        names = sorted({self._config.group_of.get(queue, OTHERS) for queue in self._buffers.async_queues}) or [OTHERS]
        each, odd = divmod(max(0, self._async_room()), len(names))
        return {name: each + (place < odd) for place, name in enumerate(names)}

    def _demand(self, name: str, capacity: int, async_room: int | None) -> Demand:
        """Return the demand of a group. `async_room` is None without an async handler."""
        buffers = self._buffers.groups[name]
        by_queue, limits, otherwise = buffers.by_queue, dict[str, int](), capacity
        if async_room is not None:
            limits, otherwise = self._limits_of_queues(max(0, self._sync_room(name, 0)), async_room)
        return Demand(
            capacity,
            buffers.turn,
            self._config.settings,
            self._config.resolve,
            tokens={queue: buffer.tokens.copy() for queue, buffer in by_queue.items() if not buffer.tokens.full},
            buffered={queue: (len(it.fresh), len(it.retries)) for queue, it in by_queue.items() if len(it)},
            workers=self._pool.groups[name].count,
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
