"""Idle supervisor, nursery and two workers: memory (PSS) and CPU."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from tests.benchmarks.field import field, until
from tests.benchmarks.latency import CONFIG, PLUGIN

SECONDS = 10.0


def run() -> None:
    with field(CONFIG, PLUGIN) as here:
        stamps = here.folder / "stamps"
        with here.client() as client, here.running() as process:
            client.enqueue("stamp", {"to": str(stamps)})
            until(stamps.exists, "the first job")
            time.sleep(1.0)
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            before = sum(_cpu(one) for one in tree)
            time.sleep(SECONDS)
            used = sum(_cpu(one) for one in tree) - before
            for one in tree:
                print(f"  {one.pid} {pss(one.pid) / 1e6:6.1f} MB  {' '.join(one.cmdline())[:100]}")
            print(
                f"idle: {sum(pss(one.pid) for one in tree) / 1e6:.1f} MB of PSS in {len(tree)} processes, {used / SECONDS:.2%} of a core"
            )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
