"""Queries to a memory store, for people, programs and --drain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from supervisor.events import MAX_COUNTED
from supervisor.jobs import JobState
from supervisor.stores.codes import CODES, LEFT
from supervisor.stores.counts import queue_rows, running_jobs
from supervisor.stores.job_reports import add_progress, shown_progress
from supervisor.stores.memory.other_records import OwnerRecord
from supervisor.stores.memory.ownership import Ownership
from supervisor.stores.memory.search import Search
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.memory.stuck import stuck
from supervisor.stores.oldest import FIRST_JOBS, MAX_PRIORITIES, OldestReady
from supervisor.stores.records import microseconds
from supervisor.stores.search import (
    MAX_FAILURES,
    UNLIMITED,
    USUAL,
    FoundJobs,
    IdRange,
    JobFilter,
    SearchLimits,
    failure_dict,
    find,
)
from supervisor.stores.sinks import count_by_work, sink_rows
from supervisor.stores.stuck import has_blocked
from supervisor.stores.supervisors import SupervisorRow, supervisor_dict
from supervisor.text.units import iso


class Queries:
    def __init__(self, state: MemoryState, owner: Ownership) -> None:
        self._state, self._owner, self._search = state, owner, Search(state)

    def stats(self) -> dict[str, Any]:
        with self._state.lock:
            self._state.forget_owners()
            jobs, counts = self._state.jobs, self._state.counts.items()
            supervisors = [self._owner_dict(name, owner) for name, owner in self._state.owners.items()]
            running = [jobs[id] for id in running_jobs(supervisors) if id in jobs]
            processing = Counter(job.row.queue for job in running if job.state is JobState.IN_FLIGHT)
            counted = [(queue, CODES[state], tier, n) for (queue, tier, state), n in counts if n]
            queues = queue_rows(counted, frozenset(self._state.paused), processing)
            sinks = sink_rows(self._pending(), supervisors)
            add_progress(supervisors, {job.id: shown_progress(job.progress, job.progress_at) for job in running})
            waits = stuck(self._state) if has_blocked(counted) else []
            at = iso(self._state.now())
            return {"at": at, "queues": queues, "supervisors": supervisors, "sinks": sinks, "stuck": waits}

    def oldest_ready(self, limit: int) -> list[OldestReady]:
        with self._state.lock:
            counts, now = self._state.counts, self._state.now()
            ready = [(n, queue, tier) for (queue, tier, state), n in counts.items() if n and state is JobState.READY]
            lines = [(queue, tier) for _, queue, tier in sorted(ready, reverse=True) if queue not in self._state.paused]
            first = {line: self._state.candidates(*line, FIRST_JOBS * MAX_PRIORITIES) for line in lines[:limit]}
            return [
                OldestReady(*line, max(0, now - min(job.due_at for job in jobs)) / 1e6) for line, jobs in first.items()
            ]

    def sinks(self) -> list[dict[str, Any]]:
        with self._state.lock:
            self._state.forget_owners()
            owners = [self._owner_dict(name, owner) for name, owner in self._state.owners.items()]
            return sink_rows(self._pending(), owners)

    def _owner_dict(self, name: str, owner: OwnerRecord) -> dict[str, Any]:
        presence, leases = owner.presence, [job.lease_until for job in self._state.in_flight() if job.owner == name]
        until = max(leases, default=None)
        row = SupervisorRow(name, owner.host, owner.pid, presence.state, owner.seen_at, len(leases), until)
        return supervisor_dict(row, presence.state == LEFT, presence.workers, owner.sinks, presence.about)

    def _pending(self) -> list[tuple[str, str, int]]:
        return [(*lists, len(jobs)) for lists, jobs in self._state.pending_by_lists().items()]

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        with self._state.lock:
            left: Counter[str] = Counter()
            last = None if latest is None else microseconds(latest)
            for job in self._state.jobs.values():
                queue = job.row.queue
                if not job.state.terminal and queue not in self._state.paused and (served is None or queue in served):
                    beyond = job.state is JobState.SCHEDULED and last is not None and job.due_at > last
                    known = handlers is None or job.row.handler in handlers
                    left[job.state.value] += not beyond and (known or job.state is not JobState.SCHEDULED)
            left.update(count_by_work(self._pending(), self._owner.sinks, most))
            if last is not None or handlers is not None:
                left["scheduled"] = min(most, left["scheduled"])
            return {name: n for name, n in left.items() if n}

    def repair(self) -> str:
        """Return an empty text: no other program can change the jobs."""
        return ""

    def get(self, id: int) -> dict[str, Any] | None:
        with self._state.lock:
            job = self._state.jobs.get(id)
            return None if job is None else self._state.shown(job)

    def counts_by_state(self, ids: Sequence[int]) -> dict[str | None, int]:
        with self._state.lock:
            jobs = [self._state.jobs.get(id) for id in ids]
            return dict(Counter(None if job is None else job.state.value for job in jobs))

    def get_many(self, ids: list[int]) -> tuple[int, list[dict[str, Any]]]:
        with self._state.lock:
            return len(ids), [self._state.shown(self._state.jobs[id]) for id in ids if id in self._state.jobs]

    def ended(self, ids: Sequence[int]) -> list[int]:
        with self._state.lock:
            jobs = self._state.jobs
            return [id for id in ids if id not in jobs or jobs[id].state.terminal]

    def list_jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        handler: str | None = None,
        dead_letter: str | None = None,
        limit: int = 100,
        brief: bool = False,
    ) -> Iterator[dict[str, Any]]:
        where = JobFilter(state, queue, handler, dead_letter=dead_letter)
        with self._state.lock:
            return self._read([id for _, id in self._search.walk(where, IdRange(), None, limit, UNLIMITED).places])

    def find_jobs(
        self, where: JobFilter, *, before: str | None = None, limit: int = 100, limits: SearchLimits = USUAL
    ) -> FoundJobs:
        with self._state.lock:
            found = find(self._search, where, before, limit, replace(limits, batch=limits.searched))
            return found._replace(jobs=self._read(found.ids))

    def failures(self, limit: int, among: int = MAX_FAILURES) -> list[dict[str, Any]]:
        with self._state.lock:
            return [failure_dict(group, last) for group, last in self._search.failures(limit, among)]

    def _read(self, ids: list[int]) -> Iterator[dict[str, Any]]:
        return iter([self._state.shown(self._state.jobs[id]) for id in ids])
