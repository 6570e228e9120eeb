"""Where outcomes take their jobs, and what counts of jobs become for people: the same in every store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from supervisor.errors import StoreError
from supervisor.jobs import Cause, Kind, Outcome
from supervisor.stores.codes import CODES, FAILED, IN_FLIGHT, READY, SCHEDULED
from supervisor.stores.records import Waiting

RESET, KEEP, ADD = range(3)
"""What becomes of a job's lapses."""


def destination(outcome: Outcome) -> int:
    if outcome.state is None:
        raise StoreError(f"job {outcome.lease.id}: an outcome must be decided before it is settled")
    return CODES[outcome.state]


def expired_count_after(outcome: Outcome) -> int:
    """The row of leases without a start mark ends with what shows that the job can be run, not with one given back unstarted."""
    if outcome.kind is Kind.RELEASED and outcome.took is None:
        return KEEP if outcome.seen is None else ADD
    expired = outcome.failure is not None and outcome.failure.cause is Cause.LEASE_EXPIRED
    return KEEP if expired else RESET


def waiting_of(rows: Iterable[Sequence[Any]], served: frozenset[str] | None) -> dict[str, Waiting]:
    """From (queue, tier, n) of what is ready."""
    found: dict[str, list[int]] = {}
    for queue, tier, n in rows:
        if served is None or queue in served:
            found.setdefault(queue, [0, 0])[tier] = n
    return {queue: Waiting(*counts) for queue, counts in found.items()}


def queue_rows(
    counted: Iterable[Sequence[Any]], paused: frozenset[str], processing: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The `queues` of `status --json`, from (queue, state, tier, n) of all jobs."""
    counts: dict[str, dict[tuple[int, int], int]] = {queue: {} for queue in paused}
    for queue, state, tier, n in counted:
        counts.setdefault(queue, {})[state, tier] = n
    return [
        {
            "queue": queue,
            "queue_size": of.get((READY, 0), 0),
            "retry_queue_size": of.get((READY, 1), 0),
            "scheduled": of.get((SCHEDULED, 0), 0) + of.get((SCHEDULED, 1), 0),
            "in_flight": of.get((IN_FLIGHT, 0), 0) + of.get((IN_FLIGHT, 1), 0),
            "failed": of.get((FAILED, 0), 0) + of.get((FAILED, 1), 0),
            "paused": queue in paused,
            "processing": processing.get(queue, 0),
        }
        for queue, of in sorted(counts.items())
    ]


def running_jobs(supervisors: Iterable[Mapping[str, Any]]) -> list[int]:
    workers = [worker for supervisor in supervisors for worker in supervisor["workers"]]
    return [worker["current_job"]["job_id"] for worker in workers if worker.get("current_job")]
