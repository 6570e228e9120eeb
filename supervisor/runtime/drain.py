"""Decide when `run --drain` has done all that it can do, and count what it leaves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.store_writer import NotDone, Purpose
from supervisor.events import MAX_COUNTED
from supervisor.jobs import JobState
from supervisor.runtime.blocked_jobs import BlockedJobs, blocked_jobs, why_blocked
from supervisor.stores.protocol import Store

LOOK_EVERY = 0.5  # seconds
NAMED_AMONG = 1000  # scheduled jobs, whose missing handlers are named
UNCOUNTED = "uncounted"
DEAD_LETTERS = "dead_letters"
FOR_OTHER_SINKS = "dead_letters_for_other_sinks"
BLOCKED = JobState.BLOCKED.value
DOABLE = (JobState.READY.value, JobState.SCHEDULED.value, JobState.IN_FLIGHT.value)


class Left(NamedTuple):
    """The jobs and dead letters that a run leaves in the store, counted by kind."""

    remaining: dict[str, int]
    """The jobs and dead letters that the run should have done."""
    excluded: dict[str, int]
    """The jobs that the user has excluded: by a pause, by the horizon or by the queues to serve."""
    missing_handlers: tuple[str, ...] = ()
    """Of scheduled jobs of the served queues; no plugin of this supervisor serves them."""
    blocked: str = ""
    """Why one of the blocked jobs that remain waits."""


async def until_drained(
    engine: Coordinator, dead_letters: DeadLetterPublisher, latest: float | None, grace: float
) -> None:
    """Wait until this run has done all that it can do in the served, unpaused queues: the jobs that are due by `latest` (by the
    store's clock; None for all jobs), and their dead letters. Jobs whose handler no plugin serves are not waited for, nor are
    blocked jobs that wait for others which are due after `latest`.

    Return as well after `grace` seconds of either of these:

    - No job can run: the store is unavailable or refuses jobs, or no worker can be started.
    - Nothing is left but what this run may never be able to do: jobs that are blocked, for example by a job that has failed, unless
      a limit holds jobs back, since these go on later; dead letters that no sink takes, or that wait for the sinks of other
      supervisors; and what the store refuses to count.
    """
    loop = asyncio.get_running_loop()
    none_can_run_since: float | None = None
    only_not_doable_since: float | None = None
    while True:
        if not engine.blocked():
            none_can_run_since = None
        elif none_can_run_since is None:
            none_can_run_since = loop.time()
        if none_can_run_since is not None and loop.time() - none_can_run_since >= grace:
            return
        if engine.quiet:
            left = await _left_to_do(engine, latest)
            if not left:
                return
            if not left <= _not_doable(engine, dead_letters):
                only_not_doable_since = None
            elif only_not_doable_since is None:
                only_not_doable_since = loop.time()
            if only_not_doable_since is not None and loop.time() - only_not_doable_since >= grace:
                return
        engine.changes.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY):
                await engine.changes.wait()


def _not_doable(engine: Coordinator, dead_letters: DeadLetterPublisher) -> set[str]:
    """Return the kinds of jobs and dead letters that this run may never be able to do."""
    kinds = {UNCOUNTED, FOR_OTHER_SINKS}
    if not engine.self_report.limits_hold_back():
        kinds.add(BLOCKED)
    if dead_letters.stuck:
        kinds.add(DEAD_LETTERS)
    return kinds


async def count_left(engine: Coordinator, latest: float | None) -> Left:
    """Count what is left at the end of a drain. Jobs that this run has postponed because no plugin serves them count as remaining,
    even if they are due after `latest` now."""
    served, known = engine.settings.workers.queues, engine.handlers if engine.unknown_handlers.met else None

    def count(store: Store) -> tuple[dict[str, int], list[dict[str, Any]], int, BlockedJobs, tuple[str, ...], str]:
        remaining, status = store.remaining(served, latest), store.stats()
        postponed = 0 if known is None or latest is None else _unknown_after(store, served, latest, known)
        blocked = blocked_jobs(store, served, latest) if BLOCKED in remaining else BlockedJobs([], [])
        missing = _missing_handlers(store, served, engine.handlers)
        return remaining, status["queues"], postponed, blocked, missing, why_blocked(store, blocked.others, status)

    remaining, queues, postponed, blocked, missing, why = await engine.writer.submit(count, Purpose.COUNT)
    if behind := min(len(blocked.after_horizon), remaining.get(BLOCKED, 0)):
        remaining = {kind: left for kind, n in remaining.items() if (left := n - (behind if kind == BLOCKED else 0))}
    served_rows = [row for row in queues if served is None or row["queue"] in served]
    other_rows = [row for row in queues if served is not None and row["queue"] not in served]
    due = remaining.get("scheduled", 0)
    later = sum(row["scheduled"] for row in served_rows if not row["paused"]) - due if due < MAX_COUNTED else 0
    postponed = min(postponed, later)
    if postponed:
        remaining["scheduled"] = due + postponed
    excluded = {
        "in_paused_queues": sum(map(_unfinished, (row for row in served_rows if row["paused"]))),
        "due_after_the_horizon": later - postponed,
        "that_wait_for_jobs_due_after_the_horizon": behind,
        "in_queues_not_served": sum(map(_unfinished, other_rows)),
    }
    return Left(remaining, {kind: n for kind, n in excluded.items() if n > 0}, missing, why)


def _missing_handlers(store: Store, served: frozenset[str] | None, known: Collection[str]) -> tuple[str, ...]:
    """Return the handlers among the newest scheduled jobs that no plugin serves here."""
    jobs = store.list_jobs(state=JobState.SCHEDULED, limit=NAMED_AMONG, brief=True)
    needed = {job["handler"] for job in jobs if served is None or job["queue"] in served}
    return tuple(sorted(needed - {*known}))


def _unfinished(row: dict[str, Any]) -> int:
    return sum(row[state] for state in ("queue_size", "retry_queue_size", "blocked", "scheduled", "in_flight"))


def _unknown_after(store: Store, served: frozenset[str] | None, latest: float, known: Collection[str]) -> int:
    """Return how many jobs that no plugin serves are scheduled for a time after `latest`."""

    def scheduled(latest: float | None, handlers: Collection[str] | None) -> int:
        return store.remaining(served, latest, sys.maxsize, handlers).get("scheduled", 0)

    return scheduled(None, None) - scheduled(None, known) - scheduled(latest, None) + scheduled(latest, known)


async def _left_to_do(engine: Coordinator, latest: float | None) -> set[str]:
    """Return the kinds of jobs and dead letters that are left ("ready", "scheduled", "dead_letters", ...), without jobs whose handler
    no plugin serves, and without blocked ones if all of these wait for jobs that are due after `latest`."""
    try:
        left = set(await engine.remaining(latest, 1))
        if latest is not None and BLOCKED in left and left.isdisjoint(DOABLE):
            served = engine.settings.workers.queues
            found = await engine.writer.submit(lambda store: blocked_jobs(store, served, latest), Purpose.COUNT)
            left -= set() if found.others else {BLOCKED}
        return left
    except NotDone:
        return {UNCOUNTED}  # the store refused to count them, which has been reported
