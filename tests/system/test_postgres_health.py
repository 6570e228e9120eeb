"""SUPERVISOR_HEALTH_JOBS (20,000; for hours a million or more) through a PostgreSQL store: tables stay small, claims fast."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import pytest

from supervisor.jobs import JobState, Kind, Outcome, Policy
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import ClaimRequest, EnqueueRow, Retention
from tests.stores.postgres_server import Server

JOBS = int(os.environ.get("SUPERVISOR_HEALTH_JOBS", "20000"))
LONG = JOBS >= 500_000
BATCH = 500
WAITING = 2_000
PRUNED_AT_ONCE = 1_000
PARTS = 12
KEPT = 1.0 if LONG else 0.2
"""Seconds that a succeeded job is kept."""
SIZES = """select pg_table_size('supervisor.jobs'), pg_indexes_size('supervisor.jobs'),
  pg_total_relation_size('supervisor.counts')"""


class Part(NamedTuple):
    """One of the parts of the run: the median of its claims in ms, and at its end the sizes in MB."""

    claim: float
    table: float
    indexes: float
    counts: float


@pytest.fixture(scope="module")
def store() -> Iterator[PostgresStore]:
    """A durable server with autovacuum as it comes; in a short run it looks every second instead of every minute."""
    server = Server({} if LONG else {"autovacuum_naptime": "1s"})
    store = PostgresStore(server.url, create=True)
    store.join("health", "here", os.getpid())
    yield store
    store.close()
    server.remove()


def policy(handler: str, queue: str) -> Policy:
    return Policy()


def pass_through(store: PostgresStore, jobs: int) -> list[float]:
    """So many jobs are enqueued, claimed, settled and pruned, in batches; the seconds of each claim."""
    claims = []
    for _ in range(jobs // BATCH):
        store.enqueue([EnqueueRow("mail", '{"to": "someone@example.org"}')] * BATCH)
        began = time.monotonic()
        with store.transaction(single=True):
            store.look(None, 1000)
            leases = store.claim([ClaimRequest("default", BATCH, 0, 0, 100)], 30.0, policy)
        claims.append(time.monotonic() - began)
        assert len(leases) == BATCH
        succeeded = [Outcome(lease, Kind.SUCCEEDED, took=0.001, state=JobState.SUCCEEDED) for lease in leases]
        assert store.settle(succeeded) == []
        while (pruned := store.prune(Retention(succeeded=KEPT), PRUNED_AT_ONCE)) == PRUNED_AT_ONCE:
            pass
        assert pruned < PRUNED_AT_ONCE
    return claims


@pytest.mark.timeout(60 + JOBS // 500)
def test_claims_and_sizes_stay_flat(store: PostgresStore, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    store.enqueue([EnqueueRow("mail", "{}")] * WAITING)
    parts = []
    for _ in range(PARTS):
        claims = pass_through(store, JOBS // PARTS)
        ((*sizes,),) = store.connection.rows(SIZES)
        parts.append(Part(1000 * median(claims), *(size / 1e6 for size in sizes)))
    with capsys.disabled():
        print(f"\n{JOBS:,} jobs in {time.monotonic() - began:.0f}s, by parts: claim ms, table, indexes, counts MB")
        for part in parts:
            print("  " + "  ".join(f"{value:7.2f}" for value in part))
    third = PARTS // 3
    before, after = parts[third : 2 * third], parts[2 * third :]
    for name in Part._fields if LONG else Part._fields[1:]:  # a short run sees more of the machine than of its claims
        was, is_now = (max(getattr(part, name) for part in some) for some in (before, after))
        assert is_now <= 1.5 * was + 4.0, f"{name} grew from {was:.1f} to {is_now:.1f}"
