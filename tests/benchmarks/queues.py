"""No-op jobs in one queue, and in as many queues as there are jobs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from supervisor.stores.records import EnqueueRow
from tests.benchmarks.contender import deployed
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.peers.catalogue import SUPERVISOR, SUPERVISOR_POSTGRES
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure
from tests.benchmarks.wait import wait_until

NAME = "queues"
TITLE = "no-op jobs in thousands of queues, drained by 2 workers; wanted: within 3 x of one queue, at any number"
CASES = ((60_000, 1), (60_000, 1_000), (15_000, 15_000), (30_000, 30_000), (60_000, 60_000))
QUICK_DIVISOR = 100
BATCH = 10_000
TIME = Measure("time", "us/job", "less")


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [TIME])
    divisor = QUICK_DIVISOR if run.quick else 1
    contenders = {
        f"{jobs // divisor:,} jobs in {max(1, queues // divisor):,} queue{'s' * (queues > 1)}"
        f"{'' if peer is SUPERVISOR else ', PostgreSQL'}": partial(
            drained, peer, jobs // divisor, max(1, queues // divisor)
        )
        for peer in (SUPERVISOR, SUPERVISOR_POSTGRES)
        for jobs, queues in CASES
    }
    table.ours = next(iter(contenders))
    run.compare(table, contenders)


def drained(peer: Peer, jobs: int, queues: int) -> Mapping[str, float]:
    with deployed(peer) as contender:
        with ours.opened_store(contender.deployment) as store:
            rows = [EnqueueRow("noop", '{"n": 1}', f"queue-{number}") for number in range(queues)]
            for done in range(0, jobs, BATCH):
                store.enqueue([rows[number % queues] for number in range(done, min(jobs, done + BATCH))])
        with ours.store_reader(contender.deployment) as reader, contender.workers():
            wait_until(lambda: reader.succeeded() >= jobs, f"{jobs} jobs settled", every=0.1)
            first, last = reader.span()
    return {TIME.name: (last - first) / jobs * 1e6}
