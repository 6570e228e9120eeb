"""When `run --drain` has done what it can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.coordinator import Engine
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store

LOOK_EVERY = 0.5
ASKED_AT_ONCE = 500


async def until_drained(engine: Engine, dead_letters: DeadLetterPublisher, latest: float | None, grace: float) -> None:
    """Until the served, unpaused queues have nothing left (due by `latest`, by the store's clock, if given), or only what this
    run can't do: jobs whose handler no plugin serves, or letters that no sink has taken for `grace` seconds with nothing else
    to do."""
    loop = asyncio.get_running_loop()
    stuck_since: float | None = None
    while True:
        if engine.quiet:
            most = len(engine.unknown_jobs or ()) + 1
            remaining = await engine.remaining(latest, most)
            can_be_done, scheduled = set(remaining), remaining.get("scheduled", 0)
            if scheduled < most and await _only_unknown(engine, scheduled, latest):
                can_be_done.discard("scheduled")
            if not can_be_done:
                return
            if can_be_done == {"dead_letters"} and dead_letters.stuck:
                stuck_since = stuck_since if stuck_since is not None else loop.time()
                if loop.time() - stuck_since >= grace:
                    return
            else:
                stuck_since = None
        engine.changes.clear()
        await _wait(engine.changes, LOOK_EVERY)


async def _only_unknown(engine: Engine, scheduled: int, latest: float | None) -> bool:
    """Whether what is scheduled, and due by `latest`, is nothing but jobs that no plugin serves. What has left the schedule
    since it was put off for that, cancelled say, is forgotten: if it comes back, the engine finds out again."""
    put_off = engine.unknown_jobs or set()
    if not 0 < scheduled <= len(put_off):
        return False
    ids, served, counted = sorted(put_off), engine.settings.workers.queues, 0
    for start in range(0, len(ids), ASKED_AT_ONCE):
        batch = ids[start : start + ASKED_AT_ONCE]
        due = await engine.writer.submit(partial(_due_times, ids=batch, served=served))
        put_off.difference_update(set(batch) - due.keys())
        counted += sum(at is not None and (latest is None or at <= latest) for at in due.values())
    return scheduled <= min(counted, len(put_off))  # a reload meanwhile may have brought their handler


def _due_times(store: Store, ids: Sequence[int], served: frozenset[str] | None) -> dict[int, float | None]:
    """Those of the jobs that are scheduled; None where the queue is paused or not served here."""
    paused, due = store.paused(), {}
    for id in ids:
        job = store.get(id)
        if job is not None and job["state"] == JobState.SCHEDULED.value:
            here = job["queue"] not in paused and (served is None or job["queue"] in served)
            due[id] = datetime.fromisoformat(job["due_at"]).timestamp() if here else None
    return due


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
