"""What the watchdog owes to a job, it owes from the moment that it was handed out, however long the claim took."""

from __future__ import annotations

from supervisor.events import JobStarted
from tests.unit.fakes import FakeChild
from tests.unit.virtual import Virtual


def test_a_short_timeout_of_a_job_claimed_late_fires_in_time() -> None:
    here, child = running(timeout=0.1)
    here.loop.advance(0.099)
    assert child.killed == []
    here.loop.advance(0.002)
    assert child.killed == [True]


def test_a_job_claimed_late_is_said_to_have_started_soon() -> None:
    here, child = running()
    here.loop.advance(0.021)
    assert [event.pid for event in here.events if isinstance(event, JobStarted)] == [child.pid]


def running(timeout: float | None = None) -> tuple[Virtual, FakeChild]:
    """A supervisor that has idled, and its child with a job that only a slow claim has brought."""
    here = Virtual()
    here.serve()
    here.loop.advance(0.9)
    here.writer.eager = False
    here.enqueue("work", timeout=timeout)
    here.ring()
    here.loop.advance(0.3)
    here.pool.beat(here.child)
    here.writer.step()
    here.child.start_next()
    return here, here.child
