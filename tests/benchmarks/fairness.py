"""Retries and fresh jobs that wait for the same workers: whether many of one kind delay the other."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import CELERY, DRAMATIQ, SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.stamps import Stamps, percentile
from tests.benchmarks.table import Measure

NAME = "fairness"
TITLE = "retries and fresh jobs that wait for the same 2 workers"
RETRIES, RETRIES_OF_PEERS, QUICK_RETRIES = 10_000, 2_000, 200
FAILURES_PER_SECOND = {SUPERVISOR: 500, CELERY: 60, DRAMATIQ: 200}  # a lower bound on a busy machine
RATE = 200.0
STREAM, QUICK_STREAM = 400, 10
BURST, QUICK_BURST = 500, 10
FRESH, QUICK_FRESH = 10_000, 1_000
DELAY, QUICK_DELAY = (
    1.0,
    0.1,
)  # seconds; the delay is up to twice as long, and random, so that it has no fixed phase against polling
SECONDS = 0.001
LONE_SECONDS = 0.005
START_SECONDS = 5.0
RETRYING = Settings(retries=1)

PEERS = (CELERY, DRAMATIQ)

P50 = Measure("fresh of the stream, p50", "ms", "less")
P99 = Measure("fresh of the stream, p99", "ms", "less")
SHARE = Measure("share of fresh", "%", "more")
BEFORE = Measure("fresh before the retry", "jobs", "less")
OVERDUE = Measure("retry after its due time", "ms", "less")


def run(run: Run) -> None:
    storms(run)
    lone_retries(run)


def storms(run: Run) -> None:
    stream, burst = (QUICK_STREAM, QUICK_BURST) if run.quick else (STREAM, BURST)
    title = (
        f"a burst of retries due at once, and a stream of {RATE:g} fresh jobs a second; wanted: fresh keeps its share"
    )
    table = run.table(f"{NAME}, storm", title, [P50, P99, SHARE])
    contenders = {}
    for peer in (SUPERVISOR, *run.wanted(PEERS)):
        retries = QUICK_RETRIES if run.quick else RETRIES if peer is SUPERVISOR else RETRIES_OF_PEERS
        contenders[peer.title] = partial(storm, peer, retries, stream, burst)
        table.note(f"{peer.title}: {retries:,} retries")
    table.note(
        f"all jobs take 1 ms; the stream begins as the retries are due; from enqueue to start, {stream:,} fresh jobs"
    )
    table.note(f"then {burst:,} fresh jobs come at once; share: of the starts while both retries and fresh jobs wait")
    table.note("supervisor leaves a fifth to retries while fresh jobs wait (retry.fetch_ratio)")
    run.compare(table, contenders)


def storm(peer: Peer, retries: int, stream: int, burst: int) -> Mapping[str, float]:
    with deployed(peer, RETRYING) as contender, contender.client() as client, contender.workers():
        old, fresh = contender.stamps("retries"), contender.stamps("fresh")
        due = time.time() + START_SECONDS + retries / FAILURES_PER_SECOND[peer]
        client.enqueue_many("flaky", [old.payload(id, due=due, seconds=SECONDS) for id in range(retries)])
        time.sleep(max(0.0, due - 0.5 - time.time()))
        if (failed := len(old.lines())) != retries:
            raise RuntimeError(
                f"{failed} of {retries} jobs have failed before their retries are due: {contender.log_end()}"
            )
        time.sleep(max(0.0, due - time.time()))
        jobs = [fresh.payload(id, seconds=SECONDS) for id in range(stream + burst)]
        enqueued = client.enqueue_steadily("sleep", jobs[:stream], RATE)
        client.enqueue_many("sleep", jobs[stream:])
        both_since = time.time_ns()
        fresh.wait(stream + burst)
        starts = fresh.times()
        latencies = [(starts[str(id)][0] - at) / 1e6 for id, at in enumerate(enqueued)]
        share = fresh_share(old, fresh, retries, both_since)
        return {P50.name: percentile(latencies, 0.5), P99.name: percentile(latencies, 0.99), SHARE.name: share}


def fresh_share(old: Stamps, fresh: Stamps, retries: int, since: int) -> float:
    """Return the percentage of fresh jobs among the starts from `since` until the last fresh job or the last retry has started."""
    again = sorted(starts[1] for starts in old.times().values() if len(starts) > 1)
    first = sorted(at for _id, at, _pid in fresh.lines())
    until = min(first[-1], again[-1]) if len(again) == retries else first[-1]
    counts = [sum(since < at <= until for at in starts) for starts in (first, again)]
    if not sum(counts):
        raise RuntimeError("no retry was left when the fresh jobs came: they never waited together")
    return 100 * counts[0] / sum(counts)


def lone_retries(run: Run) -> None:
    fresh, delay = (QUICK_FRESH, QUICK_DELAY) if run.quick else (FRESH, DELAY)
    title = f"one retry that comes due behind {fresh:,} fresh jobs; wanted: it starts next"
    table = run.table(f"{NAME}, lone retry", title, [BEFORE, OVERDUE])
    table.note(
        f"all jobs take 5 ms; the retry is due {delay:g} to {2 * delay:g} s after its first attempt, the first job of all"
    )
    table.note("fresh before the retry: those that start after it is due")
    peers = (SUPERVISOR, *run.wanted(PEERS))
    run.compare(table, {peer.title: partial(lone_retry, peer, fresh, delay) for peer in peers})


def lone_retry(peer: Peer, count: int, delay: float) -> Mapping[str, float]:
    with deployed(peer, RETRYING) as contender, contender.client() as client:
        lone, fresh = contender.stamps("lone"), contender.stamps("fresh")
        delay = random.uniform(delay, 2 * delay)
        client.enqueue("flaky", lone.payload("lone", delay=delay, seconds=LONE_SECONDS))
        client.enqueue_many("sleep", [fresh.payload(id, seconds=LONE_SECONDS) for id in range(count)])
        with contender.workers():
            lone.wait(2)
        first, again = lone.times()["lone"]
        due = first + delay * 1e9
        starts = [at for _id, at, _pid in fresh.lines()]
        if sum(at <= due for at in starts) == count:
            raise RuntimeError(f"none of {count} fresh jobs was left when the retry came due")
        return {BEFORE.name: sum(due < at < again for at in starts), OVERDUE.name: (again - due) / 1e6}
