"""Jobs that ran when their supervisor was lost run again one by one, and only the one that is lost alone is blamed."""

from __future__ import annotations

import pytest

from supervisor.engine.suspects import HELD_SECONDS, TRIAL_SECONDS
from supervisor.jobs import Policy
from supervisor.retry import SOLE_SUSPECT, SUSPECT
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import ClaimRequest
from tests.unit.virtual import Virtual


def test_no_job_is_blamed_for_the_first_loss() -> None:
    here = Virtual()
    ids = here.enqueue("work", "work")
    here.lose(*ids)
    jobs = [here.store.get(id) for id in ids]
    assert [job and (job["state"], job["retries"], job["errors"]) for job in jobs] == [("ready", 0, [])] * 2


def test_a_job_is_blamed_once_it_was_lost_as_the_only_suspect() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.lose(id, times=2)
    assert errors(here, id) == []
    here.lose(id)
    assert errors(here, id) == ["lease_expired"]


def test_suspects_run_one_after_the_other_and_others_beside_them() -> None:
    here = Virtual(workers=3)
    first, second = here.enqueue("work", "work")
    here.lose(first, second)
    fresh = here.enqueue("work")[0]
    here.serve()
    here.loop.advance(0.1)
    assert running(here) == {first, fresh}
    here.loop.advance(2.0)
    assert running(here) == {first, fresh}
    finish(here, first)
    here.loop.advance(2.0)
    assert running(here) == {second, fresh}


def test_a_suspect_has_its_start_mark_before_it_runs() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.lose(id)
    here.serve()
    job = here.store.get(id)
    assert job is not None and job["started_at"] is not None


def test_the_next_suspect_starts_beside_one_that_has_run_for_some_time() -> None:
    here = Virtual(workers=2)
    ids = here.enqueue("work", "work")
    here.lose(*ids)
    here.serve()
    here.loop.advance(TRIAL_SECONDS - 1.0)
    assert running(here) == {ids[0]}
    here.loop.advance(3.0)
    assert running(here) == set(ids)


def test_suspects_that_were_lost_together_run_strictly_alone() -> None:
    here = Virtual(workers=2)
    ids = here.enqueue("work", "work")
    here.lose(*ids, times=SOLE_SUSPECT // SUSPECT)
    here.serve()
    here.loop.advance(3 * TRIAL_SECONDS)
    assert running(here) == {ids[0]}
    finish(here, ids[0])
    here.loop.advance(2.0)
    assert running(here) == {ids[1]}


def test_a_suspect_that_ends_is_none_any_more() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.lose(id)
    here.serve()
    here.loop.advance(0.1)
    lease = here.process.start_next()
    here.process.finish("failed", error={"type": "Oops", "message": "no", "traceback": ""})
    here.process.drain()
    assert lease.expired_count == SUSPECT
    here.loop.advance(2.0)
    assert here.process.start_next().expired_count == 0


def test_a_suspect_that_is_just_being_marked_is_released_at_the_end() -> None:
    here, id = being_marked()
    assert here.state(id) == "in_flight" and here.engine.fetcher.claiming
    here.engine.fetcher.close()
    here.writer.eager = True
    here.writer.step()
    assert here.state(id) == "ready" and not here.engine.fetcher.claiming
    assert len(here.engine.leases) == 0


def being_marked() -> tuple[Virtual, int]:
    """Return a supervisor that has claimed a suspect and waits for its start mark, and the id of that job."""
    here = Virtual()
    (id,) = here.enqueue("work")
    here.lose(id)
    here.engine.serve(here.backend)
    here.writer.eager = False
    for process in here.backend.forked:
        process.come_up()
    here.writer.step_one()  # the claim, whose answer asks for the mark
    return here, id


def running(here: Virtual) -> set[int]:
    return {lease.id for slot in here.pool.workers.values() for lease in slot.sent}


def finish(here: Virtual, id: int) -> None:
    for slot in here.pool.workers.values():
        if any(lease.id == id for lease in slot.sent):
            slot.process.run_next()  # type: ignore[attr-defined]
            return


def errors(here: Virtual, id: int) -> list[str]:
    job = here.store.get(id)
    assert job is not None
    return [error["cause"] for error in job["errors"]]


def test_a_suspect_that_is_cancelled_while_it_is_marked_does_not_run() -> None:
    here, id = being_marked()
    here.store.cancel([id])
    here.writer.eager = True
    here.writer.step()
    assert running(here) == set() and len(here.engine.leases) == 0


def test_suspects_that_wait_are_due_again_one_after_the_other() -> None:
    here = Virtual(workers=100)
    ids = here.enqueue(*["work"] * 50)
    here.lose(*ids)
    here.serve()
    here.loop.advance(HELD_SECONDS + 0.5)
    waiting = [job["due_at"] for id in ids if (job := here.store.get(id)) is not None and job["state"] == "scheduled"]
    assert len(waiting) == len(set(waiting)) == 49


def test_a_sole_suspect_is_not_blamed_if_another_job_ran_beside_it() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.lose(id, times=2)
    (fresh,) = here.enqueue("work")
    here.lose(id, fresh)
    assert errors(here, id) == errors(here, fresh) == []
    here.store.cancel([fresh])
    here.lose(id)
    assert errors(here, id) == ["lease_expired"]


def test_a_sole_suspect_is_not_blamed_if_another_supervisor_was_lost_with_its_own() -> None:
    here = Virtual()
    (id,) = here.enqueue("work")
    here.lose(id, times=2)
    (other,) = here.enqueue("work", queue="other")
    for owner, queue in (("one", "default"), ("two", "other")):
        store = MemoryStore(state=here.store.state)  # type: ignore[attr-defined]
        store.join(owner, "there", 2)
        leases = store.claim([ClaimRequest(queue, 1, 1, 1, 100)], 30.0, lambda handler, queue: Policy())
        store.extend(leases, 30.0, leases)
        store.leave()
    here.loop.create_task(here.engine.recover())
    assert errors(here, id) == errors(here, other) == []
    assert here.state(id) == here.state(other) == "ready"


def test_nothing_starts_beside_a_sole_suspect_during_its_trial() -> None:
    here = Virtual(workers=3)
    (id,) = here.enqueue("work")
    here.lose(id, times=2)
    fresh = here.enqueue("work", "work")
    here.serve()
    here.loop.advance(2 * TRIAL_SECONDS - 1.0)
    assert running(here) == {id} and [here.state(each) for each in fresh] == ["ready"] * 2
    here.loop.advance(2.0)
    assert running(here) == {id, *fresh}


def test_others_start_as_soon_as_a_sole_suspect_has_ended() -> None:
    here = Virtual(workers=2)
    (id,) = here.enqueue("work")
    here.lose(id, times=2)
    fresh = here.enqueue("work", "work")
    here.serve()
    here.loop.advance(0.5)
    finish(here, id)
    here.loop.advance(0.01)
    assert running(here) == {*fresh}


def test_a_sole_suspect_waits_for_what_runs_but_not_for_ever() -> None:
    here = Virtual(workers=2)
    (id,) = here.enqueue("work", queue="other")
    here.lose(id, times=2, queue="other")
    here.store.pause("other", True)
    (busy,) = here.enqueue("work")
    here.serve()
    next(slot for slot in here.pool.workers.values() if slot.sent).process.start_next()  # type: ignore[attr-defined]
    here.store.pause("other", False)
    here.notify()
    here.loop.advance(2 * TRIAL_SECONDS - 1.0)
    assert running(here) == {busy}
    here.loop.advance(2.0)
    assert running(here) == {busy, id}


@pytest.mark.parametrize("losses", [1, 2])
def test_many_long_jobs_run_again_soon_and_do_not_keep_others_waiting(losses: int) -> None:
    """As after a machine has failed, once or twice."""
    here = Virtual(workers=25)
    ids = here.enqueue(*["work"] * 20)
    here.lose(*ids, times=losses)
    fresh = here.enqueue(*["work"] * 5)
    here.serve()
    started: set[int] = set()
    for second in range(45):
        here.loop.advance(1.0)
        started |= running(here)
        assert {*fresh} <= started or second < 3 * losses * TRIAL_SECONDS
        for process in here.backend.forked:
            process.listener.heartbeat()
    assert len(started & {*ids}) >= 45 / (losses * TRIAL_SECONDS) - 2
