"""The rate at which jobs are drained under limits, beside jobs without a limit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.drain import RATE, rate
from tests.benchmarks.keys import enqueued
from tests.benchmarks.peers.base import Settings
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import Run

NAME = "limits"
TITLE = (
    "no-op jobs that wait, drained by 2 worker processes: without limits, and with those of their handler or of another"
)
JOBS = 20_000
LIMITS = {
    "": "",
    ", a limit of another handler": "handlers: {other: {limit: {running: 2}}}",
    ", a limit of their handler": "handlers: {noop: {limit: {running: 2}}}",
    ", a limit of their queue": "queues: {default: {limit: {running: 2}}}",
}


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE])
    jobs = JOBS // 50 if run.quick else JOBS
    run.compare(table, {f"{SUPERVISOR.title}{name}": partial(drained, jobs, config) for name, config in LIMITS.items()})


def drained(jobs: int, limits: str) -> Mapping[str, float]:
    """Return jobs per second, as the row `drain` does."""
    with deployed(SUPERVISOR, Settings(limits=limits)) as contender:
        stamps = enqueued(contender, jobs, keys=0)
        with contender.workers():
            return {RATE.name: rate(contender, jobs, stamps)}
