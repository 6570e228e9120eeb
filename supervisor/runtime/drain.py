"""Decide when `run --drain` has done all that it can do, and count what it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.store_writer import NotDone, Purpose
from supervisor.events import MAX_COUNTED
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store

LOOK_EVERY = 0.5  # seconds
BATCH = 500  # jobs
UNCOUNTED = "uncounted"
FOR_OTHER_SINKS = "dead_letters_for_other_sinks"


class Left(NamedTuple):
    """The jobs and dead letters that a run leaves in the store, counted by kind."""

    remaining: dict[str, int]
    """The jobs and dead letters that the run should have done."""
    excluded: dict[str, int]
    """The jobs that the user has excluded: by a pause, by the horizon or by the queues to serve."""


async def until_drained(
    engine: Coordinator, dead_letters: DeadLetterPublisher, latest: float | None, grace: float
) -> None:
    """Wait until the served, unpaused queues have nothing left that is due by `latest` (by the store's clock; None: ever),
    or only what this run can't do.

    It can't do jobs whose handler no plugin serves. It waits for `grace` seconds, in which there is nothing else to do, for
    dead letters that no sink takes or that wait for sinks of other supervisors, and for a store that refuses to count.
    """
    loop = asyncio.get_running_loop()
    stuck_since: float | None = None
    while True:
        if engine.quiet:
            left = await _left_to_do(engine, latest)
            if not left:
                return
            if left <= {UNCOUNTED, FOR_OTHER_SINKS, "dead_letters" if dead_letters.stuck else UNCOUNTED}:
                stuck_since = stuck_since if stuck_since is not None else loop.time()
                if loop.time() - stuck_since >= grace:
                    return
            else:
                stuck_since = None
        engine.changes.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY):
                await engine.changes.wait()


async def count_left(engine: Coordinator, latest: float | None) -> Left:
    """Count what is left at the end of a drain. Jobs that this run has postponed because no plugin serves them count as remaining,
    even if they are due after `latest` now."""
    served = engine.settings.workers.queues

    def count(store: Store) -> tuple[dict[str, int], list[dict[str, Any]]]:
        return store.remaining(served, latest), store.stats()["queues"]

    remaining, queues = await engine.writer.submit(count, Purpose.COUNT)
    here = [row for row in queues if served is None or row["queue"] in served]
    elsewhere = [row for row in queues if served is not None and row["queue"] not in served]
    due = remaining.get("scheduled", 0)
    later = sum(row["scheduled"] for row in here if not row["paused"]) - due if due < MAX_COUNTED else 0
    postponed = await _count_postponed(engine, latest) if later > 0 else 0
    if postponed:
        remaining["scheduled"] = due + postponed
    excluded = {
        "in_paused_queues": sum(map(_unfinished, (row for row in here if row["paused"]))),
        "due_after_the_horizon": later - postponed,
        "in_queues_not_served": sum(map(_unfinished, elsewhere)),
    }
    return Left(remaining, {kind: n for kind, n in excluded.items() if n > 0})


def _unfinished(row: dict[str, Any]) -> int:
    return sum(row[state] for state in ("queue_size", "retry_queue_size", "scheduled", "in_flight"))


async def _count_postponed(engine: Coordinator, latest: float | None) -> int:
    """Return how many of the jobs that no plugin serves are scheduled for a time after `latest`."""
    ids, served = sorted(engine.unknown_jobs or ()), engine.settings.workers.queues
    postponed = 0
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        due = await engine.writer.submit(partial(_due_times, ids=batch, served=served), Purpose.COUNT)
        postponed += sum(at is not None and latest is not None and at > latest for at in due.values())
    return postponed


async def _left_to_do(engine: Coordinator, latest: float | None) -> set[str]:
    """Return the kinds of what remains ("ready", "scheduled", "dead_letters", ...) and can be done here."""
    limit = len(engine.unknown_jobs or ()) + 1
    try:
        remaining = await engine.remaining(latest, limit)
        left, scheduled = set(remaining), remaining.get("scheduled", 0)
        if scheduled < limit and await _only_unknown(engine, scheduled, latest):
            left.discard("scheduled")
    except NotDone:
        return {UNCOUNTED}  # the store refused to count them, which has been reported
    return left


async def _only_unknown(engine: Coordinator, scheduled: int, latest: float | None) -> bool:
    """Return whether all jobs that are scheduled, and due by `latest`, are jobs that no plugin serves.

    A job that is no longer scheduled, because it was cancelled for example, is removed from `engine.unknown_jobs`: if it comes
    back, the engine finds out again.
    """
    unknown = engine.unknown_jobs or set()
    if not 0 < scheduled <= len(unknown):
        return False
    ids, served, counted = sorted(unknown), engine.settings.workers.queues, 0
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        due = await engine.writer.submit(partial(_due_times, ids=batch, served=served))
        unknown.difference_update(set(batch) - due.keys())
        counted += sum(at is not None and (latest is None or at <= latest) for at in due.values())
    return scheduled <= min(counted, len(unknown))  # a reload meanwhile may have brought their handler


def _due_times(store: Store, ids: Sequence[int], served: frozenset[str] | None) -> dict[int, float | None]:
    """Return when each scheduled job of these is due; None if its queue is paused or not served here."""
    paused, due = store.paused(), {}
    for id in ids:
        job = store.get(id)
        if job is not None and job["state"] == JobState.SCHEDULED.value:
            here = job["queue"] not in paused and (served is None or job["queue"] in served)
            due[id] = datetime.fromisoformat(job["due_at"]).timestamp() if here else None
    return due
