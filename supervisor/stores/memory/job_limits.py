"""Claims under limits in memory. The jobs in flight are few, and are counted one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush

from supervisor.jobs import JobState, Lease
from supervisor.stores.job_limits import Limit, Line, Times, Use, name_of_handler, name_of_queue
from supervisor.stores.limited_claims import Candidate
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.queue import Queue
from supervisor.stores.memory.state import ID, Entry, MemoryState
from supervisor.stores.records import Resolve


class LimitRows:
    """Implements `supervisor.stores.limited_claims.LimitRows`."""

    def __init__(self, state: MemoryState, queue: Queue) -> None:
        self._state, self._queue = state, queue

    def now(self) -> int:
        return self._state.now()

    def uses(self, limits: Mapping[str, Limit]) -> dict[str, Use]:
        live = Counter[str]()
        for job in self._state.in_flight():
            live.update((name_of_queue(job.row.queue), name_of_handler(job.row.handler)))
        return {name: Use(live[name], self._state.claim_times.get(name, [])) for name in limits}

    def lock(self, name: str, limit: Limit) -> bool:
        """The transaction has the lock of the state."""
        return True

    def begin(self, name: str, limit: Limit) -> None:
        """All jobs in flight are counted anyway."""

    def note(self, name: str, limit: Limit, leases: Sequence[Lease], times: Times | None) -> None:
        if times is not None:
            self._state.claim_times[name] = times

    def lines(self, behind: Line, limit: int) -> list[Line]:
        return sorted(line for line in self._state.held if line > behind)[:limit]

    def count(self, line: Line, most: int) -> int:
        return len(_held_of(self._state, line, most))

    def first(self, line: Line, limit: int) -> list[Candidate]:
        return [_candidate(job, held=True) for job in _held_of(self._state, line, limit)]

    def ready(self, queue: str, tier: int, limit: int) -> list[Candidate]:
        if queue in self._state.paused:
            return []
        return [_candidate(job) for job in self._state.candidates(queue, tier, limit)]

    def hold(self, queue: str, tier: int, handlers: Collection[str], among: int) -> int:
        jobs = [job for job in self._state.candidates(queue, tier, among) if job.row.handler in handlers]
        for job in jobs:
            self._state.change(job, state=JobState.BLOCKED, held_back=True)
        return len(jobs)

    def resume(self, line: Line, ids: Sequence[int]) -> None:
        for id in ids:
            self._state.change(self._state.jobs[id], state=JobState.READY, held_back=False)

    def claim(self, queue: str, ids: Sequence[int], ttl: float, resolve: Resolve) -> list[Lease]:
        return self._queue.claim_ready([self._state.jobs[id] for id in ids], ttl, resolve)

    def paused(self) -> frozenset[str]:
        return self._queue.paused()


def _candidate(job: JobRecord, held: bool = False) -> Candidate:
    return Candidate(job.id, job.row.handler, job.row.priority, job.age, held)


def _held_of(state: MemoryState, line: Line, limit: int) -> list[JobRecord]:
    """Return the first jobs of a line of those held back, and remove entries that are out of date."""
    heap, entries = state.held.get(line, []), dict[int, Entry]()
    while heap and len(entries) < limit:
        entry = heappop(heap)
        if _is_held(state, line, entry):
            entries[entry[ID]] = entry
    for entry in entries.values():
        heappush(heap, entry)
    if not heap:
        state.held.pop(line, None)
    return [state.jobs[id] for id in entries]


def _is_held(state: MemoryState, line: Line, entry: Entry) -> bool:
    _, age, id = entry
    job = state.jobs.get(id)
    if job is None or not job.held_back or job.state is not JobState.BLOCKED:
        return False
    return job.age == age and (job.row.handler, job.row.queue, job.tier) == line
