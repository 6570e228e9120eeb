"""No-op jobs through the memory store, submitted by the program that also runs the supervisor, beside process pools."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import ROOT
from tests.benchmarks.distributions import require
from tests.benchmarks.run import Run
from tests.benchmarks.table import OURS, Measure

NAME = "in_memory"
TITLE = "no-op jobs submitted one by one and done by 2 worker processes of the same program"
JOBS = 100_000
RATE = Measure("submit to outcome", "jobs/s", "more")
IN_BULK = f"{OURS}, submitted in bulk"


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE])
    jobs = JOBS // 50 if run.quick else JOBS
    contenders = {
        OURS: partial(rate, "our_program", "one_by_one", jobs),
        IN_BULK: partial(rate, "our_program", "in_bulk", jobs),
        "ProcessPoolExecutor.submit": partial(rate, "pool_program", "executor", jobs),
    }
    if run.wants("pebble"):
        contenders["pebble.ProcessPool.schedule"] = partial(pebble, jobs)
    table.note(
        f"{jobs:,} jobs; {OURS}: memory store, Client and Supervisor in one process, each job with timeout, heartbeat and retry policy"
    )
    table.note("pebble: with a timeout; ProcessPoolExecutor: without; neither retries")
    run.compare(table, contenders)


def pebble(jobs: int) -> Mapping[str, float]:
    require(["Pebble"])
    return rate("pool_program", "pebble", jobs)


def rate(program: str, way: str, jobs: int) -> Mapping[str, float]:
    command = [sys.executable, "-m", f"tests.benchmarks.{program}", way, str(jobs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return {RATE.name: jobs / float(done.stdout)}
