"""Owners that share one database: none gets the job of another, none waits for another, and it is known which are gone."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import EnqueueRow, Presence, Waiting
from tests.stores.at_once import all_at_once, beside
from tests.stores.factories import (
    NEAR_AND_FAR,
    TTL,
    again,
    dead,
    make_dead,
    make_retries,
    promote,
    put,
    release,
    states,
    success,
    take,
    take_one,
    waiting,
)
from tests.system.command import wait_for

pytestmark = NEAR_AND_FAR

JOBS = 3000


def test_owners_in_parallel_never_share_a_job(factory):
    stores = [factory.joined(str(number)) for number in range(4)]
    put(stores[0], *["mail"] * JOBS)
    claimed = [[] for _ in stores]

    def work(store, mine):
        while leases := take(store, 37):
            mine += leases
            endings = [success, release, again, success]
            outcomes = [endings[(lease.id + lease.token) % 4](lease) for lease in leases]
            assert store.settle(outcomes) == []
            promote(store, 100)

    all_at_once(*(partial(work, *arguments) for arguments in zip(stores, claimed, strict=True)))
    every = [(lease.id, lease.token) for mine in claimed for lease in mine]
    assert len(every) == len(set(every))
    assert {id for id, _ in every} == set(range(1, JOBS + 1))
    factory.check()


def test_two_claims_at_once_get_different_jobs(factory, store):
    put(store, *["mail"] * 20)
    other = factory.joined("two")
    with store.transaction():
        mine = {lease.id for lease in take(store, 10)}
        theirs = {lease.id for lease in take(other, 10)}
    assert len(mine | theirs) == 20


def test_jobs_that_a_claim_does_not_take_are_left_to_others(factory, store):
    """Of each tier no more is locked than is claimed."""
    make_retries(factory, store, *["mail"] * 10)
    put(store, *["mail"] * 10)
    other = factory.joined("two")
    with store.transaction():
        assert len(take(store, 10, retries_first=4)) == 10
        assert len(take(other, 10, retries_first=10)) == 10


@pytest.mark.parametrize("n", [1, 1000])
def test_a_transaction_that_a_client_keeps_open_blocks_nobody(factory, store, n):
    other, client = factory.joined("two"), factory.open()
    put(store, *"abcd")
    with client.transaction():
        mine = client.enqueue([EnqueueRow("mail", "{}")] * n)
        for one in (store, other):
            put(one, *["mail"] * 3)
            put(one, *["mail"] * 300)
            one.settle([success(take_one(one)), again(take_one(one)), dead(take_one(one))])
            factory.clock.step(20)
            one.look(None, 100)
            one.extend(take(one, 1), TTL, [])
            one.cancel([next(one.list_jobs())["id"]])
            one.expired_leases(10)
            one.stats()
            one.prune(RetentionSettings(), 10)
        assert store.get(mine[0]) is None
    assert store.get(mine[0])["state"] == "ready"
    factory.check()


def test_counts_are_folded_while_others_add_to_them(factory, store):
    client = factory.open()
    for _ in range(150):
        put(client)
    with client.transaction():
        put(client)
        waiting(client, None)  # all that waits is sent
        assert store.look(None, 10).waiting == {"default": Waiting(150, 0)}
        store.look(None, 10)
        assert store.connection.value("select count(*) from {s}.counts") < 5
    assert store.look(None, 10).waiting == {"default": Waiting(151, 0)}
    factory.check()


def test_of_two_that_fold_counts_at_once_neither_waits(factory, store):
    other, client = factory.joined("two"), factory.open()
    for _ in range(150):
        put(client)
    with store.transaction():
        store.look(None, 10)
        store.connection.flush()
        assert other.look(None, 10).waiting == {"default": Waiting(150, 0)}
    factory.check()


def test_of_two_that_prune_at_once_each_prunes_other_jobs(factory, store):
    put(store, *["mail"] * 10)
    store.settle([success(lease) for lease in take(store)])
    factory.clock.step(100_000)
    other = factory.joined("two")
    with store.transaction():
        assert store.prune(RetentionSettings(), 6) == 6
        assert other.prune(RetentionSettings(), 6) == 4
    factory.check()


def test_recovery_waits_for_nobody(factory, store):
    """The owner of an expired lease may be cut off in the middle of its settle."""
    put(store, "a", "b")
    held, free = take(store)
    factory.clock.step(TTL)
    other = factory.joined("two")
    outcomes = [release(it.lease)._replace(seen=it.deadline) for it in other.expired_leases(10)]
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.settle([success(held)])
        store.connection.flush()
        assert other.recover(outcomes) == [held.id]
        raise ZeroDivisionError
    assert other.recover(outcomes) == [free.id]
    assert states(other, [held.id, free.id]) == ["ready", "ready"]
    factory.check()


@pytest.mark.parametrize("failed", [0, 1])
def test_a_settle_that_waits_for_a_job_has_locked_none_behind_it(factory, store, failed):
    """Whatever becomes of the jobs of a batch, it locks them in the order in which a cancel of the same jobs does."""
    put(store, "a", "b")
    leases = take(store)
    outcomes = [again(lease) if place == failed else success(lease) for place, lease in enumerate(leases)]
    stale = []
    with factory.server.connect() as other:
        lock = f"""select 1 from "{factory.schema}".jobs where id = %s for update nowait"""
        with other.transaction():
            other.execute(lock, (leases[0].id,))
            settling = beside(factory, lambda: stale.append(store.settle(outcomes)))
            other.execute(lock, (leases[1].id,))
    settling.join()
    assert stale == [[]]
    factory.check()


# --- owners that are gone


def run_and_exit(factory, owner, claim=0, orphan=False):
    """Run a process that joins as `owner`, claims so many jobs, and exits. With `orphan` it leaves a child, whose pid is returned."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store = PostgresStore(factory.server.url, schema=factory.schema)
            store.join(owner, "host", os.getpid())
            take(store, claim)
            if orphan and (left := os.fork()):
                os.write(write, str(left).encode())
            elif orphan:
                os.close(write)
                time.sleep(3600)
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read) as pid:
        return int(pid.read() or 0)


def test_an_owner_of_this_machine_is_known_to_be_gone_at_once(factory, store):
    gone = []
    store.watch_owners(gone.append)
    put(store, "a", "b")
    run_and_exit(factory, "dead", claim=1)
    (expired,) = store.expired_leases(10)
    assert (expired.owner, expired.owner_gone) == ("dead", True)
    assert [(row["owner"], row["state"]) for row in store.stats()["supervisors"]] == [
        ("one", "starting"),
        ("dead", "gone"),
    ]
    assert store.recover([release(expired.lease)._replace(seen=expired.deadline)]) == []
    assert [row["owner"] for row in store.stats()["supervisors"]] == ["one"]
    assert gone == []
    for _ in range(2):
        assert store.expired_leases(10) == []
    assert gone == ["dead"]
    assert store.connection.column("select owner from {s}.supervisors") == ["one"]


def test_the_row_of_an_owner_that_is_gone_stays_until_its_programs_were_ended(factory, store):
    def killed(owner):
        raise KeyboardInterrupt(owner)

    rows = "select owner from {s}.supervisors order by id"
    run_and_exit(factory, "dead")
    store.watch_owners(killed)
    with pytest.raises(KeyboardInterrupt, match="dead"):
        store.expired_leases(10)
    assert store.connection.column(rows) == ["one", "dead"]
    store.watch_owners(lambda owner: None)
    store.expired_leases(10)
    assert store.connection.column(rows) == ["one"]


def test_an_owner_is_not_gone_before_the_last_process_that_it_left(factory, store):
    put(store)
    orphan = run_and_exit(factory, "dying", claim=1, orphan=True)
    try:
        assert store.expired_leases(10) == []
    finally:
        os.kill(orphan, 9)
    wait_for(lambda: store.expired_leases(10) != [])


def test_the_leases_of_an_owner_on_another_machine_end_by_their_deadlines_alone(factory, store):
    put(store)
    run_and_exit(factory, "far", claim=1)
    factory.sql(
        "update {s}.supervisors set owner_lock = replace(owner_lock, '[\"', '[\"another boot ') where owner = 'far'"
    )
    assert store.expired_leases(10) == []
    factory.clock.step(TTL)
    (expired,) = store.expired_leases(10)
    assert (expired.owner, expired.owner_gone) == ("far", False)


def test_the_leases_of_an_owner_on_another_machine_that_has_left_are_recovered_at_once(factory, store):
    far = factory.joined("far")
    (id,) = put(store)
    take_one(far)
    factory.sql("update {s}.supervisors set owner_lock = null where owner = 'far'")
    assert store.expired_leases(10) == []
    far.leave()
    (expired,) = store.expired_leases(10)
    assert (expired.lease.id, expired.owner, expired.owner_gone) == (id, "far", True)


def test_an_owner_whose_machine_is_never_seen_again_is_off_the_list_after_its_leases(factory, store):
    put(store)
    run_and_exit(factory, "far", claim=1)
    factory.sql("update {s}.supervisors set owner_lock = null, unseen_after = seen_at + 90000000 where owner = 'far'")
    factory.clock.step(89)
    outcomes = [release(it.lease)._replace(seen=it.deadline) for it in store.expired_leases(10)]
    assert [row["owner"] for row in store.stats()["supervisors"]] == ["one", "far"]
    factory.clock.step(2)
    assert [row["owner"] for row in store.stats()["supervisors"]] == ["one", "far"], "it still holds a lease"
    store.recover(outcomes)
    assert [row["owner"] for row in store.stats()["supervisors"]] == ["one"]
    store.expired_leases(10)
    assert store.connection.column("select owner from {s}.supervisors order by id") == ["one", "far"], (
        "it may have left programs there"
    )
    factory.clock.step(3600)
    store.expired_leases(10)
    assert store.connection.column("select owner from {s}.supervisors") == ["one"]


@pytest.mark.parametrize(("ttl", "listed"), [(30.0, 90), (0.5, 5)])
def test_an_owner_without_leases_is_off_the_list_by_the_ttl_that_it_announced(factory, store, ttl, listed):
    far = factory.joined("far")
    far.announce(Presence("running", ttl=ttl))
    factory.sql("update {s}.supervisors set owner_lock = null where owner = 'far'")
    factory.clock.step(listed)
    assert [row["owner"] for row in store.stats()["supervisors"]] == ["one", "far"]
    factory.clock.step(1)
    assert [row["owner"] for row in store.stats()["supervisors"]] == ["one"]


def test_an_owner_that_was_forgotten_is_on_the_list_again_once_it_announces_itself(factory, store):
    other = factory.joined("two")
    factory.sql("delete from {s}.supervisors where owner = 'one'")
    store.announce(Presence("running"))
    assert [row["owner"] for row in other.stats()["supervisors"]] == ["two", "one"]
    put(store)
    lease = take_one(store)
    assert store.held() == [(lease.id, 1)]


def test_a_delete_that_waits_for_a_settle_sees_the_dead_letter_that_it_leaves(factory, store):
    """The delete looks again once it has the lock, and sees that the dead letter is pending."""
    (id,) = put(store)
    lease = take_one(store)
    other = factory.joined("two")
    deleted = []
    with store.transaction():
        store.settle([dead(lease)])
        store.connection.flush()
        thread = beside(factory, lambda: deleted.append(other.delete([id])))
    thread.join()
    ((done, refused),) = deleted
    assert done == {} and "pending" in refused[id]


def test_dead_letters_that_an_owner_was_publishing_are_offered_at_once_when_it_is_gone(factory, store):
    put(store)
    take_one(store)  # owners are forgotten although others have leases
    mine, id = make_dead(store, "a", "b")
    assert [dead_letter.id for dead_letter in store.claim_dead_letters(1, TTL)] == [mine]
    other = factory.joined("two")
    assert [dead_letter.id for dead_letter in other.claim_dead_letters(10, TTL)] == [id]
    factory.kill(other)
    store.expired_leases(10)
    assert [dead_letter.id for dead_letter in store.claim_dead_letters(10, TTL)] == [id]
