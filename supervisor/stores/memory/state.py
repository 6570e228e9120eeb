"""The state of a memory store: the jobs, the queues in which they wait, and the owners."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from supervisor.errors import StoreError
from supervisor.jobs import JobState, Lease, Policy
from supervisor.schedules.policy import ScheduleState
from supervisor.stores.codes import CODES, LEFT
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.other_records import OwnerRecord
from supervisor.stores.memory.unique_holds import UniqueHolds
from supervisor.stores.records import microseconds
from supervisor.stores.shown import KeyHolder
from supervisor.stores.sinks import sinks_text
from supervisor.stores.workflows import MAX_SHOWN, relatives

MAX_STALE = 1000
"""Entries of heaps, besides twice the number of jobs, that may be out of date."""


_INDEXED = frozenset({"state", "tier", "age", "due_at", "dead_letter", "row"})
"""The fields by which jobs are counted and found, and have ended."""


@dataclass(slots=True)
class Line:
    """The job that holds a key, and the heap of those that wait for it; some of these may not be blocked any more."""

    holder: int | None = None
    waiting: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Turns:
    """The round that the jobs of one queue and priority have reached, and the position of each group: see `stores.groups`."""

    reached: int
    positions: dict[str, int] = field(default_factory=dict)


Entry = tuple[int, int, int]
"""A ready job in its heap: its priority negated, its age and its id."""
ID = 2
ADDED, REMOVED = object(), object()


Before = tuple[JobRecord, Any]
"""A job that was changed, and the fields that were set with their values before; or that it was ADDED, or REMOVED."""


class MemoryState:
    """The state that all stores of the same jobs share. `clock` returns seconds since the epoch.

    A heap may have entries that are out of date: an entry that is taken out is compared with its job.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.jobs: dict[int, JobRecord] = {}
        self.owners: dict[str, OwnerRecord] = {}
        self.paused: set[str] = set()
        self.schedules: dict[str, ScheduleState] = {}
        self.counts: Counter[tuple[str, int, JobState]] = Counter()
        self._ready: dict[tuple[str, int], list[Entry]] = {}
        self._offered: dict[tuple[str, int], list[Entry]] = {}
        """The jobs that the last call of `candidates` has taken from the heap: most of them have been claimed by the next call."""
        self._scheduled: list[tuple[int, int]] = []
        self.expiring: list[tuple[int, int]] = []
        """A heap of (when a job expires, its id); it may have expired or ended."""
        self.lines: dict[str, Line] = {}
        """By key."""
        self.children: dict[int, set[int]] = {}
        """The jobs that wait, or have waited, for each job."""
        self.unique = UniqueHolds()
        self.turns: dict[tuple[str, int], Turns] = {}
        """By queue and priority."""
        self.shares: Mapping[tuple[str, str], float] = {}
        """Of groups, by queue and name."""
        self.undoing: list[Callable[[], object]] = []
        """The calls that a rollback of the open transaction makes, the last one first."""
        self._in_flight: set[int] = set()
        self.made_ready: set[str] = set()
        """Queues in which blocked jobs were made ready."""
        self.held: dict[tuple[str, str, int], list[Entry]] = {}
        """The jobs that a limit holds back, by their lines: see `stores.job_limits.Line`."""
        self.closed_lines: dict[tuple[str, str, int], tuple[int | None, int]] = {}
        """Until when lines of groups are closed, None if until a lease has ended, and the number of leases at that time: see
        `stores.group_limits`."""
        self.claim_times: dict[str, list[tuple[int, int]]] = {}
        """By the name of a limit."""
        self.last_id = 0
        self._before: list[Before] | None = None  # what the open transaction has changed, as it was
        self._failed = False  # a write inside the open transaction has failed

    @contextmanager
    def transaction(self, *, single: bool = False, brief: bool = False) -> Iterator[None]:
        with self.lock:
            if self._before is not None:
                try:
                    yield
                except BaseException:
                    self._failed = True
                    raise
                return
            self._before, sequence, paused, owners = [], self.last_id, set(self.paused), dict(self.owners)
            schedules = dict(self.schedules)
            made_ready, claim_times, closed_lines = (
                set(self.made_ready),
                dict(self.claim_times),
                dict(self.closed_lines),
            )
            self.unique.begin()
            try:
                yield
                if self._failed:
                    raise StoreError("a write inside this transaction failed, so none of it is kept")
            except BaseException:
                self._undo(self._before)
                self.unique.undo()
                for act in reversed(self.undoing):
                    act()
                self.last_id, self.paused, self.made_ready = sequence, paused, made_ready
                self.schedules, self.claim_times, self.closed_lines = schedules, claim_times, closed_lines
                self.owners = owners | self.owners  # restores those that were removed meanwhile
                raise
            finally:
                self._before, self._failed = None, False
                self.undoing.clear()

    def now(self) -> int:
        """Microseconds since the epoch."""
        return microseconds(self.clock())

    def next_age(self) -> int:
        """Return the next id, which is also an age behind all jobs that wait."""
        self.last_id += 1
        return self.last_id

    def add(self, job: JobRecord) -> None:
        if self._before is not None:
            self._before.append((job, ADDED))
        self.jobs[job.id] = job
        self._file(job)
        join_parents(job, self.children)

    def change(self, job: JobRecord, **changes: Any) -> None:
        self.change_to(job, changes)

    def change_to(self, job: JobRecord, changes: Mapping[str, Any]) -> None:
        """Set these fields of the job. Hot path."""
        counted, before = (job.row.queue, job.tier, job.state), {}
        for name, value in changes.items():
            before[name] = getattr(job, name)
            setattr(job, name, value)
        if self._before is not None:
            self._before.append((job, before))
        if not _INDEXED.isdisjoint(changes):
            self.counts[counted] -= 1
            self._in_flight.discard(job.id)
            self._file(job)

    def begin(self, job: JobRecord, owner: str, deadline: int, policy: Policy) -> None:
        """Make a ready job in flight. Hot path."""
        if self._before is not None:
            before = {"state": job.state, "token": job.token, "owner": job.owner, "lease_until": job.lease_until}
            before |= {"started_at": job.started_at, "policy": job.policy}
            self._before.append((job, before))
        queue, tier = job.row.queue, job.tier
        self.counts[queue, tier, job.state] -= 1
        self.counts[queue, tier, JobState.IN_FLIGHT] += 1
        self._in_flight.add(job.id)
        job.state, job.token, job.owner, job.lease_until = JobState.IN_FLIGHT, job.token + 1, owner, deadline
        job.started_at, job.policy = None, policy

    def succeed(self, job: JobRecord, result: str | None, started_at: int | None, finished_at: int) -> None:
        """End a job in flight. Hot path."""
        if self._before is not None:
            before = {"state": job.state, "owner": job.owner, "result": job.result, "settled": job.settled}
            before |= {"expired_count": job.expired_count, "started_at": job.started_at, "finished_at": job.finished_at}
            self._before.append((job, before))
        queue, tier = job.row.queue, job.tier
        self.counts[queue, tier, job.state] -= 1
        self.counts[queue, tier, JobState.SUCCEEDED] += 1
        self._in_flight.discard(job.id)
        job.state, job.owner, job.result, job.settled = JobState.SUCCEEDED, None, result, job.token
        job.expired_count, job.started_at, job.finished_at = 0, started_at, finished_at
        self._ended(job)

    def remove(self, job: JobRecord) -> None:
        if self._before is not None:
            self._before.append((job, REMOVED))
        self._take_out(job)
        leave_parents(job, self.children)
        del self.jobs[job.id]

    def shown(self, job: JobRecord) -> dict[str, Any]:
        """Return the job as people see it."""
        line = self.lines.get(job.key) if job.state is JobState.BLOCKED and job.key is not None else None
        holder = None if line is None or line.holder is None else self.jobs[line.holder]
        shown = job.shown(None if holder is None else KeyHolder(holder.id, holder.state.value, holder.on_failure))
        parents = [_relative(id, self.jobs.get(id), link) for id, link in islice(job.links.items(), MAX_SHOWN)]
        children = [self.jobs[id] for id in sorted(self.children.get(job.id, ()))[:MAX_SHOWN]]
        return shown | relatives(parents, [_relative(child.id, child, child.links[job.id]) for child in children])

    def leased(self, lease: Lease) -> JobRecord | None:
        """Return the job if it is still in flight under the token of this lease."""
        job = self.jobs.get(lease.id)
        return job if job is not None and job.state is JobState.IN_FLIGHT and job.token == lease.token else None

    def in_flight(self) -> list[JobRecord]:
        return [self.jobs[id] for id in sorted(self._in_flight)]

    def pending_dead_letters(self) -> list[JobRecord]:
        return [job for job in self.jobs.values() if job.dead_letter_state == "pending"]

    def pending_by_lists(self) -> dict[tuple[str, str], list[JobRecord]]:
        """Pending dead letters by `owed` and `accepted`, as texts."""
        found: dict[tuple[str, str], list[JobRecord]] = {}
        for job in self.pending_dead_letters():
            if (record := job.dead_letter) is not None:
                found.setdefault((sinks_text(record.owed), sinks_text(record.accepted)), []).append(job)
        return found

    def candidates(self, queue: str, tier: int, limit: int) -> list[JobRecord]:
        """Return the first ready jobs of a tier, without removing them from it."""
        heap = self._ready.get((queue, tier))
        if heap is None:
            return []
        for entry in self._offered.pop((queue, tier), ()):
            if self._is_ready(entry, queue, tier):
                heappush(heap, entry)
        entries: dict[int, Entry] = {}
        while heap and len(entries) < limit:
            entry = heappop(heap)
            if self._is_ready(entry, queue, tier):
                entries[entry[ID]] = entry
        self._offered[queue, tier] = list(entries.values())
        return [self.jobs[id] for id in entries]

    def _is_ready(self, entry: Entry, queue: str, tier: int) -> bool:
        priority, age, id = entry
        job = self.jobs.get(id)
        if job is None or job.state is not JobState.READY:
            return False
        row = job.row
        return job.age == age and job.tier == tier and row.queue == queue and row.priority == -priority

    def next_scheduled(self) -> JobRecord | None:
        while self._scheduled:
            due_at, id = self._scheduled[0]
            job = self.jobs.get(id)
            if job is not None and job.state is JobState.SCHEDULED and job.due_at == due_at:
                return job
            heappop(self._scheduled)
        return None

    def forget_owners(self) -> None:
        """Remove owners that have left and hold no lease."""
        holding = {job.owner for job in self.in_flight()}
        for name, owner in list(self.owners.items()):
            if owner.presence.state == LEFT and name not in holding:
                del self.owners[name]

    def _file(self, job: JobRecord) -> None:
        """Add the job to the counts, and to the index of its state."""
        state, queue = job.state, job.row.queue
        self.counts[queue, job.tier, state] += 1
        if job.row.extras is not None and job.may_expire and (expires_at := job.expires_at) is not None:
            heappush(self.expiring, (expires_at, job.id))
        if state is JobState.IN_FLIGHT:
            self._in_flight.add(job.id)
        elif state is JobState.READY:
            heap = self._ready.setdefault((queue, job.tier), [])
            heappush(heap, (-job.row.priority, job.age, job.id))
        elif state is JobState.SCHEDULED:
            heappush(self._scheduled, (job.due_at, job.id))
        elif state is JobState.BLOCKED:
            if job.held_back:
                line = self.held.setdefault((job.held_back, queue, job.tier), [])
                heappush(line, (-job.row.priority, job.age, job.id))
            elif (key := job.key) is not None and not job.waits_for_parents:
                heappush(self.lines.setdefault(key, Line()).waiting, job.id)
        else:
            self._ended(job)

    def _ended(self, job: JobRecord) -> None:
        """Note that the job has ended, or that its dead letter has changed."""

    def _take_out(self, job: JobRecord) -> None:
        self.counts[job.row.queue, job.tier, job.state] -= 1
        self._in_flight.discard(job.id)

    def _undo(self, before: Sequence[Before]) -> None:
        jobs = self.jobs
        for job, fields in reversed(before):
            if fields is ADDED:
                del jobs[job.id]
            elif fields is REMOVED:
                jobs[job.id] = job
            else:
                for name, value in fields.items():
                    setattr(job, name, value)
        self.jobs = {id: jobs[id] for id in sorted(jobs)}
        self._file_all()

    def forget_stale_entries(self) -> None:
        """Make the heaps anew if most of their entries are out of date: those of a queue from which nothing is taken stay otherwise."""
        entries = len(self._scheduled) + sum(
            len(heap) for heap in (*self._ready.values(), *self._offered.values(), *self.held.values())
        )
        if entries > 2 * len(self.jobs) + MAX_STALE:
            self._file_all()

    def _file_all(self) -> None:
        for index in (
            self.counts, self._ready, self._offered, self._scheduled, self._in_flight, self.lines, self.expiring, self.held,
            self.children,
        ):  # fmt: skip
            index.clear()
        for job in self.jobs.values():
            self._file(job)
            join_parents(job, self.children)
            if job.holds_key and (key := job.key) is not None:
                self.lines.setdefault(key, Line()).holder = job.id


def join_parents(job: JobRecord, children: dict[int, set[int]]) -> None:
    """Add the job to the children of its parents."""
    for parent in job.after:
        children.setdefault(parent, set()).add(job.id)


def leave_parents(job: JobRecord, children: dict[int, set[int]]) -> None:
    """Remove the job from the children of its parents."""
    for parent in job.after:
        children[parent].discard(job.id)


def _relative(id: int, job: JobRecord | None, link: int) -> tuple[int, str | None, int | None, int]:
    return (id, None, None, link) if job is None else (id, job.row.handler, CODES[job.state], link)
