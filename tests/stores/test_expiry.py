"""A job that no supervisor has claimed by the time at which it expires is cancelled; it is never claimed after that."""

from __future__ import annotations

import pytest

from supervisor.jobs import ExpiredJob, JobState
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow, Waiting
from tests.stores.factories import again, promote, put, release, state_of, states, success, take, take_one
from tests.stores.test_snoozes import snoozed

WITHOUT_KAFKA = "a record of a topic stays until its retention"
MINUTE = 60.0


def expiring(store, *handlers, after=MINUTE, queue="default", delay=None, **extras):
    extras = Extras(expires=round(after * 1e6), **extras)
    return store.enqueue(
        [EnqueueRow(handler, "{}", queue, delay=delay, extras=extras) for handler in handlers or ("mail",)]
    )


def look(store, limit=1000):
    return store.look(None, limit)


def test_a_job_that_waits_at_its_time_is_cancelled(factory, store):
    (id,) = expiring(store)
    factory.clock.step(MINUTE - 1)
    assert look(store).expired == () and look(store).waiting == {"default": Waiting(1, 0)}
    factory.clock.step(1)
    found = look(store)
    assert found.expired == (ExpiredJob(id, "mail", "default"),)
    assert found.waiting == {} and take(store) == []
    assert look(store).expired == ()
    job = store.get(id)
    assert job["state"] == "cancelled" and job["finished_at"] is not None and job["dead_letter"] is None
    (error,) = job["errors"]
    assert (error["cause"], error["attempt"], error["at"]) == ("expired", 1, job["finished_at"])
    assert error["message"] == f"it had not started by {job['expires_at']}"
    factory.check()


def test_scheduled_and_blocked_jobs_expire(factory, store):
    holder, blocked = expiring(store, "mail", "mail", key="account")
    (scheduled,) = expiring(store, delay=3600.0)
    (lease,) = take(store)
    factory.clock.step(MINUTE)
    assert [job.id for job in look(store).expired] == [blocked, scheduled]
    assert states(store, [holder, blocked, scheduled]) == ["in_flight", "cancelled", "cancelled"]
    store.settle([success(lease)])
    factory.check()


def test_a_key_goes_on_to_the_next_job(factory, store):
    first, second = (
        expiring(store, key="account")[0],
        store.enqueue([EnqueueRow("mail", "{}", extras=Extras(key="account"))])[0],
    )
    factory.clock.step(MINUTE)
    assert look(store).waiting == {"default": Waiting(1, 0)}
    assert states(store, [first, second]) == ["cancelled", "ready"]
    assert take_one(store).id == second
    factory.check()


def test_a_job_that_was_claimed_in_time_does_not_expire(factory, store):
    (id,) = expiring(store)
    lease = take_one(store)
    factory.clock.step(MINUTE)
    assert look(store).expired == ()
    store.settle([release(lease)])
    factory.clock.step(MINUTE)
    assert look(store).expired == ()
    assert take_one(store).id == id


def test_a_claim_right_at_the_time_comes_too_late(factory, store):
    (id,) = expiring(store)
    factory.clock.step(MINUTE)
    with store.transaction():
        look(store)
        assert take(store) == []
    assert state_of(store, id) == "cancelled"


def test_a_job_that_has_run_once_does_not_expire(factory, store):
    (id,) = expiring(store)
    store.settle([again(take_one(store), delay=2 * MINUTE)])
    factory.clock.step(MINUTE)
    assert look(store).expired == ()
    factory.clock.step(MINUTE)
    promote(store, 10)
    assert take_one(store).id == id


def test_a_job_that_has_snoozed_does_not_expire(factory, store):
    (id,) = expiring(store)
    store.settle([snoozed(take_one(store), delay=2 * MINUTE)])
    factory.clock.step(MINUTE)
    assert look(store).expired == ()
    factory.clock.step(MINUTE)
    promote(store, 10)
    assert take_one(store).id == id


def test_nothing_is_claimed_while_more_jobs_are_past_than_one_look_cancels(factory, store):
    ids = expiring(store, *["mail"] * 25)
    (plain,) = put(store)
    factory.clock.step(MINUTE)
    for n in (10, 10):
        found = look(store, 10)
        assert (len(found.expired), found.waiting, found.next_due) == (n, {}, 0.0)
    found = look(store, 10)
    assert (len(found.expired), found.waiting) == (5, {"default": Waiting(1, 0)})
    assert states(store, ids) == ["cancelled"] * 25
    assert take_one(store).id == plain
    factory.check()


def test_jobs_that_have_ended_are_looked_at_once(factory, store):
    ids = expiring(store, *["mail"] * 25)
    store.settle([success(lease) for lease in take(store, 25)])
    factory.clock.step(MINUTE)
    for _ in range(3):
        assert look(store, 10).expired == ()
    assert look(store).next_due is None
    assert states(store, ids) == ["succeeded"] * 25


def test_nothing_is_claimed_while_a_job_that_waits_may_be_past_behind_others_that_have_ended(factory, store):
    done = expiring(store, *["mail"] * 5)
    store.settle([success(lease) for lease in take(store)])
    (id,) = expiring(store)
    factory.clock.step(MINUTE)
    for _ in range(2):
        found = look(store, 2)
        assert (found.expired, found.waiting, found.next_due) == ((), {}, 0.0)
    assert [job.id for job in look(store, 2).expired] == [id]
    assert states(store, [*done, id]) == ["succeeded"] * 5 + ["cancelled"]


def test_the_next_look_is_when_the_next_job_expires(factory, store):
    assert look(store).next_due is None
    expiring(store)
    assert look(store).next_due == MINUTE
    put(store, delay=30.0)
    assert look(store).next_due == 30.0
    factory.clock.step(MINUTE - 0.25)
    assert look(store).next_due == 1.0, "seldom, since most jobs have run by their time"


def test_a_rollback_undoes_it(factory, store):
    (id,) = expiring(store)
    factory.clock.step(MINUTE)
    with pytest.raises(RuntimeError), store.transaction():
        assert len(look(store).expired) == 1
        raise RuntimeError
    assert state_of(store, id) == "ready"
    assert [job.id for job in look(store).expired] == [id]
    factory.check()


def test_an_expired_job_that_is_run_again_does_not_expire(factory, store):
    (id,) = expiring(store)
    factory.clock.step(MINUTE)
    look(store)
    assert store.retry([id]).changed == {id: JobState.CANCELLED}
    factory.clock.step(MINUTE)
    assert look(store).expired == ()
    assert take_one(store).id == id


def test_a_replaced_job_expires_at_the_new_time(factory, store):
    (id,) = expiring(store, unique="a")
    factory.clock.step(MINUTE - 1)
    assert expiring(store, unique="a", on_conflict="replace") == [id]
    factory.clock.step(MINUTE - 1)
    assert look(store).expired == ()
    factory.clock.step(1)
    assert [job.id for job in look(store).expired] == [id]
    assert store.enqueue([EnqueueRow("mail", "{}", extras=Extras(unique="a"))]) != [id]
    factory.check()


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_job_that_was_cancelled_or_deleted_does_not_expire(factory, store, end):
    (id,) = expiring(store)
    getattr(store, end)([id])
    factory.clock.step(MINUTE)
    assert look(store).expired == ()
    assert look(store).next_due is None
    factory.check()
