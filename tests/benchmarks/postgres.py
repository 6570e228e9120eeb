"""Drain, latency when idle and bulk enqueue on PostgreSQL, each on a new server with durable settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.drain import RATE, drained, share
from tests.benchmarks.latency import IDLE, idle
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.peers.catalogue import PGQUEUER, PROCRASTINATE, SUPERVISOR_POSTGRES, SUPERVISORS_POSTGRES
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure

NAME = "postgres"
TITLE = (
    "on PostgreSQL, 2 workers; wanted: 15,000 jobs/s drained, 25 x Procrastinate, faster than PgQueuer, by two supervisors "
    "no less than by one; 3 ms at the median; 100,000 jobs/s enqueued in bulk"
)
JOBS = 60_000
BULK = 100_000
WAITS = 100
MANY = Measure("bulk", "jobs/s", "more")


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE, *IDLE, MANY])
    table.ours = SUPERVISOR_POSTGRES.title
    ours = (SUPERVISOR_POSTGRES, SUPERVISORS_POSTGRES)
    peers = run.wanted([PROCRASTINATE, PGQUEUER])
    for peer in peers:
        table.note(f"{peer.title}: {peer.lacks}")
    table.note("each server is durable, as initdb makes it; drained: until the last is settled (peers: has started)")
    run.compare(table, {peer.title: partial(measured, peer, run.quick) for peer in (*ours, *peers)})


def measured(peer: Peer, quick: bool) -> Mapping[str, float]:
    ours = peer.module == SUPERVISOR_POSTGRES.module
    jobs = (JOBS // 50 if quick else JOBS) if ours else share(peer, quick)
    bulk = (BULK if ours else BULK // 5) // (50 if quick else 1)
    return {**drained(peer, jobs), **idle(peer, 10 if quick else WAITS), **in_bulk(peer, bulk)}


def in_bulk(peer: Peer, jobs: int) -> Mapping[str, float]:
    with deployed(peer) as contender, contender.client() as client:
        client.enqueue("noop", {"n": 0})  # opens the connection
        return {MANY.name: jobs / client.enqueue_many("noop", [{"n": number} for number in range(jobs)])}
