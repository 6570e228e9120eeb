"""The state of a memory store: the jobs, the queues in which they wait, and the owners."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

from supervisor.errors import StoreError
from supervisor.jobs import JobState, Lease, Policy, Tier
from supervisor.stores.codes import LEFT
from supervisor.stores.records import (
    EnqueueRow,
    Presence,
    Shown,
    job_dict,
    microseconds,
    options_text,
    overlaid,
    own_max_retries,
)
from supervisor.stores.sinks import Sinks, sinks_text

MAX_STALE = 1000
"""Entries of heaps, besides twice the number of jobs, that may be out of date."""


@dataclass(slots=True)
class DeadLetterRecord:
    due_at: int
    token: int = 0
    tries: int = 0
    accepted: Sinks = frozenset()
    owed: Sinks = frozenset()
    state: str | None = "pending"


@dataclass(slots=True)
class JobRecord:
    id: int
    row: EnqueueRow
    due_at: int
    created_at: int
    state: JobState
    age: int
    tier: int = Tier.FRESH
    token: int = 0
    settled: int = 0
    owner: str | None = None
    lease_until: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    retries: int = 0
    expired_count: int = 0
    policy: Policy | None = None
    result: str | None = None
    errors: tuple[Mapping[str, Any], ...] = ()
    dead_letter: DeadLetterRecord | None = None
    progress: str | None = None
    progress_at: int | None = None
    log: str | None = None

    def __copy__(self) -> JobRecord:
        return JobRecord(*_all_fields(self))

    @property
    def dead_letter_state(self) -> str | None:
        return None if self.dead_letter is None else self.dead_letter.state

    @property
    def missing_sinks(self) -> list[str]:
        record = self.dead_letter
        return sorted(record.owed - record.accepted) if record is not None and record.state == "pending" else []

    def lease(self) -> Lease:
        row, options, policy = self.row, options_text(self.row), self.policy or Policy()
        return Lease(
            self.id, self.token, row.handler, row.queue, row.payload, row.headers, self.retries, row.priority, self.tier,
            self.due_at, self.created_at, policy if options is None else overlaid(policy, options),
            self.expired_count,
        )  # fmt: skip

    def shown(self) -> dict[str, Any]:
        row, most = self.row, own_max_retries(options_text(self.row), self.policy)
        return job_dict(Shown(
            self.id, row.handler, row.payload, row.queue, row.priority, self.state.value, self.retries, most, self.due_at,
            self.created_at, self.started_at, self.finished_at, self.result, row.headers, self.errors, self.dead_letter_state,
            self.missing_sinks, self.expired_count, self.owner, self.lease_until, self.progress, self.progress_at, self.log,
        ))  # fmt: skip


_all_fields = attrgetter(*(each.name for each in fields(JobRecord)))


@dataclass(slots=True)
class OwnerRecord:
    host: str
    pid: int
    seen_at: int
    notification_pipe: tuple[int, int]
    presence: Presence = field(default_factory=lambda: Presence("starting"))
    sinks: Sinks = frozenset()


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
        self.counts: Counter[tuple[str, int, JobState]] = Counter()
        self._ready: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self._scheduled: list[tuple[int, int]] = []
        self._in_flight: set[int] = set()
        self._sequence = 0
        self._before: dict[int, JobRecord | None] | None = None  # jobs as they were before the open transaction
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
            self._before, sequence, paused, owners = {}, self._sequence, set(self.paused), dict(self.owners)
            try:
                yield
                if self._failed:
                    raise StoreError("a write inside this transaction failed, so none of it is kept")
            except BaseException:
                self._undo(self._before)
                self._sequence, self.paused = sequence, paused
                self.owners = owners | self.owners  # restores those that were removed meanwhile
                raise
            finally:
                self._before, self._failed = None, False

    def now(self) -> int:
        """Microseconds since the epoch."""
        return microseconds(self.clock())

    def next_age(self) -> int:
        """Return the next id, which is also an age behind all jobs that wait."""
        self._sequence += 1
        return self._sequence

    def add(self, job: JobRecord) -> None:
        self._remember(job.id)
        self.jobs[job.id] = job
        self._file(job)

    def change(self, job: JobRecord, **changes: Any) -> None:
        self._remember(job.id)
        self._take_out(job)
        for name, value in changes.items():
            setattr(job, name, value)
        self._file(job)

    def remove(self, job: JobRecord) -> None:
        self._remember(job.id)
        self._take_out(job)
        del self.jobs[job.id]

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
        heap = self._ready.get((queue, tier), [])
        found: list[JobRecord] = []
        entries: dict[int, tuple[int, int, int]] = {}
        while heap and len(found) < limit:
            entry = heappop(heap)
            _, age, id = entry
            job = self.jobs.get(id)
            if job and job.id not in entries and (job.state, job.tier, job.age) == (JobState.READY, tier, age):
                entries[job.id] = entry
                found.append(job)
        for entry in entries.values():
            heappush(heap, entry)
        return found

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
        self.counts[job.row.queue, job.tier, job.state] += 1
        if job.state is JobState.READY:
            heap = self._ready.setdefault((job.row.queue, job.tier), [])
            heappush(heap, (-job.row.priority, job.age, job.id))
        elif job.state is JobState.SCHEDULED:
            heappush(self._scheduled, (job.due_at, job.id))
        elif job.state is JobState.IN_FLIGHT:
            self._in_flight.add(job.id)

    def _take_out(self, job: JobRecord) -> None:
        self.counts[job.row.queue, job.tier, job.state] -= 1
        self._in_flight.discard(job.id)

    def _remember(self, id: int) -> None:
        if self._before is not None and id not in self._before:
            self._before[id] = copy(self.jobs[id]) if id in self.jobs else None

    def _undo(self, before: Mapping[int, JobRecord | None]) -> None:
        kept: Iterable[JobRecord] = [job for id, job in self.jobs.items() if id not in before]
        restored = [job for job in before.values() if job is not None]
        self.jobs = {job.id: job for job in sorted([*kept, *restored], key=attrgetter("id"))}
        self._file_all()

    def forget_stale_entries(self) -> None:
        """Make the heaps anew if most of their entries are out of date: those of a queue from which nothing is taken stay otherwise."""
        entries = len(self._scheduled) + sum(len(heap) for heap in self._ready.values())
        if entries > 2 * len(self.jobs) + MAX_STALE:
            self._file_all()

    def _file_all(self) -> None:
        for index in (self.counts, self._ready, self._scheduled, self._in_flight):
            index.clear()
        for job in self.jobs.values():
            self._file(job)
