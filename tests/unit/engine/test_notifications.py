"""Other supervisors are notified of jobs that come due and are left to them."""

from __future__ import annotations

import asyncio
import select

import pytest

from supervisor.stores.extras import Extras
from supervisor.stores.memory.store import MemoryStore
from tests.unit.virtual import Answer, Virtual

RETRY_AFTER_A_SECOND = {"backoff": {"base": 1.0, "jitter": "none"}}
OOPS = {"type": "Oops"}


class Neighbour:
    """Another supervisor on the same store."""

    def __init__(self, here: Virtual) -> None:
        self._store = MemoryStore(state=here.store.state)  # type: ignore[attr-defined]
        self._store.join("them", "there", 2)
        self.notified()

    def notified(self) -> bool:
        """Return whether it has been notified since the last call."""
        fd = self._store.notification_fd()
        assert fd is not None
        readable = bool(select.select([fd], [], [], 0)[0])
        if readable:
            self._store.clear_notifications()
        return readable


def test_others_are_notified_of_a_retry_that_comes_due_while_all_workers_are_busy() -> None:
    here = Virtual(retry=RETRY_AFTER_A_SECOND)
    here.serve()
    here.enqueue("work", "work")
    neighbour = Neighbour(here)
    here.notify()
    here.process.run_next(kind="failed", took=10.0, error=OOPS)
    here.process.start_next()
    assert not neighbour.notified()
    here.loop.advance(1.0)
    assert neighbour.notified()


def test_others_are_not_notified_of_jobs_that_are_claimed_as_soon_as_they_are_due() -> None:
    here = Virtual(retry=RETRY_AFTER_A_SECOND)
    here.serve()
    here.enqueue("work")
    neighbour = Neighbour(here)
    here.notify()
    here.process.run_next(kind="failed", took=10.0, error=OOPS)
    here.loop.advance(1.0)
    assert here.process.permits
    assert not neighbour.notified()


def test_others_are_not_notified_again_while_jobs_of_that_tier_are_left() -> None:
    here = Virtual(retry=RETRY_AFTER_A_SECOND)
    here.serve()
    here.enqueue("work")
    here.enqueue("work", delay=10.0)
    here.enqueue("work", delay=11.0)
    here.notify()
    here.process.start_next()
    neighbour = Neighbour(here)
    here.loop.advance(10.0)
    assert neighbour.notified()
    here.loop.advance(1.0)
    assert not neighbour.notified()


def test_others_are_notified_of_due_jobs_of_a_queue_that_is_not_served_here() -> None:
    here = Virtual(served=("default",))
    here.enqueue("work", queue="theirs", delay=1.0)
    here.serve()
    neighbour = Neighbour(here)
    here.loop.advance(1.0)
    assert neighbour.notified()


def test_others_are_notified_of_jobs_that_waited_for_one_that_was_recovered() -> None:
    """It fails for good when it is lost for the third time, so that the job with the same key goes on."""
    here = Virtual(served=("default",))
    key = Extras(key="order", on_failure="pass")
    (id,) = here.enqueue("work", max_retries=0, extras=key)
    (waiting,) = here.enqueue("work", queue="theirs", extras=key)
    here.lose(id, times=2)
    neighbour = Neighbour(here)
    here.lose(id)
    assert (here.state(id), here.state(waiting)) == ("failed", "ready")
    assert neighbour.notified()


def test_others_are_notified_of_what_is_scheduled_once_this_supervisor_claims_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Virtual(retry=RETRY_AFTER_A_SECOND)
    here.serve()
    here.enqueue("work")
    here.notify()
    here.process.start_next()
    neighbour = Neighbour(here)
    monkeypatch.setattr(here.engine, "_until_change", lambda *_, timeout: Answer())
    draining = here.engine.drain(60.0, asyncio.Event())
    draining.send(None)  # up to the wait for the worker
    assert neighbour.notified()
    here.process.finish(kind="failed", took=10.0, error=OOPS)
    here.process.drain()
    assert neighbour.notified()
    draining.close()
