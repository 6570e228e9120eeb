"""Decides when `run --drain` has done all that it can do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.store_writer import NotDone
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store

LOOK_EVERY = 0.5  # seconds
BATCH = 500  # jobs


async def until_drained(
    engine: Coordinator, dead_letters: DeadLetterPublisher, latest: float | None, grace: float
) -> None:
    """Wait until the served, unpaused queues have nothing left that is due by `latest` (by the store's clock; None: ever),
    or only what this run can't do.

    It can't do jobs whose handler no plugin serves, nor dead letters that no sink has taken for `grace` seconds in which there
    was nothing else to do.
    """
    loop = asyncio.get_running_loop()
    stuck_since: float | None = None
    while True:
        if engine.quiet:
            left = await _left_to_do(engine, latest)
            if not left:
                return
            if left == {"dead_letters"} and dead_letters.stuck:
                stuck_since = stuck_since if stuck_since is not None else loop.time()
                if loop.time() - stuck_since >= grace:
                    return
            else:
                stuck_since = None
        engine.changes.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY):
                await engine.changes.wait()


async def _left_to_do(engine: Coordinator, latest: float | None) -> set[str]:
    """Return the kinds of what remains ("ready", "scheduled", "dead_letters", ...) and can be done here."""
    limit = len(engine.unknown_jobs or ()) + 1
    try:
        remaining = await engine.remaining(latest, limit)
        left, scheduled = set(remaining), remaining.get("scheduled", 0)
        if scheduled < limit and await _only_unknown(engine, scheduled, latest):
            left.discard("scheduled")
    except NotDone:
        return {"uncounted"}  # the store refused to count them, which has been reported
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
