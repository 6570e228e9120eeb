"""The time of a claim beside many jobs that wait, a fifth of which have keys, groups or limits."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from supervisor.jobs import Policy
from supervisor.stores.extras import Extras
from supervisor.stores.job_limits import JobLimits, Limit
from supervisor.stores.records import ClaimRequest, EnqueueRow
from supervisor.stores.sqlite.store import SqliteStore
from tests.benchmarks import prepared_store
from tests.benchmarks.claims import files_of
from tests.benchmarks.prepared_store import QUEUE, TTL
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure

NAME = "limited claims"
TITLE = "a claim of up to 10 jobs, durable, beside jobs that wait; a fifth of them have keys, groups or limits; wanted: flat within 1.5 x"
LEVELS = (10_000, 1_000_000, 5_000_000)
QUICK = (2_000, 10_000)
ROUNDS = 5
CLAIMS = 20
NAMES = 1000  # of keys, and of groups
CLAIMED, STARTED = 10, 4
BATCH = 10_000
LIMITS = JobLimits({"limited": Limit(running=10)}, {"mail": Limit(running=1)}, {"grouped": Limit(running=1)})
MEASURES = {
    QUEUE: Measure("plain jobs", "ms", "less"),
    "keyed": Measure("jobs with keys", "ms", "less"),
    "grouped": Measure("jobs of groups with a limit each", "ms", "less"),
    "mails": Measure("jobs of a handler with a limit", "ms", "less"),
    "limited": Measure("jobs of a queue with a limit", "ms", "less"),
}


def run(run: Run) -> None:
    levels = QUICK if run.quick else LEVELS
    table = run.table(NAME, TITLE, list(MEASURES.values()))
    table.ours = f"{levels[0]:,} waiting"
    table.note(f"a query of what waits and a claim in one transaction; the last column is against {table.ours}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as stack:
        run.show_progress(f"{NAME}: enqueueing {levels[-1]:,} jobs")
        files = files_of(Path(folder), levels, fill)
        stores = {level: stack.enter_context(prepared_store.joined_store(file)) for level, file in files.items()}
        run.compare(
            table, {f"{level:,} waiting": partial(claims, it) for level, it in stores.items()}, ROUNDS * run.rounds
        )


def fill(store: SqliteStore, count: int) -> None:
    """Enqueue so many jobs, and let claims hold back those in front whose limits are reached."""
    share = count // 20
    for queue in MEASURES:
        put(store, queue, count - 4 * share if queue == QUEUE else share)
    for queue in ("mails", "grouped"):
        for _ in range(10):
            claimed(store, queue)


def put(store: SqliteStore, queue: str, count: int) -> None:
    handler = "mail" if queue == "mails" else "noop"
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        store.enqueue([EnqueueRow(handler, "{}", queue, extras=extras(queue, n % NAMES)) for n in numbers])


def extras(queue: str, n: int) -> Extras | None:
    return {"keyed": Extras(key=f"key {n}"), "grouped": Extras(group=f"group {n}")}.get(queue)


def claims(store: SqliteStore) -> Mapping[str, float]:
    """Return medians by queue. Before each round the same number of jobs waits."""
    found = {}
    for queue, measure in MEASURES.items():
        times, numbers = zip(*[claimed(store, queue) for _ in range(CLAIMS)], strict=True)
        put(store, queue, sum(numbers))
        found[measure.name] = statistics.median(times) * 1e3
    return found


def claimed(store: SqliteStore, queue: str) -> tuple[float, int]:
    """Claim as the engine does, and settle the jobs; that is not in the time. Return the time, and the number of jobs."""
    began = time.perf_counter()
    with store.transaction():
        store.look(None, 1000)
        allowance = store.allowance(LIMITS, None)
        takes = allowance.asked([ClaimRequest(queue, CLAIMED, CLAIMED, CLAIMED, 100)], STARTED)
        leases = store.claim_limited(takes, TTL, lambda handler, queue: Policy(), allowance, STARTED).leases
    took = time.perf_counter() - began
    prepared_store.succeed(store, leases)
    return took, len(leases)
