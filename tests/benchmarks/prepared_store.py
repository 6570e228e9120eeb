"""A SQLite store that is filled with waiting jobs through its own methods."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from supervisor import retry
from supervisor.jobs import Backoff, Cause, Failure, Kind, Lease, Outcome, Policy
from supervisor.stores.records import ClaimRequest, EnqueueRow
from supervisor.stores.sqlite.store import SqliteStore

BATCH = 100_000
CLAIM = 500
LATER = 86_400.0
TTL = 30.0
QUEUE = "default"
_POLICY = Policy(backoff=Backoff(LATER, 1.0, LATER, "none"))
_TRACEBACK = "".join(f'  File "handlers.py", line {line}, in handler\n' for line in range(10))


@contextlib.contextmanager
def joined_store(path: Path) -> Iterator[SqliteStore]:
    """Open or create the store in this file as a supervisor does, with the right to claim."""
    store = SqliteStore(path, create=True)
    try:
        store.join(f"benchmark {path.name}", "here", 0)
        yield store
        store.leave()
    finally:
        store.close()


def fill(store: SqliteStore, count: int, delay: float | None = None) -> None:
    """Enqueue no-op jobs."""
    row = EnqueueRow("noop", '{"n": 1}', QUEUE, delay=delay)
    for done in range(0, count, BATCH):
        store.enqueue([row] * min(BATCH, count - done))


def fill_with_backoffs(store: SqliteStore, count: int) -> None:
    """Enqueue jobs, claim them and settle them as failed, so that they wait for a retry."""
    fill(store, count)
    left = count
    while left:
        leases = claim(store, min(CLAIM, left))
        store.settle([_failed(lease) for lease in leases])
        left -= len(leases)


def claim(store: SqliteStore, count: int) -> list[Lease]:
    """Claim in one transaction, as the fetcher does."""
    with store.transaction():
        store.look(None, 1000)
        leases = store.claim([ClaimRequest(QUEUE, count, count, count, 100)], TTL, lambda handler, queue: _POLICY)
    if len(leases) != count:
        raise RuntimeError(f"{len(leases)} jobs claimed instead of {count}")
    return leases


def succeed(store: SqliteStore, leases: list[Lease]) -> None:
    store.settle(
        [retry.decide(Outcome(lease, Kind.SUCCEEDED, took=0.001), lambda: 0.0, dead_letters=False) for lease in leases]
    )


def _failed(lease: Lease) -> Outcome:
    failure = Failure(Cause.EXCEPTION, type="ValueError", message="not this time", traceback=_TRACEBACK)
    return retry.decide(Outcome(lease, Kind.FAILED, took=0.001, failure=failure), lambda: 0.0, dead_letters=False)
