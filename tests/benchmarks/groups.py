"""How soon ten jobs of one tenant start behind many of another, with and without groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from supervisor import Client
from supervisor.config.loading import load
from tests.benchmarks.contender import deployed
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.table import Measure

NAME = "groups"
TITLE = "ten jobs of one tenant that are enqueued while 100,000 of another wait for the same 2 workers"
JOBS = 100_000
FEW = 10
SECONDS = 0.001

LAST_START = Measure("until the ten have started", "ms", "less")
ENQUEUE = Measure("enqueue of one job", "us", "less")


def run(run: Run) -> None:
    jobs = JOBS // 50 if run.quick else JOBS
    table = run.table(NAME, TITLE.replace(f"{JOBS:,}", f"{jobs:,}"), [LAST_START, ENQUEUE])
    table.note("all jobs take 1 ms; the enqueue is that of the large tenant, in one call")
    contenders = {f"{SUPERVISOR.title}, groups": True, f"{SUPERVISOR.title}, no groups": False}
    run.compare(table, {name: partial(measured, jobs, grouped) for name, grouped in contenders.items()})


def measured(count: int, grouped: bool) -> Mapping[str, float]:
    with deployed(SUPERVISOR) as contender:
        large, small = contender.stamps("large"), contender.stamps("small")
        ours.write(contender.deployment)

        def job(tenant: str, payload: Mapping[str, Any]) -> dict[str, Any]:
            return {"handler": "sleep", "payload": payload} | ({"group": f"tenant:{tenant}"} if grouped else {})

        with Client(load(ours.config(contender.deployment)), create=True) as client:
            began = time.monotonic()
            client.enqueue_many([job("large", large.payload(id, seconds=SECONDS)) for id in range(count)])
            took = time.monotonic() - began
            with contender.workers():
                large.wait(count // 100)
                enqueued = time.time_ns()
                client.enqueue_many([job("small", small.payload(id, seconds=SECONDS)) for id in range(FEW)])
                small.wait(FEW)
                last = max(starts[0] for starts in small.times().values())
    return {LAST_START.name: (last - enqueued) / 1e6, ENQUEUE.name: took / count * 1e6}
