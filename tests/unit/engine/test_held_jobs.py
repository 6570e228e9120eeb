"""How much is claimed ahead: nothing that would only be released again, and no more than the supervisor can hold."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.engine.fetcher import Claim
from supervisor.engine.limits import Limits
from supervisor.engine.store_writer import Purpose
from supervisor.events import JobsReleased, JobsSettled
from supervisor.stores.records import EnqueueRow
from tests.unit.virtual import Virtual


def releases(here: Virtual) -> list[str]:
    return [event.reason for event in here.events if isinstance(event, JobsReleased)]


def test_jobs_released_to_an_idle_supervisor_that_takes_none_are_not_claimed_and_released_again() -> None:
    here = Virtual()
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    here.process.run_next(took=0.001)
    here.process.start_next()
    here.neighbour_idles("them, serving another queue")
    for _ in range(60):
        here.loop.advance(0.5)
        here.process.send_heartbeat()
        here.engine.maintain("running")
    assert releases(here) == ["others idle"]
    here.process.finish(took=30.0)
    here.process.drain()
    for _ in ids[2:]:
        here.process.run_next(took=0.001)
    assert {here.state(id) for id in ids} == {"succeeded"}


def test_few_jobs_are_held_while_their_payloads_are_large() -> None:
    here = Virtual(engine_limits=Limits(held_bytes=1000))
    here.enqueue(*["work"] * 3)
    here.serve()
    for _ in range(3):
        here.process.run_next(took=0.001)
    ids = here.store.enqueue([EnqueueRow("work", f'"{"x" * 1000}"')] * 200)
    here.notify()
    assert len(here.engine.leases) == 100
    for _ in range(90):
        here.process.run_next(took=0.001)
    assert len(here.engine.leases) == 10
    for _ in range(110):
        here.process.run_next(took=0.001)
    assert {here.state(id) for id in ids} == {"succeeded"}
    assert here.engine.leases.bytes == 0


class SlowClaims:
    """Claims that begin and are answered when the test calls for it."""

    def __init__(self, here: Virtual) -> None:
        self.here = here
        self.begun: list[Any] = []
        here.writer.eager = False

    def waiting(self) -> list[Any]:
        return [work for work in self.here.writer.waiting if isinstance(work[0], Claim)]

    def begin(self) -> None:
        (work,) = self.waiting()
        self.here.writer.waiting.remove(work)
        call, _, answer = work
        self.begun.append((call(self.here.store), answer))

    def answer(self) -> None:
        claimed, answer = self.begun.pop(0)
        answer.finish(lambda store: claimed, self.here.store, Purpose.CLAIM)


def test_a_second_claim_of_quick_jobs_is_submitted_once_the_first_has_begun() -> None:
    here = Virtual(engine_limits=Limits(claimed_at_once=4))
    ids = here.enqueue(*["work"] * 30)
    here.serve()
    claims = SlowClaims(here)
    here.process.run_next(took=0.0001)
    assert len(claims.waiting()) == 1
    here.engine.fetcher.pump()
    assert len(claims.waiting()) == 1  # it will find what another would
    claims.begin()
    here.engine.fetcher.pump()
    assert len(claims.waiting()) == 1
    claims.begin()
    here.engine.fetcher.pump()
    assert claims.waiting() == []  # two are enough to keep the writer busy
    claims.answer()
    assert len(here.engine.leases) == 1 + 4 and len(claims.waiting()) == 1
    claims.answer()
    assert here.engine.fetcher.claiming and not here.engine.fetcher.quiet
    here.writer.eager = True
    here.writer.step()
    for _ in ids[1:]:
        here.process.run_next(took=0.0001)
    assert {here.state(id) for id in ids} == {"succeeded"}
    assert here.engine.fetcher.quiet


def test_a_second_claim_asks_for_none_of_the_jobs_of_the_first() -> None:
    here = Virtual(engine_limits=Limits(claimed_at_once=4, buffered_per_worker=6))
    here.enqueue(*["work"] * 30)
    here.serve()
    claims = SlowClaims(here)
    here.process.run_next(took=0.0001)
    claims.begin()
    here.engine.fetcher.pump()
    assert claims.waiting() == []
    claims.answer()
    assert len(here.engine.leases) == 1 + 4


def test_jobs_that_are_not_quick_are_claimed_by_one_claim_at_a_time() -> None:
    here = Virtual(engine_limits=Limits(claimed_at_once=40))
    here.enqueue(*["work"] * 30)
    here.serve()
    claims = SlowClaims(here)
    here.process.run_next(took=0.005)
    claims.begin()
    here.engine.fetcher.pump()
    assert claims.waiting() == []


def test_few_outcomes_are_settled_at_once_while_their_results_are_large() -> None:
    here = Virtual(workers=10, engine_limits=Limits(settled_bytes_at_once=1000))
    ids = here.enqueue(*["work"] * 10)
    here.serve()
    here.writer.eager = False
    for process in here.backend.forked:
        process.start_next()
        process.finish()
        process.unread = [reply._replace(result="x" * 400) for reply in process.unread]
        process.drain()
    here.writer.step()
    assert {here.state(id) for id in ids} == {"succeeded"}
    assert [len(event.outcomes) for event in here.events if isinstance(event, JobsSettled)] == [1, 1, 3, 3, 2]


def test_few_outcomes_are_settled_at_once_while_their_failures_are_large() -> None:
    here = Virtual(workers=10, engine_limits=Limits(settled_bytes_at_once=1000))
    here.enqueue(*["work"] * 10)
    here.serve()
    here.writer.eager = False
    for process in here.backend.forked:
        process.start_next()
        process.finish(kind="failed", error={"type": "Oops", "message": "", "traceback": "x" * 400})
        process.drain()
    here.writer.step()
    assert [len(event.outcomes) for event in here.events if isinstance(event, JobsSettled)] == [1, 1, 3, 3, 2]


@pytest.mark.parametrize(
    "limits", [Limits(settled_bytes_at_once=1000, unsettled_bytes=4000), Limits(settled_at_once=3, unsettled_jobs=10)]
)
def test_no_job_starts_while_results_pile_up_unsettled(limits: Limits) -> None:
    here = Virtual(engine_limits=limits)
    here.enqueue(*["work"] * 3)
    here.serve()
    for _ in range(3):
        here.process.run_next(took=0.001)
    ids = here.enqueue(*["work"] * 300)
    here.notify()
    here.writer.unavailable = True
    while here.process.permits:
        here.process.start_next()
        here.process.finish(took=0.001)
        here.process.unread = [reply._replace(result="x" * 400) for reply in here.process.unread]
        here.process.drain()
    ended = [id for id in ids if here.state(id) == "in_flight"]
    assert 0 < len(ended) - len(here.engine.buffers) < 30, "of a hundred held"
    here.writer.unavailable = False
    here.writer.step()
    while here.process.permits:
        here.process.run_next(took=0.001)
    assert {here.state(id) for id in ids} == {"succeeded"}


def test_jobs_claimed_as_short_are_released_when_they_turn_out_to_be_long() -> None:
    here = Virtual(handlers=("short", "long"))
    here.enqueue(*["short"] * 3)
    here.serve()
    for _ in range(3):
        here.process.run_next(took=0.0001)
    here.enqueue(*["long"] * 1500, queue="a")
    here.enqueue(*["long"] * 1500, queue="b")
    here.notify()
    assert len(here.engine.leases) == 1000
    here.process.run_next(took=0.05)
    here.engine.maintain("running")
    assert releases(here) == ["more than can be held"]
    assert len(here.engine.leases) <= 2 + 2 * 0.1 / 0.05
    (urgent,) = here.enqueue("short", priority=100)
    here.notify()
    for _ in range(5):
        here.process.run_next(took=0.05)
    assert here.state(urgent) == "succeeded"
