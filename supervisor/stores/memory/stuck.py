"""The blocked jobs in memory that wait for a job that has ended without success: see `supervisor.stores.stuck`."""

from __future__ import annotations

from typing import Any

from supervisor.jobs import JobState
from supervisor.stores.codes import CODES
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.keys import keeps_its_key
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.stuck import MAX_STUCK, MAX_WAITING, stuck_rows
from supervisor.stores.workflows import WAITS


def stuck(state: MemoryState) -> list[dict[str, Any]]:
    """It looks at all jobs: unlike in a database, they are few."""
    waiting: dict[str, int] = {}
    for job in state.jobs.values():
        if job.state is JobState.BLOCKED and job.key is not None and not job.waits_for_parents:
            waiting[job.key] = waiting.get(job.key, 0) + 1
    held = [
        (job.id, job.row.handler, CODES[job.state], job.key, min(waiting[job.key], MAX_WAITING))
        for job in state.jobs.values()
        if job.key in waiting and job.holds_key and keeps_its_key(job)
    ]
    parents = [
        (id, parent.row.handler, CODES[parent.state], min(children), min(len(children), MAX_WAITING))
        for id in sorted(state.children)
        if (parent := state.jobs.get(id)) is not None
        and parent.state in (JobState.FAILED, JobState.CANCELLED)
        and (children := _waiting_for(state, parent))
    ]
    return stuck_rows(held[:MAX_STUCK], parents[:MAX_STUCK])


def _waiting_for(state: MemoryState, parent: JobRecord) -> list[int]:
    children = [state.jobs[id] for id in state.children[parent.id]]
    return [it.id for it in children if it.state is JobState.BLOCKED and it.links.get(parent.id) == WAITS]
