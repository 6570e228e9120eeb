"""Many short jobs and a few long ones in one queue, compared with the ideal schedule."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.benchmarks import tasks
from tests.benchmarks.contender import deployed
from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import CELERY, SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.stamps import Stamps
from tests.benchmarks.table import Measure

NAME = "mixed"
TITLE = "95 % of the jobs take 1 ms, 5 % take 500 ms; wanted: within 10 % of the ideal"
JOBS, QUICK = 400, 40
SHORT, LONG, ONE_LONG_IN = 0.001, 0.5, 20
WORKERS = 2
SEED = 4
FINISH = Measure("first start to last end", "s", "less")
PAST = Measure("past the ideal", "%", "less")


def run(run: Run) -> None:
    seconds = durations(QUICK if run.quick else JOBS)
    table = run.table(NAME, f"{len(seconds)} jobs by {WORKERS} worker processes: {TITLE}", [FINISH, PAST])
    table.note(f"ideal schedule, all run times known before: {best(seconds):.2f} s")
    table.note(f"first come, first served, without any cost: {schedule(seconds):.2f} s")
    contenders = {SUPERVISOR.title: partial(queued, SUPERVISOR, seconds, Settings())}
    if run.wants(CELERY.name):
        contenders[CELERY.title] = partial(queued, CELERY, seconds, Settings())
        contenders[f"{CELERY.title}, prefetch 1"] = partial(queued, CELERY, seconds, Settings(prefetch=1))
    contenders["ProcessPoolExecutor"] = partial(pooled, seconds)
    run.compare(table, contenders)


def durations(jobs: int) -> list[float]:
    """Return the same durations in every run, since their order decides how much a schedule loses at its end."""
    seconds = [LONG] * (jobs // ONE_LONG_IN) + [SHORT] * (jobs - jobs // ONE_LONG_IN)
    random.Random(SEED).shuffle(seconds)
    return seconds


def schedule(seconds: Iterable[float]) -> float:
    """Return when all jobs have ended if each goes to the first free worker."""
    free = [0.0] * WORKERS
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def best(seconds: Iterable[float]) -> float:
    """Return the end of the schedule with the longest jobs first: it is at most a short job above all work divided by the workers."""
    return schedule(sorted(seconds, reverse=True))


def queued(peer: Peer, seconds: Sequence[float], settings: Settings) -> Mapping[str, float]:
    with deployed(peer, settings) as contender, contender.client() as client:
        stamps = contender.stamps()
        client.enqueue_many("sleep", [stamps.payload(id, seconds=each) for id, each in enumerate(seconds)])
        with contender.workers():
            stamps.wait(len(seconds))
        return figures(stamps, seconds)


def pooled(seconds: Sequence[float]) -> Mapping[str, float]:
    with deployed(SUPERVISOR) as contender, ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        stamps = contender.stamps()
        for started in [pool.submit(time.sleep, 0.5) for _ in range(WORKERS)]:
            started.result()
        running = [pool.submit(tasks.sleep, stamps.payload(id, seconds=each)) for id, each in enumerate(seconds)]
        for each in running:
            each.result()
        return figures(stamps, seconds)


def figures(stamps: Stamps, seconds: Sequence[float]) -> Mapping[str, float]:
    starts = [(at / 1e9, at / 1e9 + seconds[int(id)]) for id, at, _pid in stamps.lines()]
    took = max(end for _start, end in starts) - min(start for start, _end in starts)
    return {FINISH.name: took, PAST.name: (took / best(seconds) - 1) * 100}
