"""The rate at which one program enqueues, one by one and in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.peers.catalogue import PEERS, SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure

NAME = "enqueue"
TITLE = "jobs enqueued by one program, no worker running; wanted: 4,000/s one by one, 200,000/s in bulk"
ONE_BY_ONE = 4_000
BULK = 100_000
EACH = Measure("one by one", "jobs/s", "more")
MANY = Measure("bulk", "jobs/s", "more")


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [EACH, MANY])
    share = 50 if run.quick else 1
    contenders = {SUPERVISOR.title: partial(enqueued, SUPERVISOR, ONE_BY_ONE // share, BULK // share)}
    for peer in run.wanted(PEERS):
        contenders[peer.title] = partial(enqueued, peer, ONE_BY_ONE // share, BULK // 5 // share)
    if single := [peer.title for peer in run.wanted(PEERS) if not peer.bulk]:
        table.note(f"no call for many jobs: {', '.join(single)}")
    table.note("supervisor, Huey on SQLite and Procrastinate sync each to disk; Redis keeps nothing on disk")
    run.compare(table, contenders)


def enqueued(peer: Peer, one_by_one: int, bulk: int) -> Mapping[str, float]:
    with deployed(peer) as contender, contender.client() as client:
        client.enqueue("noop", {"n": 0})  # opens the connection
        rates = {EACH.name: one_by_one / client.enqueue_each("noop", [{"n": number} for number in range(one_by_one)])}
        if peer.bulk:
            rates[MANY.name] = bulk / client.enqueue_many("noop", [{"n": number} for number in range(bulk)])
        return rates
