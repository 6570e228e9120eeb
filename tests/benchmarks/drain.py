"""The rate at which two worker processes drain no-op jobs, beside the bare hot path in the same run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from tests.benchmarks.contender import Contender, deployed
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.peers.catalogue import PEERS, SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.stamps import Stamps
from tests.benchmarks.table import Measure
from tests.benchmarks.wait import wait_until

NAME = "drain"
TITLE = "no-op jobs that wait, drained by 2 worker processes; wanted: 50,000 jobs/s, 0.6 of the bare hot path, 12 x the fastest peer"
JOBS = 100_000
SECONDS = 4.0
LAST = 20
LOOK_EVERY = 0.02  # seconds: not often, since looking takes time from the jobs; the result is in the stamps
RATE = Measure("drain", "jobs/s", "more")
BARE = "bare hot path (bare_hot_path.py)"


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE])
    jobs = JOBS // 50 if run.quick else JOBS
    contenders = {SUPERVISOR.title: partial(drained, SUPERVISOR, jobs), BARE: partial(bare_hot_path, jobs)}
    for peer in run.wanted(PEERS):
        contenders[peer.title] = partial(drained, peer, share(peer, run.quick))
        table.note(f"{peer.title}: {share(peer, run.quick):,} jobs; {peer.lacks}")
    table.note(f"{SUPERVISOR.title}: {jobs:,} jobs, durable (synchronous=FULL), until the last is settled as succeeded")
    table.note("Redis keeps nothing on disk; PostgreSQL is durable, as by default")
    run.compare(table, contenders)


def drained(peer: Peer, jobs: int) -> Mapping[str, float]:
    """Return jobs per second from the start of the first to the end of the last. The first job and the last few are stamped."""
    with deployed(peer) as contender, enqueued(contender, jobs) as stamps, contender.workers():
        return {RATE.name: rate(contender, jobs, stamps)}


@contextmanager
def enqueued(contender: Contender, jobs: int) -> Iterator[Stamps]:
    """Enqueue the jobs; return the stamps that they will leave. The client is open until the end of the block."""
    with contender.client() as client:
        stamps = contender.stamps()
        client.enqueue_many("stamp", [stamps.payload("first")])
        client.enqueue_many("noop", [{"n": number} for number in range(jobs - LAST - 1)])
        client.enqueue_many("stamp", [stamps.payload(number) for number in range(LAST)])
        yield stamps


def rate(contender: Contender, jobs: int, stamps: Stamps) -> float:
    """Wait until the running workers have drained the jobs; return jobs per second."""
    stamps.wait(LAST + 1, every=LOOK_EVERY)
    settled = _settled(contender, jobs) if contender.peer.module == SUPERVISOR.module else 0.0
    times = [at / 1e9 for _id, at, _pid in stamps.lines()]
    return jobs / (max(*times, settled) - min(times))


def bare_hot_path(jobs: int) -> Mapping[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.bare_hot_path", str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.match(r"([\d,]+) jobs/s", done.stdout)
    if found is None:
        raise RuntimeError(done.stdout)
    return {RATE.name: float(found[1].replace(",", ""))}


def _settled(contender: Contender, jobs: int) -> float:
    """Wait until the store has all jobs as succeeded, and return the time."""
    with ours.store_reader(contender.deployment) as reader:
        wait_until(lambda: reader.succeeded() >= jobs, f"{jobs} jobs settled")
        at = time.time()
        if (counted := reader.succeeded(each=True)) != jobs:
            raise RuntimeError(f"{counted} of {jobs} jobs are settled as succeeded")
    return at


def share(peer: Peer, quick: bool) -> int:
    """Return how many jobs the peer drains in a few seconds."""
    return max(2 * LAST, int(peer.drains * SECONDS / (10 if quick else 1)))
