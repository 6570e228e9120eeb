"""The time from just before an enqueue to the start of the handler: when idle, and under half of the highest load."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial

from tests.benchmarks.client import Client
from tests.benchmarks.contender import deployed
from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import PEERS, SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.stamps import Stamps, percentile
from tests.benchmarks.table import Measure

NAME = "latency"
TITLE = "from just before the enqueue to the handler's start"
JOBS = 200
MAX_PAUSE = 0.1  # seconds; random, so that it has no fixed phase against polling
SECONDS = 5.0
MAX_FLAT_OUT_JOBS = 2_000
BULK = 5_000
BATCHES_PER_SECOND = 200
IDLE = [Measure("idle p50", "ms", "less"), Measure("idle p99", "ms", "less")]
LOAD = Measure("half load", "jobs/s", "more")
LOADED = [LOAD, Measure("half load p50", "ms", "less"), Measure("half load p99", "ms", "less")]
NORMAL = f"{SUPERVISOR.title}, synchronous=NORMAL"
BARE = "bare chain (bare_chain.py)"
BARE_NORMAL = f"{BARE}, synchronous=NORMAL"
BULKY = f"{SUPERVISOR.title}, {BULK:,} jobs/s more in bulk"


def run(run: Run) -> None:
    peers = run.wanted(PEERS)
    jobs = 20 if run.quick else JOBS
    table = run.table(NAME, f"{TITLE}, idle; wanted: 2 / 5 ms at most, and with NORMAL less than Huey on Redis", IDLE)
    normal = Settings(synchronous="normal")
    contenders = {
        SUPERVISOR.title: partial(idle, SUPERVISOR, jobs),
        BARE: partial(bare, jobs, "full"),
        NORMAL: partial(idle, SUPERVISOR, jobs, normal),
        BARE_NORMAL: partial(bare, jobs, "normal"),
    }
    table.note("bare chain: two commits, a datagram and a pipe between three processes, and nothing else")
    run.compare(table, contenders | {peer.title: partial(idle, peer, jobs) for peer in peers})

    table = run.table(NAME, f"{TITLE}, under half load; wanted: 5 / 25 ms at most", LOADED)
    table.note(
        "half load: one program enqueues one by one, at half of the rate of starts when it enqueues as fast as it can"
    )
    seconds = 1.0 if run.quick else SECONDS
    contenders = {peer.title: partial(loaded, peer, seconds) for peer in (SUPERVISOR, *peers)}
    contenders[BULKY] = partial(loaded, SUPERVISOR, seconds, BULK)
    run.compare(table, contenders)


def idle(peer: Peer, jobs: int, settings: Settings | None = None) -> Mapping[str, float]:
    with deployed(peer, settings) as contender, contender.client() as client, contender.workers():
        stamps = contender.stamps()
        _warm(client, stamps)
        waits, chance = [], random.Random(jobs)
        for number in range(jobs):
            before = client.enqueue("stamp", stamps.payload(number))
            stamps.wait(number + 2)
            waits.append((stamps.lines()[-1][1] - before) / 1e6)
            time.sleep(chance.uniform(0.0, MAX_PAUSE))
        return _percentiles(IDLE, waits)


def bare(jobs: int, synchronous: str) -> Mapping[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.bare_chain", str(jobs), str(MAX_PAUSE), synchronous]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return _percentiles(IDLE, json.loads(done.stdout))


def loaded(peer: Peer, seconds: float, bulk: float = 0.0) -> Mapping[str, float]:
    """Measure every job of a steady stream. A second program enqueues `bulk` no-op jobs per second as well."""
    with (
        deployed(peer) as contender,
        contender.client() as client,
        contender.workers(),
        contextlib.ExitStack() as stack,
    ):
        _warm(client, contender.stamps("warm"))
        time.sleep(min(seconds, 1.0))  # until the second worker has started too
        load = (
            _flat_out(
                client, contender.stamps("flat out"), int(min(peer.drains, MAX_FLAT_OUT_JOBS) * min(seconds, 1.0))
            )
            / 2
        )
        if bulk:
            loader = stack.enter_context(contender.client())
            loader.start_load(bulk, BATCHES_PER_SECOND, seconds)
        stamps, jobs = contender.stamps("stream"), max(2, int(load * seconds))
        before = client.enqueue_steadily("stamp", [stamps.payload(number) for number in range(jobs)], load)
        if bulk:
            _check_load(loader.finish_load(), bulk)
        reached = (jobs - 1) / (before[-1] - before[0]) * 1e9
        stamps.wait(jobs)
        starts = stamps.times()
        waits = [(starts[str(number)][0] - at) / 1e6 for number, at in enumerate(before)]
        return {LOAD.name: reached, **_percentiles(LOADED[1:], waits)}


def _flat_out(client: Client, stamps: Stamps, jobs: int) -> float:
    """Return how many jobs start per second when they are enqueued one by one as fast as possible."""
    began = time.time_ns()
    client.enqueue_each("stamp", [stamps.payload(number) for number in range(jobs)])
    stamps.wait(jobs)
    return jobs / (max(at for _id, at, _pid in stamps.lines()) - began) * 1e9


def _check_load(reached: float, wanted: float) -> None:
    if reached < 0.9 * wanted:
        raise RuntimeError(f"only {reached:,.0f} jobs/s more could be enqueued in bulk, not {wanted:,.0f}")


def _warm(client: Client, stamps: Stamps) -> None:
    client.enqueue("stamp", stamps.payload("warm"))
    stamps.wait_for("warm")


def _percentiles(measures: list[Measure], waits: list[float]) -> Mapping[str, float]:
    return {measures[0].name: percentile(waits, 0.5), measures[1].name: percentile(waits, 0.99)}
