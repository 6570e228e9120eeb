"""SIGKILL of a worker, and of everything: when does the next job run, and when do those that were interrupted run again?"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial

import psutil

from tests.benchmarks.contender import Stamps, kill, site, tree
from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import CELERY, PEBBLE, PROCRASTINATE, SUPERVISOR
from tests.benchmarks.run import Absent, Run
from tests.benchmarks.table import Measure
from tests.benchmarks.wait import until

NAME = "kills"
TITLE = "SIGKILL of a worker at a job, and of the whole tree"
FOR_EVER = 3600
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
    contenders = {SUPERVISOR.title: partial(all_of_ours_killed)}
    for peer in run.wanted((CELERY, PROCRASTINATE)):
        contenders[peer.title] = partial(all_killed, peer)
    run.compare(table, contenders)


def worker_killed(peer: Peer, samples: int) -> Mapping[str, float]:
    with site(peer, Settings(workers=1)) as place, place.client() as client, place.workers():
        stamps = place.stamps()
        client.enqueue("stamp", stamps.payload("warm"))
        stamps.wait_for("warm")
        waits = []
        for number in range(samples):
            client.enqueue("sleep", stamps.payload(f"doomed-{number}", seconds=FOR_EVER))
            stamps.wait_for(f"doomed-{number}")
            client.enqueue("stamp", stamps.payload(f"next-{number}"))
            before = time.time_ns()
            os.kill(_worker_at(f"doomed-{number}", stamps), signal.SIGKILL)
            waits.append((_bounded(stamps, f"next-{number}", 1) - before) / 1e6)
        return {NEXT.name: statistics.median(waits)}


def all_of_ours_killed() -> Mapping[str, float]:
    return {
        **all_killed(SUPERVISOR),
        PYTHON.name: _seconds(sys.executable, "-c", "pass") * 1e3,
        OURSELVES.name: _seconds(sys.executable, "-m", "supervisor", "--version") * 1e3,
    }


def all_killed(peer: Peer) -> Mapping[str, float]:
    jobs = ("first", "second")
    with site(peer, Settings(workers=2, late=True, retries=RETRIES)) as place, place.client() as client:
        stamps = place.stamps()
        with place.workers() as processes:
            for job in jobs:
                client.enqueue("sleep", stamps.payload(job, seconds=FOR_EVER))
            for job in jobs:
                stamps.wait_for(job)
            dying = [one for process in processes for one in tree(process.pid)]
            kill(dying)
            until(lambda: not any(map(_lives, dying)), "the end of all processes")
        before = time.time_ns()
        with place.workers():
            return {AGAIN.name: (max(_bounded(stamps, job, 2) for job in jobs) - before) / 1e6}


def _bounded(stamps: Stamps, job: str, start: int) -> int:
    """When a job started for the first or second time, in ns."""
    try:
        until(lambda: len(stamps.times().get(job, ())) >= start, "", BOUND)
    except TimeoutError:
        raise Absent(f"not within {BOUND:g} s") from None
    return stamps.times()[job][start - 1]


def _worker_at(job: str, stamps: Stamps) -> int:
    return next(pid for id, _at, pid in stamps.lines() if id == job)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _seconds(*command: str) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
