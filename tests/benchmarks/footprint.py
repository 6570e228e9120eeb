"""The memory and the CPU time of idle workers with all their processes; memory is PSS, where shared pages count once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.peers.catalogue import PEERS, SUPERVISOR
from tests.benchmarks.processes import cpu_seconds, pss, tree
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
    with deployed(peer) as contender, contender.client() as client, contender.workers() as workers:
        stamps = contender.stamps()
        client.enqueue("stamp", stamps.payload("warm"))
        stamps.wait_for("warm")
        time.sleep(min(2.0, seconds))
        processes = [process for worker in workers for process in tree(worker.pid)]
        began, before = time.monotonic(), cpu_seconds(processes)
        time.sleep(seconds)
        used = (cpu_seconds(processes) - before) / (time.monotonic() - began)
        return {MEMORY.name: sum(pss(process.pid) for process in processes) / 1e6, CPU.name: used * 100}
