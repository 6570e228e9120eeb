"""Snoozes in the engine: within their limit they are scheduled, past it they fail."""

from __future__ import annotations

from typing import Any

from supervisor.engine.snoozes import past_limit
from supervisor.events import JobsSettled
from supervisor.jobs import Cause, Failure, JobState, Kind, Outcome, SnoozeLimit
from tests.unit.virtual import Virtual


def snoozed(after: float = 30.0, most: int | None = 2, until: int | None = None) -> dict[str, Any]:
    return {
        "kind": "snoozed",
        "error": {"type": "Snooze", "message": "for 30s", "after": after, "most": most, "until": until},
    }


def serving(**settings: Any) -> tuple[Virtual, int]:
    here = Virtual(**settings)
    (id,) = here.enqueue("work")
    here.serve()
    here.notify()
    return here, id


def job(here: Virtual, id: int) -> dict[str, Any]:
    found = here.store.get(id)
    assert found is not None
    return found


def run_again(here: Virtual, seconds: float, **how: Any) -> None:
    here.loop.advance(seconds)
    here.process.run_next(**how)


def test_a_snoozed_job_runs_again_after_its_delay_and_not_before() -> None:
    here, id = serving()
    here.process.run_next(**snoozed())
    assert (here.state(id), len(here.engine.leases)) == ("scheduled", 0)
    here.loop.advance(29.9)
    assert here.state(id) == "scheduled"
    here.loop.advance(0.2)
    assert here.state(id) == "in_flight"
    here.process.run_next()
    assert here.state(id) == "succeeded"
    assert [event.outcomes[0].kind for event in here.events if isinstance(event, JobsSettled)] == [
        Kind.SNOOZED, Kind.SUCCEEDED,
    ]  # fmt: skip


def test_past_max_snoozes_each_attempt_fails_until_no_retry_is_left() -> None:
    here, id = serving(retry={"max_retries": 1, "backoff": {"base": "1s", "jitter": "none"}})
    here.process.run_next(**snoozed())
    run_again(here, 30.1, **snoozed())
    assert (job(here, id)["snoozes"], job(here, id)["retries"]) == (2, 0)
    run_again(here, 30.1, **snoozed())
    found = job(here, id)
    assert (found["state"], found["snoozes"], found["retries"], found["snoozed_until"]) == ("scheduled", 2, 1, None)
    run_again(here, 1.1, **snoozed())
    found = job(here, id)
    assert (found["state"], found["dead_letter"]) == ("failed", "delivered")
    why = "it has snoozed 2 times, the most that max_snoozes=2 allows"
    assert [error["message"] for error in found["errors"]] == [why, why]
    assert (here.engine.committer.idle, len(here.engine.leases)) == (True, 0)


def test_a_snooze_that_would_end_after_until_fails() -> None:
    here, id = serving(retry={"max_retries": 0})
    until = int((here.wall() + 40.0) * 1e6)
    here.process.run_next(**snoozed(most=None, until=until))
    assert here.state(id) == "scheduled"
    run_again(here, 30.1, **snoozed(most=None, until=until))
    assert here.state(id) == "failed"


def test_outcomes_beside_a_snooze_past_its_limit_are_settled_with_it() -> None:
    here = Virtual(workers=2, retry={"max_retries": 0})
    bad, good = here.enqueue("work", "work")
    here.serve()
    here.notify()
    here.writer.eager = False
    first, second = (worker.process for worker in here.pool.workers.values())
    first.run_next(**snoozed(most=0))  # type: ignore[attr-defined]
    second.run_next()  # type: ignore[attr-defined]
    here.writer.step()
    here.writer.eager = True
    here.loop.advance(0.1)
    assert (here.state(bad), here.state(good)) == ("failed", "succeeded")


def test_a_job_that_another_supervisor_has_recovered_does_not_fail_by_an_old_snooze() -> None:
    here, id = serving(retry={"max_retries": 0})
    here.store.cancel([id])
    here.process.run_next(**snoozed(most=0))
    assert here.state(id) == "cancelled"
    assert len(here.engine.leases) == 0


def test_a_snooze_up_to_its_limit_that_is_settled_twice_is_no_failure() -> None:
    here, id = serving(retry={"max_retries": 0})
    (lease,) = here.store.leases([id])
    outcome = Outcome(lease, Kind.SNOOZED, retry_after=30.0, snooze=SnoozeLimit(1, None, Failure(Cause.EXCEPTION)))
    decided = outcome._replace(state=JobState.SCHEDULED, delay=30.0)
    assert past_limit(here.store, [decided]) == {}
    here.store.settle([decided])
    assert job(here, id)["snoozes"] == 1
    assert past_limit(here.store, [decided]) == {}, "the commit was not answered, so it is repeated"
