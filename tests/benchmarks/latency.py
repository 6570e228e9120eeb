"""From just before a program enqueues a job to its handler's start: idle, and under half of the load it can take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import PEERS, SUPERVISOR
from tests.benchmarks.places import Client, Stamps, percentile, site
from tests.benchmarks.runs import Run
from tests.benchmarks.table import Measure

NAME = "latency"
TITLE = "from just before the enqueue to the handler's start"
JOBS = 300
PAUSE = 0.005
PROBES_PER_SECOND = 50
BATCHES_PER_SECOND = 200
SECONDS = 6.0
IDLE = [Measure("idle p50", "ms", "less"), Measure("idle p99", "ms", "less")]
LOADED = [Measure("half load p50", "ms", "less"), Measure("half load p99", "ms", "less")]
NORMAL = f"{SUPERVISOR.title}, synchronous=NORMAL"


def run(run: Run) -> None:
    peers = run.wanted(PEERS)
    jobs = 20 if run.quick else JOBS
    table = run.table(NAME, f"{TITLE}, idle", IDLE)
    normal = Settings(synchronous="normal")
    contenders = {SUPERVISOR.title: partial(idle, SUPERVISOR, jobs), NORMAL: partial(idle, SUPERVISOR, jobs, normal)}
    run.compare(table, contenders | {peer.title: partial(idle, peer, jobs) for peer in peers})

    table = run.table(NAME, f"{TITLE}, under half load", LOADED)
    table.note(
        f"no-op jobs come in {BATCHES_PER_SECOND} batches a second, half of what it drains; measured: {PROBES_PER_SECOND} others a second"
    )
    seconds = 1.0 if run.quick else SECONDS
    loads = {peer: run.rates.get(peer.name, float(peer.drains)) / 2 for peer in (SUPERVISOR, *peers)}
    for peer, load in loads.items():
        table.note(f"{peer.title}: {load:,.0f} jobs/s")
    run.compare(table, {peer.title: partial(loaded, peer, load, seconds) for peer, load in loads.items()})


def idle(peer: Peer, jobs: int, settings: Settings | None = None) -> Mapping[str, float]:
    with site(peer, settings) as place, place.client() as client, place.workers():
        stamps = place.stamps()
        _warm(client, stamps)
        waits = []
        for number in range(jobs):
            before = client.enqueue("stamp", stamps.payload(number))
            waits.append((stamps.wait_for(number) - before) / 1e6)
            time.sleep(PAUSE)
        return _percentiles(IDLE, waits)


def loaded(peer: Peer, load: float, seconds: float) -> Mapping[str, float]:
    """One program brings the load, another the jobs that are measured; the first second doesn't count."""
    with site(peer) as place, place.client() as loader, place.client() as prober, place.workers():
        stamps = place.stamps()
        _warm(prober, stamps)
        loader.load_begin(load, BATCHES_PER_SECOND, seconds + 1.0)
        time.sleep(1.0)
        probes = int(PROBES_PER_SECOND * seconds)
        before = prober.steadily("stamp", [stamps.payload(number) for number in range(probes)], PROBES_PER_SECOND)
        held = loader.load_end()
        if held < 0.9 * load:
            raise RuntimeError(
                f"the load was {held:,.0f} jobs/s instead of {load:,.0f}: its enqueue is not fast enough"
            )
        stamps.wait(probes + 1)
        starts = stamps.times()
        return _percentiles(LOADED, [(starts[str(number)][0] - at) / 1e6 for number, at in enumerate(before)])


def _warm(client: Client, stamps: Stamps) -> None:
    client.enqueue("stamp", stamps.payload("warm"))
    stamps.wait_for("warm")


def _percentiles(measures: list[Measure], waits: list[float]) -> Mapping[str, float]:
    return {measures[0].name: percentile(waits, 0.5), measures[1].name: percentile(waits, 0.99)}
