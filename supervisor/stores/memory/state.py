"""What the memory store keeps: the jobs, and the queues they wait in."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

from supervisor.jobs import JobState, Lease, Policy, Tier
from supervisor.stores.records import EnqueueRow, Presence, Shown, job_dict, options_text, overlaid, own_max_retries


@dataclass(slots=True)
class DeadLetterRecord:
    due_at: int
    token: int = 0
    tries: int = 0
    accepted: frozenset[str] = frozenset()
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

    def __copy__(self) -> JobRecord:
        return JobRecord(*_all_fields(self))

    @property
    def dead_letter_state(self) -> str | None:
        return None if self.dead_letter is None else self.dead_letter.state

    def lease(self) -> Lease:
        row, options = self.row, options_text(self.row)
        policy = self.policy or Policy()
        return Lease(
            id=self.id,
            token=self.token,
            handler=row.handler,
            queue=row.queue,
            payload=row.payload,
            headers=row.headers,
            retries=self.retries,
            priority=row.priority,
            tier=self.tier,
            due_at=self.due_at,
            created_at=self.created_at,
            policy=policy if options is None else overlaid(policy, options),
        )

    def shown(self) -> dict[str, Any]:
        return job_dict(
            Shown(
                id=self.id,
                handler=self.row.handler,
                payload=self.row.payload,
                queue=self.row.queue,
                priority=self.row.priority,
                state=self.state.value,
                retries=self.retries,
                max_retries=own_max_retries(options_text(self.row), self.policy),
                due_at=self.due_at,
                created_at=self.created_at,
                started_at=self.started_at,
                finished_at=self.finished_at,
                result=self.result,
                headers=self.row.headers,
                errors=self.errors,
                dead_letter=self.dead_letter_state,
            )
        )


_all_fields = attrgetter(*(each.name for each in fields(JobRecord)))


@dataclass(slots=True)
class OwnerRecord:
    host: str
    pid: int
    seen_at: int
    notification_pipe: tuple[int, int]
    presence: Presence = field(default_factory=lambda: Presence("starting"))


class MemoryState:
    """The jobs, which every sibling shares, and the queues they wait in.

    The heaps may hold entries that are no longer true; whoever takes one out compares it with the job.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.jobs: dict[int, JobRecord] = {}
        self.sequence = 0
        self.owners: dict[str, OwnerRecord] = {}
        self.paused: set[str] = set()
        self.before: dict[int, JobRecord | None] | None = None
        self.broken = False
        self.index()

    def index(self) -> None:
        self.counts: Counter[tuple[str, int, JobState]] = Counter()
        self.ready: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.scheduled: list[tuple[int, int]] = []
        self.in_flight: set[int] = set()
        for job in self.jobs.values():
            self.file(job)

    def file(self, job: JobRecord) -> None:
        """Put the job where its state belongs."""
        self.counts[job.row.queue, job.tier, job.state] += 1
        if job.state is JobState.READY:
            heap = self.ready.setdefault((job.row.queue, job.tier), [])
            heappush(heap, (-job.row.priority, job.age, job.id))
        elif job.state is JobState.SCHEDULED:
            heappush(self.scheduled, (job.due_at, job.id))
        elif job.state is JobState.IN_FLIGHT:
            self.in_flight.add(job.id)

    def take_out(self, job: JobRecord) -> None:
        self.counts[job.row.queue, job.tier, job.state] -= 1
        self.in_flight.discard(job.id)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """All or nothing: what failed half way must not be kept with the rest, even if the caller goes on."""
        try:
            yield
        except BaseException:
            self.broken = True
            raise

    def remember(self, id: int) -> None:
        """What the open transaction must put back if it fails."""
        if self.before is not None and id not in self.before:
            self.before[id] = copy(self.jobs[id]) if id in self.jobs else None

    def undo(self, before: Mapping[int, JobRecord | None]) -> None:
        for id, job in before.items():
            if job is None:
                self.jobs.pop(id, None)
            else:
                self.jobs[id] = job
        self.jobs = dict(sorted(self.jobs.items()))
        self.index()

    def candidates(self, queue: str, tier: int, limit: int) -> list[JobRecord]:
        """The first ready jobs of a tier; they stay in it."""
        heap = self.ready.get((queue, tier), [])
        found: list[JobRecord] = []
        entries: dict[int, tuple[int, int, int]] = {}
        while heap and len(found) < limit:
            entry = heappop(heap)
            job = self.jobs.get(entry[2])
            if job and job.id not in entries and (job.state, job.tier, job.age) == (JobState.READY, tier, entry[1]):
                entries[job.id] = entry
                found.append(job)
        for entry in entries.values():
            heappush(heap, entry)
        return found

    def next_scheduled(self) -> JobRecord | None:
        while self.scheduled:
            due_at, id = self.scheduled[0]
            job = self.jobs.get(id)
            if job is not None and job.state is JobState.SCHEDULED and job.due_at == due_at:
                return job
            heappop(self.scheduled)
        return None
