"""What comes due, or comes in, while enough is held already."""

from __future__ import annotations

from tests.unit.virtual import Virtual

SECOND = {"backoff": {"base": 1.0, "jitter": "none"}}
OOPS = {"type": "Oops"}


def test_a_retry_that_comes_due_starts_before_the_fresh_jobs_that_are_sent_and_not_started() -> None:
    here = Virtual(handlers=("flaky", "work"), retry={"backoff": {"base": 0.005, "jitter": "none"}})
    here.enqueue("flaky", *["work"] * 500)
    here.serve()
    here.child.run_next(kind="failed", took=0.001, error=OOPS)
    here.child.run_next(took=0.001)
    here.child.start_next()
    assert len(here.child.permits) > 1
    here.loop.advance(0.006)
    assert len(here.child.jobs) > 1, "not taken back because the first has turned out to be long"
    here.child.finish(took=0.001)
    here.child.drain()
    assert here.child.start_next().handler == "flaky"


def test_fresh_jobs_do_not_wait_for_all_the_retries_that_are_held() -> None:
    here = Virtual(handlers=("flaky", "work"), retry={**SECOND, "burst": 3})
    here.enqueue(*["flaky"] * 200)
    here.serve()
    for _ in range(200):
        here.child.run_next(kind="failed", took=0.001, error=OOPS)
    here.loop.advance(1.0)
    here.child.start_next()
    here.loop.advance(0.010)
    assert len(here.engine.fetcher) > 50
    here.enqueue("work")
    here.ring()
    here.child.finish(took=0.001)
    here.child.drain()
    started = []
    while "work" not in started:
        started.append(here.child.start_next().handler)
        here.child.finish(took=0.001)
        here.child.drain()
    assert started == ["flaky"] * 3 + ["work"]
