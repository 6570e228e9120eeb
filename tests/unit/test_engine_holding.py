"""How much is claimed ahead: nothing behind long jobs only to give it back again, and no more than the parent can hold."""

from __future__ import annotations

import pytest

from supervisor.engine import committer, fetcher
from supervisor.events import JobsReleased, JobsSettled
from supervisor.stores.base import EnqueueRow
from tests.unit.virtual import Virtual


def releases(here: Virtual) -> list[str]:
    return [event.reason for event in here.events if isinstance(event, JobsReleased)]


def test_jobs_that_no_idle_supervisor_takes_are_given_back_once_and_wait_in_the_store() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    here.child.run_next(took=0.001)
    here.child.start_next()
    here.neighbour_idles("them, serving another queue")
    for _ in range(60):
        here.loop.advance(0.5)
        here.pool.beat(here.child)
        here.engine.tick("running")
    assert releases(here) == ["others idle"]
    here.child.finish(took=30.0)
    here.child.drain()
    for _ in ids[2:]:
        here.child.run_next(took=0.001)
    assert {here.state(id) for id in ids} == {"succeeded"}


def test_few_jobs_are_held_while_their_payloads_are_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "HELD_WEIGHT", 1000)
    here = Virtual()
    here.enqueue(*["work"] * 3)
    here.serve()
    for _ in range(3):
        here.child.run_next(took=0.001)
    ids = here.store.enqueue([EnqueueRow("work", f'"{"x" * 1000}"')] * 200)
    here.ring()
    assert len(here.engine.leases) == 100
    for _ in range(90):
        here.child.run_next(took=0.001)
    assert len(here.engine.leases) == 10
    for _ in range(110):
        here.child.run_next(took=0.001)
    assert {here.state(id) for id in ids} == {"succeeded"}
    assert here.engine.leases.weight == 0


def test_few_outcomes_are_settled_at_once_while_their_results_are_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "BATCH_WEIGHT", 1000)
    here = Virtual(workers=10)
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    here.writer.eager = False
    for child in here.children.forked:
        child.start_next()
        child.finish()
        child.unread = [reply._replace(result="x" * 400) for reply in child.unread]
        child.drain()
    here.writer.step()
    assert {here.state(id) for id in ids} == {"succeeded"}
    assert [len(event.outcomes) for event in here.events if isinstance(event, JobsSettled)] == [1, 1, 3, 3, 2]
