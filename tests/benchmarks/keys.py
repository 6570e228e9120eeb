"""The rate at which jobs of 1,000 keys are drained, each key in order, beside jobs without a key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from supervisor import Client
from supervisor.config.loading import load
from tests.benchmarks.contender import Contender, deployed
from tests.benchmarks.drain import LAST, RATE, rate
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.stamps import Stamps

NAME = "keys"
TITLE = "no-op jobs that wait, drained by 2 worker processes: of 1,000 keys, each in order, and without keys; wanted: at least 0.5"
JOBS = 50_000
KEYS = 1_000


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE])
    jobs = JOBS // 50 if run.quick else JOBS
    keys = KEYS // 50 if run.quick else KEYS
    names = {SUPERVISOR.title: 0, f"{SUPERVISOR.title}, {keys:,} keys": keys}
    run.compare(table, {name: partial(drained, jobs, n) for name, n in names.items()})


def drained(jobs: int, keys: int) -> Mapping[str, float]:
    """Return jobs per second, as the row `drain` does."""
    with deployed(SUPERVISOR) as contender:
        stamps = enqueued(contender, jobs, keys)
        with contender.workers():
            return {RATE.name: rate(contender, jobs, stamps)}


def enqueued(contender: Contender, jobs: int, keys: int) -> Stamps:
    """Write the config and enqueue the jobs, with so many keys."""
    stamps = contender.stamps()
    options = [{"key": f"account:{number}"} for number in range(keys)] or [{}]
    noops = [{"handler": "noop", "payload": {"n": n}, **options[n % len(options)]} for n in range(jobs - LAST - 1)]
    last = [("stamp", stamps.payload(number)) for number in range(LAST)]
    ours.write(contender.deployment)
    with Client(load(ours.config(contender.deployment)), create=True) as client:
        client.enqueue_many([("stamp", stamps.payload("first")), *noops, *last])
    return stamps
