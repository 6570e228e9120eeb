"""Idle workers, all processes together: memory (PSS, so that what they share counts once) and CPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from tests.benchmarks.contender import site, tree
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.peers.catalogue import PEERS, SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure

NAME = "footprint"
TITLE = "2 idle worker processes and all that belongs to them; wanted: 60 MB and 0.5 % at most"
SECONDS = 10.0
MEMORY = Measure("memory", "MB of PSS", "less")
CPU = Measure("CPU", "% of a core", "less")


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [MEMORY, CPU])
    table.note("without Redis and PostgreSQL, where they are needed")
    seconds = 1.0 if run.quick else SECONDS
    contenders = {peer.title: partial(idle, peer, seconds) for peer in (SUPERVISOR, *run.wanted(PEERS))}
    run.compare(table, contenders)


def idle(peer: Peer, seconds: float) -> Mapping[str, float]:
    with site(peer) as place, place.client() as client, place.workers() as workers:
        stamps = place.stamps()
        client.enqueue("stamp", stamps.payload("warm"))
        stamps.wait_for("warm")
        time.sleep(min(2.0, seconds))
        processes = [process for worker in workers for process in tree(worker.pid)]
        began, before = time.monotonic(), cpu(processes)
        time.sleep(seconds)
        used = (cpu(processes) - before) / (time.monotonic() - began)
        return {MEMORY.name: sum(pss(process.pid) for process in processes) / 1e6, CPU.name: used * 100}


def cpu(processes: Sequence[psutil.Process]) -> float:
    """Seconds that all threads have run. The ticks of `psutil.cpu_times` are too coarse for what is idle."""
    return sum(_ran(thread) for process in processes for thread in Path(f"/proc/{process.pid}/task").glob("*")) / 1e9


def _ran(thread: Path) -> int:
    with contextlib.suppress(OSError):
        return int((thread / "schedstat").read_text().split()[0])
    return 0


def pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
