"""Outcomes that the store refuses, whatever is tried, and how they end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from supervisor.events import JobsStale
from supervisor.jobs import Outcome
from supervisor.stores.base import RowRefused
from supervisor.stores.memory import MemoryStore
from tests.unit.virtual import Virtual


class WithoutRecords(MemoryStore):
    """Takes no outcome that says why; none at all of the jobs in `worst`."""

    worst: frozenset[int] = frozenset()

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        if any(outcome.failure is not None or outcome.lease.id in self.worst for outcome in outcomes):
            raise RowRefused("bad row")
        return super().settle(outcomes)


@pytest.mark.parametrize(("worst", "state"), [(False, "failed"), (True, "in_flight")])
def test_a_job_whose_failure_cannot_be_recorded_does_not_run_for_ever(worst: bool, state: str) -> None:
    store = WithoutRecords()
    here = Virtual(store=store)
    (id,) = here.enqueue("work")
    store.worst = frozenset({id} if worst else ())
    here.serve()
    here.child.run_next(kind="failed", error={"type": "Oops"})
    for _ in range(60):
        here.loop.advance(0.5)
        here.pool.beat(here.child)
        here.engine.tick("running")
    assert here.state(id) == state
    assert not here.child.permits
    assert len(here.engine.leases) == worst
    assert len([event for event in here.events if isinstance(event, JobsStale)]) == worst
    store.worst = frozenset()
    for _ in range(10):
        here.engine.tick("running")
    assert here.state(id) == "failed"
    assert len(here.engine.leases) == 0
