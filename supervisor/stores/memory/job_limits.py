"""Claims under limits in memory. The jobs in flight are few, and are counted one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush

from supervisor.jobs import JobState, Lease
from supervisor.stores.job_limits import (
    GROUP,
    HANDLER,
    Limit,
    Line,
    Times,
    Use,
    limit_of_line,
    name_of_group,
    name_of_handler,
    name_of_queue,
)
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
        live = _live(self._state)
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
        return sorted(line for line in self._state.held if line > behind and line[0].startswith(HANDLER))[:limit]

    def count(self, line: Line, most: int) -> int:
        return len(_held_of(self._state, line, most))

    def first(self, line: Line, limit: int) -> list[Candidate]:
        return [_candidate(job, line) for job in _held_of(self._state, line, limit)]

    def ready(self, queue: str, tier: int, limit: int) -> list[Candidate]:
        if queue in self._state.paused:
            return []
        return [_candidate(job) for job in self._state.candidates(queue, tier, limit)]

    def hold(self, queue: str, tier: int, handlers: Collection[str], groups: Collection[str], among: int) -> int:
        held = 0
        for job in self._state.candidates(queue, tier, among):
            name = HANDLER + job.row.handler if job.row.handler in handlers else None
            if name is None and job.group is not None and job.group in groups:
                name = GROUP + job.group
            if name is not None:
                self._state.change(job, state=JobState.BLOCKED, held_back=name)
                held += 1
        return held

    def resume(self, line: Line, ids: Sequence[int]) -> None:
        for id in ids:
            self._state.change(self._state.jobs[id], state=JobState.READY, held_back=None)

    def claim(self, queue: str, ids: Sequence[int], ttl: float, resolve: Resolve) -> list[Lease]:
        return self._queue.claim_ready([self._state.jobs[id] for id in ids], ttl, resolve)

    def paused(self) -> frozenset[str]:
        return self._queue.paused()

    def lock_all(self, names: Collection[str]) -> set[str]:
        return set(names)

    def begin_groups(self, queue: str, limit: Limit) -> None:
        """All jobs in flight are counted anyway."""

    def open_all(self, queue: str) -> None:
        for line in self._lines_of(queue):
            self._state.closed_lines.pop(line, None)

    def ended_groups(self, limit: int) -> list[str]:
        """A line is open as soon as fewer jobs of its group are in flight."""
        return []

    def open_ended(self, names: Collection[str]) -> None: ...

    def open_lines(self, queue: str, tier: int, limit: int) -> list[Line]:
        now, live = self._state.now(), _live(self._state)
        lines = [line for line in self._lines_of(queue) if line[2] == tier]
        return [line for line in lines if _is_open(self._state, line, now, live)][:limit]

    def close(self, line: Line, until: int | None) -> None:
        self._state.closed_lines.pop(line, None)
        if _held_of(self._state, line, 1) and until != 0:
            self._state.closed_lines[line] = (until, _live(self._state)[limit_of_line(line)])

    def closed(self, queue: str) -> tuple[bool, int | None, int | None]:
        now, closed = self._state.now(), self._state.closed_lines
        until = [closed[line][0] for line in self._lines_of(queue) if line in closed]
        later = [at for at in until if at is not None and at > now]
        return None in until, min(later, default=None), max(later, default=None)

    def queues_of_groups(self) -> list[str]:
        return sorted({queue for name, queue, _ in self._state.held if name.startswith(GROUP)})

    def lines_of_groups(self, queue: str, limit: int) -> list[Line]:
        return self._lines_of(queue)[:limit]

    def _lines_of(self, queue: str) -> list[Line]:
        return [line for line in self._state.held if line[0].startswith(GROUP) and line[1] == queue]


def _live(state: MemoryState) -> Counter[str]:
    """Count the jobs in flight by the names of the limits that they may be under."""
    live = Counter[str]()
    for job in state.in_flight():
        live.update((name_of_queue(job.row.queue), name_of_handler(job.row.handler)))
        live.update([name_of_group(job.row.queue, job.group)] if job.group is not None else [])
    return live


def _is_open(state: MemoryState, line: Line, now: int, live: Counter[str]) -> bool:
    until, before = state.closed_lines.get(line, (0, 0))
    return live[limit_of_line(line)] < before if until is None else until <= now


def _candidate(job: JobRecord, line: Line | None = None) -> Candidate:
    return Candidate(job.id, job.row.handler, job.row.priority, job.age, job.group, line)


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
    if job is None or job.state is not JobState.BLOCKED:
        return False
    return job.age == age and (job.held_back, job.row.queue, job.tier) == line
