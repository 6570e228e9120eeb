"""Counts of jobs by queue, state and tier, as supervisors and people see them: the same in every store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from supervisor.stores.codes import BLOCKED, FAILED, IN_FLIGHT, READY, SCHEDULED
from supervisor.stores.records import ClaimRequest, Waiting
from supervisor.text.units import counted

Row = TypeVar("Row", bound=Sequence[Any])


ROWS_OF_A_LOOK = 1_000
"""Each queue has one row, or two. A claim takes jobs of no more queues."""


def whole_queues(rows: list[Row], limit: int) -> tuple[list[Row], str]:
    """Return the rows of ready jobs by queue and tier without a last queue that may lack one of its rows, and the queue behind which
    the next look begins. If there are fewer rows than `limit`, they are all there are, and this is empty."""
    if len(rows) < limit:
        return rows, ""
    rows = [row for row in rows if row[0] != rows[-1][0]]
    return rows, rows[-1][0]


class Turns:
    """The turns of more queues than one look shows: a look begins `behind` the last queue that jobs were claimed from."""

    def __init__(self) -> None:
        self.behind = ""
        """Empty if the last look has seen all queues."""
        self.partial = False

    def shown(self, rows: list[Row], stay: bool) -> tuple[list[Row], bool]:
        """Return the rows of a look that are shown, and whether there are more queues. The next look begins behind the last one
        shown, unless jobs are claimed, or behind the same as this one if it is to `stay`."""
        rows, last = whole_queues(rows, ROWS_OF_A_LOOK)
        self.partial = bool(last) and not stay
        if not stay:
            self.behind = last
        return rows, bool(last)

    def claimed(self, takes: Sequence[ClaimRequest], queues: Collection[str]) -> None:
        """Begin the next look behind the last of these `queues`, from which jobs were claimed, or behind the last one asked for."""
        if self.partial and takes:
            self.behind = next((take.queue for take in reversed(takes) if take.queue in queues), takes[-1].queue)


def waiting_of(rows: Iterable[Sequence[Any]], served: frozenset[str] | None = None) -> dict[str, Waiting]:
    """Return the number of ready jobs by queue, from rows of (queue, tier, n)."""
    found: dict[str, list[int]] = {}
    for queue, tier, n in rows:
        if served is None or queue in served:
            found.setdefault(queue, [0, 0])[tier] = n
    return {queue: Waiting(*counts) for queue, counts in found.items()}


def newly_ready(before: Iterable[Sequence[Any]], after: Iterable[Sequence[Any]]) -> frozenset[tuple[str, int]]:
    """The queues and tiers of the rows of ready jobs after a change that were in no row before it."""
    return frozenset((row[0], row[1]) for row in after) - {(row[0], row[1]) for row in before}


def queue_rows(
    counted: Iterable[Sequence[Any]], paused: frozenset[str], processing: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the `queues` of `status --json`, from rows of (queue, state, tier, n) of all jobs."""
    counts: dict[str, dict[tuple[int, int], int]] = {queue: {} for queue in paused}
    for queue, state, tier, n in counted:
        counts.setdefault(queue, {})[state, tier] = n
    return [
        {
            "queue": queue,
            "queue_size": of.get((READY, 0), 0),
            "retry_queue_size": of.get((READY, 1), 0),
            "blocked": of.get((BLOCKED, 0), 0) + of.get((BLOCKED, 1), 0),
            "scheduled": of.get((SCHEDULED, 0), 0) + of.get((SCHEDULED, 1), 0),
            "in_flight": of.get((IN_FLIGHT, 0), 0) + of.get((IN_FLIGHT, 1), 0),
            "failed": of.get((FAILED, 0), 0) + of.get((FAILED, 1), 0),
            "paused": queue in paused,
            "processing": processing.get(queue, 0),
        }
        for queue, of in sorted(counts.items())
    ]


def running_jobs(supervisors: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the ids of jobs that workers of these `supervisors` (as in `status --json`) are running."""
    workers = [worker for supervisor in supervisors for worker in supervisor["workers"]]
    return [worker["current_job"]["job_id"] for worker in workers if worker.get("current_job")]


def repair_text(queues: Iterable[str], blocked: Iterable[str] = (), unleased: int = 0) -> str:
    """Return text about what a repair of the store has corrected; empty if nothing was wrong. `blocked` are the queues of jobs that go on:
    the end of others may have left that to the repair, so no other program need have changed anything."""
    shown = sorted(queues)
    wrong = [f"the counts of jobs in {', '.join(shown[:10])}{' and other queues' if len(shown) > 10 else ''}"] * bool(
        shown
    )
    wrong += [f"{counted(unleased, 'job')} in flight without a lease"] * bool(unleased)
    changed = [f"{' and '.join(wrong)}, since another program has changed its rows"] * bool(wrong)
    free = [f"jobs in {', '.join(sorted(blocked))} go on that waited for jobs that have ended"] * bool(blocked)
    return "; ".join(changed + free)
