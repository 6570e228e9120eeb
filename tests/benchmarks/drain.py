"""No-op jobs waiting in SQLite, drained by two workers with `synchronous=FULL`; beside the bare hot path in the same run."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

from supervisor import NewJob
from tests.benchmarks.field import field

JOBS = 100_000
ROUNDS = 3
CONFIG = "store: sqlite:///jobs.db\nworkers: {count: 2}\nlog: {level: warning}\n"
PLUGIN = "from supervisor import handler\n\n@handler\ndef noop(job):\n    return None\n"


def ours() -> float:
    """Jobs per second from the first start to the last settle."""
    with field(CONFIG, PLUGIN) as here:
        with here.client() as client:
            client.enqueue_many([NewJob("noop", {"n": n}) for n in range(JOBS)])
        done = subprocess.run(here.command("run", "--drain"), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        ((first, last, succeeded),) = here.ask(
            "select min(started_at), max(finished_at), count(*) from jobs where finished_at is not null"
        )
        if succeeded != JOBS:
            raise RuntimeError(f"{succeeded} of {JOBS} jobs ended: {done.stderr}")
        return JOBS / (last - first) * 1e6


def yardstick() -> float:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.yardstick", str(JOBS)], capture_output=True, text=True, check=True
    )
    found = re.match(r"([\d,]+) jobs/s", done.stdout)
    if found is None:
        raise RuntimeError(done.stdout)
    return float(found[1].replace(",", ""))


def run() -> None:
    pairs = [(ours(), yardstick()) for _ in range(ROUNDS)]
    ratios = [mine / bare for mine, bare in pairs]
    print(f"drain {JOBS:,} no-op jobs, median of {ROUNDS}:")
    print(f"  supervisor {statistics.median(mine for mine, _ in pairs):,.0f} jobs/s")
    print(f"  bare hot path {statistics.median(bare for _, bare in pairs):,.0f} jobs/s")
    print(f"  ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
