"""Find jobs of a memory store by a filter."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any

import orjson

from supervisor.jobs import JobState
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.records import Place
from supervisor.stores.search import LOWER, FailureGroup, IdRange, JobFilter, SearchLimits, Walk, has_error


class Search:
    """Implements `supervisor.stores.search.Source`. It looks at all jobs, which are in memory anyway."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def last_id(self) -> int:
        return max(self._state.jobs, default=0)

    def created_at(self, id: int) -> int | None:
        ids = [*self._state.jobs]
        at = bisect_left(ids, id)
        return self._state.jobs[ids[at]].created_at if at < len(ids) else None

    def walk(self, where: JobFilter, ids: IdRange, after: Place | None, limit: int, limits: SearchLimits) -> Walk:
        places = ((job.finished_at or 0 if where.by_finish else 0, job.id) for job in self._passing(where))
        return Walk(nlargest(limit, (place for place in places if after is None or place < after)))

    def with_text(self, ids: Sequence[int], text: str) -> tuple[Collection[int], int]:
        wanted = text.translate(LOWER)
        quoted = orjson.dumps(wanted).decode()[1:-1]
        texts = {id: [*_texts(self._state.jobs[id])] for id in ids}
        matching = {id for id, (own, errors) in texts.items() if wanted in own or wanted in errors or quoted in errors}
        return matching, sum(len(own) + len(errors) for own, errors in texts.values())

    def with_error(self, ids: Sequence[int], text: str) -> tuple[Collection[int], int]:
        last = {id: _last_error(self._state.jobs[id]) for id in ids}
        return {id for id, error in last.items() if error and has_error(error, text)}, 0

    def headers(self, ids: Sequence[int]) -> Iterator[tuple[int, str]]:
        return ((id, text) for id in ids if (text := self._state.jobs[id].row.headers) is not None)

    def failures(self, limit: int, among: int) -> list[tuple[FailureGroup, Mapping[str, Any]]]:
        """Return the groups, each with the last error of its newest job."""
        groups: dict[tuple[Any, ...], list[JobRecord]] = defaultdict(list)
        for _, id in self.walk(JobFilter(JobState.FAILED), IdRange(), None, among, SearchLimits()).places:
            job = self._state.jobs[id]
            last = _last_error(job)
            groups[job.row.handler, last.get("type"), last.get("cause")].append(job)
        found = [
            (FailureGroup(handler, len(jobs), jobs[0].finished_at or 0, jobs[0].id), _last_error(jobs[0]))
            for (handler, *_), jobs in groups.items()
        ]
        return nlargest(limit, found, key=lambda it: (it[0].n, it[0].last_at))

    def _passing(self, where: JobFilter) -> Iterator[JobRecord]:
        for job in self._state.jobs.values():
            if (
                where.state in (None, job.state)
                and where.queue in (None, job.row.queue)
                and where.handler in (None, job.row.handler)
                and (where.since is None or job.created_at >= where.since)
                and (where.until is None or job.created_at < where.until)
                and _has_dead_letter(job, where.dead_letter)
                and (where.sink is None or where.sink in job.missing_sinks)
                and (where.tag is None or (job.row.extras is not None and where.tag in job.row.extras.tags))
            ):
                yield job


def _has_dead_letter(job: JobRecord, wanted: str | None) -> bool:
    return wanted in (None, job.dead_letter_state) or (wanted == "any" and job.dead_letter_state is not None)


def _texts(job: JobRecord) -> Iterator[str]:
    """Yield the payload with the headers, and the errors."""
    yield f"{job.row.payload}\n{job.row.headers or ''}".translate(LOWER)
    yield orjson.dumps(job.errors).decode().translate(LOWER)


def _last_error(job: JobRecord) -> Mapping[str, Any]:
    return job.errors[-1] if job.errors else {}
