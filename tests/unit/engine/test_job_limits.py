"""Jobs under limits in the engine: they are started as soon as their limits and the workers allow it."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.jobs import JobState
from supervisor.stores.extras import Extras
from supervisor.text.units import microseconds_of_iso
from tests.unit.virtual import Virtual

LIMITS = pytest.mark.parametrize("limit", [{"running": 100}, {"rate": "100/1s"}])


@LIMITS
def test_a_new_job_under_a_limit_starts_as_soon_as_a_worker_is_idle(limit: dict[str, Any]) -> None:
    """It comes while the workers have jobs, and short ones, so that more are claimed ahead."""
    here = Virtual(handlers=("work", "mail"), limits={"mail": limit})
    here.enqueue("work")
    here.serve()
    here.process.run_next(took=0.001)
    here.enqueue("work")
    here.notify()
    here.process.start_next()
    (mail,) = here.enqueue("mail")
    here.notify()
    assert here.state(mail) == "blocked"
    here.process.finish(took=0.001)
    here.process.drain()
    assert here.state(mail) == "in_flight"


@LIMITS
def test_jobs_of_two_limited_handlers_in_two_queues_follow_each_other(limit: dict[str, Any]) -> None:
    """Short jobs are claimed ahead, but under limits only one for the one worker, which is idle."""
    here = Virtual(handlers=("work", "fetch", "mail"), limits={"fetch": limit, "mail": limit})
    here.enqueue("work")
    here.serve()
    here.process.run_next(took=0.001)
    ids = [*here.enqueue("fetch", queue="one"), *here.enqueue("mail", queue="two")]
    here.notify()
    assert sorted(here.state(id) for id in ids) == ["blocked", "in_flight"]
    here.process.run_next(took=0.001)
    assert [here.state(id) for id in ids].count("in_flight") == 1
    here.process.run_next(took=0.001)
    assert {*ids} <= {*here.settled(JobState.SUCCEEDED)}


def test_a_limit_of_a_handler_holds_jobs_back_until_it_allows_the_next_claim() -> None:
    here = Virtual(handlers=("mail",), limits={"mail": {"rate": "1/2s"}})
    ids = here.enqueue("mail", "mail")
    here.serve()
    here.process.run_next()
    assert [here.state(id) for id in ids] == ["succeeded", "blocked"]
    assert here.engine.quiet and here.engine.self_report.limits_hold_back()
    here.loop.advance(2.1)
    here.process.run_next()
    assert [here.state(id) for id in ids] == ["succeeded"] * 2
    here.loop.advance(2.1)
    assert not here.engine.self_report.limits_hold_back()


@pytest.mark.parametrize("limit", [{"running": 1}, {"rate": "1/2s"}])
def test_jobs_of_groups_at_their_limits_go_on_as_soon_as_these_allow_it(limit: dict[str, Any]) -> None:
    here = Virtual(workers=3, queues={"default": {"group_limit": limit}})
    ids = [*here.enqueue("work", "work", extras=Extras(group="a")), *here.enqueue("work", extras=Extras(group="b"))]
    here.serve()
    busy = [worker for worker in here.backend.forked if worker.permits]
    for worker in busy:
        worker.start_next()
    assert [here.state(id) for id in ids] == ["in_flight", "blocked", "in_flight"]
    assert here.engine.self_report.limits_hold_back()
    for worker in busy:
        worker.finish()
        worker.drain()
    if "rate" in limit:
        assert here.state(ids[1]) == "blocked"
        here.loop.advance(2.1)
    assert here.state(ids[1]) == "in_flight"


def test_the_limit_of_a_queue_holds_no_blocked_jobs_back() -> None:
    here = Virtual(queues={"default": {"limit": {"running": 1}}})
    here.enqueue("work", "work")
    here.serve()
    assert here.engine.fetcher.limits_reached == {"queue default": "running"}
    assert [it["reached"] for it in here.engine.self_report.about()["limits"]] == ["running"]
    assert not here.engine.self_report.limits_hold_back()


def test_the_end_of_a_long_wait_for_a_rate_is_announced() -> None:
    here = Virtual(queues={"default": {"limit": {"rate": "1/1h"}}})
    here.enqueue("work", "work")
    here.serve()
    (limit,) = here.engine.self_report.about()["limits"]
    assert limit["reached"] == "rate"
    wait = microseconds_of_iso(limit["until"]) / 1e6 - here.wall()
    assert 3590 < wait <= 3600


@pytest.mark.parametrize(
    ("config", "limited"),
    [
        ({"queues": {"one": {"limit": {"running": 9}}}}, ["one"]),
        ({"queues": {"one": {"group_limit": {"running": 9}}}}, ["one"]),
        ({"limits": {"mail": {"running": 9}}}, ["one", "two"]),
    ],
)
def test_queues_in_which_no_job_can_be_under_a_limit_are_claimed_from_without_limits(
    config: dict[str, Any], limited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Virtual(workers=3, **config)
    asked, claim_limited = list[str](), here.store.claim_limited

    def claim(takes: Any, *rest: Any) -> Any:
        asked.extend(take.queue for take in takes)
        return claim_limited(takes, *rest)

    monkeypatch.setattr(here.store, "claim_limited", claim)
    ids = [*here.enqueue("work", queue="one"), *here.enqueue("work", queue="two")]
    here.serve()
    assert sorted({*asked}) == limited
    assert [here.state(id) for id in ids] == ["in_flight"] * 2
