"""Jobs that come due, or are enqueued, while enough are held already."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.engine.limits import Limits
from supervisor.stores.records import EnqueueRow
from tests.unit.virtual import Virtual

SECOND = {"backoff": {"base": 1.0, "jitter": "none"}}
OOPS = {"type": "Oops"}


def test_a_retry_that_comes_due_starts_before_fresh_jobs_that_are_sent_and_not_started() -> None:
    here = Virtual(handlers=("flaky", "work"), retry={"backoff": {"base": 0.005, "jitter": "none"}})
    here.enqueue("flaky", *["work"] * 500)
    here.serve()
    here.process.run_next(kind="failed", took=0.001, error=OOPS)
    here.process.run_next(took=0.001)
    here.process.start_next()
    assert len(here.process.permits) > 1
    here.loop.advance(0.006)
    assert len(here.process.jobs) > 1, "the first has not turned out to be long"
    here.process.finish(took=0.001)
    here.process.drain()
    assert here.process.start_next().handler == "flaky"


def test_a_fresh_job_does_not_wait_for_all_buffered_retries() -> None:
    here = Virtual(handlers=("flaky", "work"), retry={**SECOND, "burst": 3})
    here.enqueue(*["flaky"] * 200)
    here.serve()
    for _ in range(200):
        here.process.run_next(kind="failed", took=0.001, error=OOPS)
    here.loop.advance(1.0)
    here.process.start_next()
    here.loop.advance(0.010)
    assert len(here.engine.buffers) > 50
    here.enqueue("work")
    here.notify()
    here.process.finish(took=0.001)
    here.process.drain()
    started = []
    while "work" not in started:
        started.append(here.process.start_next().handler)
        here.process.finish(took=0.001)
        here.process.drain()
    assert started == ["flaky"] * 3 + ["work"]


def test_workers_that_end_all_jobs_during_a_claim_of_overtaking_jobs_are_not_left_idle() -> None:
    here = Virtual()
    here.enqueue(*["work"] * 3)
    here.serve()
    for _ in range(3):
        here.process.run_next(took=0.001)
    here.enqueue(*["work"] * 300)
    here.enqueue("work", delay=0.010)
    here.notify()
    assert 80 < len(here.engine.leases) < 120
    here.writer.unavailable = True
    here.loop.advance(0.011)
    while here.process.permits:
        here.process.run_next(took=0.001)
    here.writer.unavailable = False
    here.writer.step()
    assert here.process.permits


@pytest.mark.parametrize("retry", [{"fetch_ratio": 1.0}, {"burst": 1000}])
def test_no_job_is_claimed_to_overtake_others_while_payloads_are_large(retry: dict[str, Any]) -> None:
    here = Virtual(handlers=("flaky", "work"), engine_limits=Limits(held_bytes=50_000), retry={**SECOND, **retry})
    here.store.enqueue([EnqueueRow("flaky", f'"{"x" * 1000}"')] * 300)
    here.serve()
    for _ in range(300):
        here.process.run_next(kind="failed", took=0.0, error=OOPS)
        here.loop.advance(0.002)
    here.enqueue(*["work"] * 2500)
    here.notify()
    here.process.start_next()
    heaviest = 0
    for _ in range(100):
        here.loop.advance(0.02)
        heaviest = max(heaviest, here.engine.leases.bytes)
    assert 40_000 < heaviest < 60_000
