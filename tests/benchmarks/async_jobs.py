"""Jobs that sleep for 10 ms without a thread, 100 at once in one worker process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import ASYNC_PEERS, SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure

NAME = "async"
TITLE = "jobs that sleep 10 ms, 100 at once in one process; wanted: 0.85 of the ideal, 10,000 jobs/s; 3 x Celery, 1 x SAQ and PgQueuer"
JOBS = 10_000
CONCURRENCY = 100
SECONDS = 0.010
LAST = 2 * CONCURRENCY
RATE = Measure("rate", "jobs/s", "more")


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE])
    jobs = JOBS // 10 if run.quick else JOBS
    contenders = {peer.title: partial(drained, peer, jobs) for peer in (SUPERVISOR, *run.wanted(ASYNC_PEERS))}
    run.compare(table, contenders)


def drained(peer: Peer, jobs: int) -> Mapping[str, float]:
    """Return jobs per second from the end of the first job to the end of the last."""
    settings = Settings(workers=1, concurrency=CONCURRENCY)
    with deployed(peer, settings) as contender, contender.client() as client:
        stamps = contender.stamps()
        client.enqueue_many("nap", [stamps.payload("first", seconds=SECONDS)])
        client.enqueue_many("nap", [{"seconds": SECONDS} for _ in range(jobs - LAST - 1)])
        client.enqueue_many("nap", [stamps.payload(number, seconds=SECONDS) for number in range(LAST)])
        with contender.workers():
            stamps.wait(LAST + 1, every=0.02)
            times = [at / 1e9 for _id, at, _pid in stamps.lines()]
    return {RATE.name: jobs / (max(times) - min(times) + SECONDS)}
