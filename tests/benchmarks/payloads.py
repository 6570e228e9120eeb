"""No-op jobs with payloads of growing sizes: how fast they are drained, and how much the supervisor writes for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import psutil

from tests.benchmarks.contender import deployed
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.peers.catalogue import SUPERVISOR, SUPERVISOR_POSTGRES
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure
from tests.benchmarks.wait import wait_until

NAME = "payloads"
TITLE = "no-op jobs with large payloads, drained by 2 workers; wanted: each is written once, to the worker"
JOBS = {100: 50_000, 1_000: 20_000, 100_000: 500, 1_000_000: 60}
QUICK_DIVISOR = 10
RATE = Measure("drain", "jobs/s", "more")
WRITTEN = Measure("written by the supervisor", "bytes/job", "less")


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE, WRITTEN])
    contenders = {
        f"{size:,} bytes{'' if peer is SUPERVISOR else ', PostgreSQL'}": partial(drained, peer, size, jobs // divisor)
        for divisor in [QUICK_DIVISOR if run.quick else 1]
        for peer in (SUPERVISOR, SUPERVISOR_POSTGRES)
        for size, jobs in JOBS.items()
    }
    table.ours = next(iter(contenders))
    table.note("on PostgreSQL, the server writes: its part is not counted")
    run.compare(table, contenders)


def drained(peer: Peer, size: int, jobs: int) -> Mapping[str, float]:
    with deployed(peer) as contender:
        with contender.client() as client:
            batch = max(1, 10_000_000 // size)
            for done in range(0, jobs, batch):
                client.enqueue_many("noop", [{"text": "x" * (size - 11)}] * min(batch, jobs - done))
        with ours.store_reader(contender.deployment) as reader, contender.workers() as (supervisor,):
            wait_until(lambda: reader.succeeded() >= jobs, f"{jobs} jobs settled", every=0.02)
            first, last = reader.span()
            written = psutil.Process(supervisor.pid).io_counters().write_chars
    return {RATE.name: jobs / (last - first), WRITTEN.name: written / jobs}
