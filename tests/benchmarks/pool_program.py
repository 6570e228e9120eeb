"""A program that submits no-op jobs to a pool of its own and prints the seconds until all are done.

python -m tests.benchmarks.pool_program executor|pebble JOBS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait

from tests.benchmarks import tasks

WORKERS = 2
TIMEOUT = 300.0
WARM = 200


def executor(jobs: int) -> float:
    """Measure ProcessPoolExecutor, which has no timeout that ends a job."""
    with ProcessPoolExecutor(WORKERS) as pool:
        return timed(jobs, lambda count: wait([pool.submit(tasks.noop, {"n": n}) for n in range(count)]))


def pebble(jobs: int) -> float:
    from pebble import ProcessPool

    def submit(count: int) -> None:
        wait([pool.schedule(tasks.noop, [{"n": n}], timeout=TIMEOUT) for n in range(count)])

    with ProcessPool(WORKERS) as pool:
        return timed(jobs, submit)


def timed(jobs: int, submit: Callable[[int], object]) -> float:
    """Return the seconds of `submit`, which is called with a number of jobs and returns when all are done."""
    submit(WARM)
    start = time.monotonic()
    submit(jobs)
    return time.monotonic() - start


if __name__ == "__main__":
    print({"executor": executor, "pebble": pebble}[sys.argv[1]](int(sys.argv[2])))
