"""SIGKILL of a worker, and of all processes: the time until the next job starts, or until the interrupted jobs run again."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import CELERY, PEBBLE, PROCRASTINATE, SUPERVISOR
from tests.benchmarks.processes import is_running, kill, tree
from tests.benchmarks.run import NotMeasured, Run
from tests.benchmarks.stamps import Stamps
from tests.benchmarks.start import PYTHON_COMMAND, command, command_seconds
from tests.benchmarks.table import Measure
from tests.benchmarks.wait import wait_until

NAME = "kills"
TITLE = "SIGKILL of a worker at a job, and of the whole tree"
HOUR = 3600
SAMPLES = 5
BOUND = 15.0
RETRIES = 3
NEXT = Measure("kill to next start", "ms", "less")
AGAIN = Measure("restart to running again", "ms", "less")
PYTHON = Measure("of that, python -c pass", "ms", "less")
OURSELVES = Measure("of that, supervisor --version", "ms", "less")


def run(run: Run) -> None:
    samples = 1 if run.quick else SAMPLES
    table = run.table(NAME, "from kill -9 of a worker at a job to the next job's start in its slot", [NEXT])
    table.note(f"1 worker process, median of {samples} in each round")
    contenders = {SUPERVISOR.title: partial(worker_killed, SUPERVISOR, samples)}
    for peer in run.wanted((PEBBLE, CELERY)):
        contenders[peer.title] = partial(worker_killed, peer, samples)
    run.compare(table, contenders)

    title = "from a restart, after kill -9 of the whole tree, until both interrupted jobs run again"
    table = run.table(NAME, title, [AGAIN, PYTHON, OURSELVES])
    table.note("counted from the exec of the command; 2 worker processes, each at a job")
    table.note(f"{SUPERVISOR.title}: a retry, after a backoff of up to 500 ms, which is the default")
    table.note(f"{CELERY.title}: acks_late and reject_on_worker_lost")
    contenders = {SUPERVISOR.title: partial(ours_killed)}
    for peer in run.wanted((CELERY, PROCRASTINATE)):
        contenders[peer.title] = partial(all_killed, peer)
    run.compare(table, contenders)


def worker_killed(peer: Peer, samples: int) -> Mapping[str, float]:
    with deployed(peer, Settings(workers=1)) as contender, contender.client() as client, contender.workers():
        stamps = contender.stamps()
        client.enqueue("stamp", stamps.payload("warm"))
        stamps.wait_for("warm")
        waits = []
        for number in range(samples):
            client.enqueue("sleep", stamps.payload(f"killed-{number}", seconds=HOUR))
            stamps.wait_for(f"killed-{number}")
            client.enqueue("stamp", stamps.payload(f"next-{number}"))
            before = time.time_ns()
            os.kill(_worker_at(f"killed-{number}", stamps), signal.SIGKILL)
            waits.append((_start_time(stamps, f"next-{number}", 1) - before) / 1e6)
        return {NEXT.name: statistics.median(waits)}


def ours_killed() -> Mapping[str, float]:
    return {
        **all_killed(SUPERVISOR),
        PYTHON.name: command_seconds(PYTHON_COMMAND) * 1e3,
        OURSELVES.name: command_seconds([command(), "--version"]) * 1e3,
    }


def all_killed(peer: Peer) -> Mapping[str, float]:
    jobs = ("first", "second")
    with deployed(peer, Settings(workers=2, late=True, retries=RETRIES)) as contender, contender.client() as client:
        stamps = contender.stamps()
        with contender.workers() as processes:
            for job in jobs:
                client.enqueue("sleep", stamps.payload(job, seconds=HOUR))
            for job in jobs:
                stamps.wait_for(job)
            processes_below = [one for process in processes for one in tree(process.pid)]
            kill(processes_below)
            wait_until(lambda: not any(map(is_running, processes_below)), "the end of all processes")
        before = time.time_ns()
        with contender.workers():
            return {AGAIN.name: (max(_start_time(stamps, job, 2) for job in jobs) - before) / 1e6}


def _start_time(stamps: Stamps, job: str, start: int) -> int:
    """Return the time of the first or second start of a job in ns."""
    try:
        wait_until(lambda: len(stamps.times().get(job, ())) >= start, "", BOUND)
    except TimeoutError:
        raise NotMeasured(f"not within {BOUND:g} s") from None
    return stamps.times()[job][start - 1]


def _worker_at(job: str, stamps: Stamps) -> int:
    return next(pid for id, _at, pid in stamps.lines() if id == job)
