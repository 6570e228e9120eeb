"""The rate at which jobs are drained under limits, beside jobs without a limit, and what limits promise beside those of peers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.drain import RATE, rate
from tests.benchmarks.keys import enqueued
from tests.benchmarks.limits_compared import compare_limits
from tests.benchmarks.peers.base import Settings
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import Run

NAME = "limits"
TITLE = (
    "no-op jobs that wait, drained by 2 worker processes: without limits, and with those of their handler or of another"
)
JOBS = 20_000
LIMITED_JOBS = 2_000
"""Each job under a limit is claimed by itself, so fewer are drained in the same time."""
LIMITS = {
    "": ("", JOBS),
    ", a limit of another handler": ("handlers: {other: {limit: {running: 2}}}", JOBS),
    ", a limit of their handler": ("handlers: {noop: {limit: {running: 2}}}", LIMITED_JOBS),
    ", a limit of their queue": ("queues: {default: {limit: {running: 2}}}", LIMITED_JOBS),
}


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE])
    less = 10 if run.quick else 1
    contenders = {
        f"{SUPERVISOR.title}{name}": partial(drained, jobs // less, config) for name, (config, jobs) in LIMITS.items()
    }
    run.compare(table, contenders)
    compare_limits(run)


def drained(jobs: int, limits: str) -> Mapping[str, float]:
    """Return jobs per second, as the row `drain` does."""
    with deployed(SUPERVISOR, Settings(limits=limits)) as contender:
        stamps = enqueued(contender, jobs, keys=0)
        with contender.workers():
            return {RATE.name: rate(contender, jobs, stamps)}
