"""What comes due, or comes in, while enough is held already."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.engine.limits import Limits
from supervisor.stores.records import EnqueueRow
from tests.unit.virtual import Virtual

SECOND = {"backoff": {"base": 1.0, "jitter": "none"}}
OOPS = {"type": "Oops"}


def test_a_retry_that_comes_due_starts_before_the_fresh_jobs_that_are_sent_and_not_started() -> None:
    here = Virtual(handlers=("flaky", "work"), retry={"backoff": {"base": 0.005, "jitter": "none"}})
    here.enqueue("flaky", *["work"] * 500)
    here.serve()
    here.process.run_next(kind="failed", took=0.001, error=OOPS)
    here.process.run_next(took=0.001)
    here.process.start_next()
    assert len(here.process.permits) > 1
    here.loop.advance(0.006)
    assert len(here.process.jobs) > 1, "not taken back because the first has turned out to be long"
    here.process.finish(took=0.001)
    here.process.drain()
    assert here.process.start_next().handler == "flaky"


def test_fresh_jobs_do_not_wait_for_all_the_retries_that_are_held() -> None:
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


def test_workers_that_have_done_all_meanwhile_are_not_left_idle_by_a_look_for_what_overtakes() -> None:
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


def test_a_retry_held_off_by_the_limit_starts_when_the_one_before_it_ends_during_a_claim() -> None:
    here = Virtual(workers=2, retry={**SECOND, "max_in_flight": 1})
    here.enqueue(*["work"] * 6)
    here.serve()
    while running := [process for process in here.backend.forked if process.permits]:
        for process in running:
            process.run_next(kind="failed", took=0.3, error=OOPS)
    here.loop.advance(1.1)
    (busy,) = [process for process in here.backend.forked if process.permits]
    while len(here.engine.buffers):
        busy.run_next(took=0.3)
    busy.start_next()
    here.writer.unavailable = True
    here.notify()
    busy.finish(took=0.3)
    busy.drain()
    here.writer.unavailable = False
    here.writer.step()
    assert [process for process in here.backend.forked if process.permits]


@pytest.mark.parametrize("retry", [{"fetch_ratio": 1.0}, {"burst": 1000}])
def test_nothing_overtakes_what_is_heavy_as_it_is(retry: dict[str, Any]) -> None:
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
