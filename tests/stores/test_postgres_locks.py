"""Another session has locked a row: one call waits for it, later calls skip it, and nothing else waits for it."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.engine.store_writer import Writer
from supervisor.errors import RowsLocked, StoreContended, StoreUnavailable
from supervisor.events import Bus
from supervisor.jobs import JobState, Kind, Outcome
from supervisor.stores.extras import Extras
from supervisor.stores.postgres.limits import PostgresLimits
from supervisor.stores.records import EnqueueRow, Look, Presence, Waiting
from tests.stores.at_once import Meanwhile
from tests.stores.factories import (
    TTL,
    PostgresFactory,
    again,
    dead,
    dead_letters,
    make_dead,
    promote,
    put,
    release,
    state_of,
    states,
    success,
    take,
)
from tests.system.command import wait_for


@pytest.fixture
def factory(tmp_path):
    """As if its server were on another machine: a statement that waits for a lock goes along with the next query."""
    factory = PostgresFactory(tmp_path, PostgresLimits(near=False, lock_milliseconds=50))
    yield factory
    factory.close()


@contextmanager
def locked(factory, table: str, where: str):
    """A person has begun a transaction, and leaves it open."""
    with factory.server.connect() as person, person.transaction():
        held = person.execute(f'select from "{factory.schema}".{table} where {where} for update')
        assert held.rowcount
        yield


def met(call):
    """Let the call meet the lock: it waits as long as it may, and does nothing. Returns the call, to be repeated."""
    with pytest.raises(StoreContended, match="lock timeout"):
        call()
    return call


def deadlines(factory):
    return dict(factory.sql("select id, lease_until from {s}.jobs").fetchall())


@pytest.mark.parametrize("near", [True, False])
def test_a_brief_transaction_waits_for_a_lock_only_a_moment(factory, near):
    factory.limits = PostgresLimits(near=near)
    store = factory.joined("one")
    wait = "select current_setting('lock_timeout')"
    with store.transaction(brief=True):
        assert store.connection.value(wait) == "100ms"
    assert store.connection.value(wait) == "3s"
    with factory.server.connect() as person, person.transaction():
        person.execute(f'lock table "{factory.schema}".supervisors in access exclusive mode')
        with pytest.raises(StoreContended), store.transaction(brief=True):
            store.announce(Presence("running"))


@pytest.mark.parametrize("ending", [success, again, dead, release])
def test_a_locked_job_is_refused_and_the_others_are_settled_without_another_wait(factory, store, ending):
    ids = put(store, *"abc")
    outcomes = [success(lease) if lease.id == ids[0] else ending(lease) for lease in take(store)]
    with locked(factory, "jobs", f"id = {ids[1]}"):
        settle = met(lambda: store.settle(outcomes))
        for _ in range(2):
            with pytest.raises(RowsLocked) as raised:
                settle()
            assert raised.value.ids == {ids[1]}
            assert states(store, ids) == ["in_flight"] * 3
        with store.transaction():
            with pytest.raises(RowsLocked):
                settle()
            assert store.settle([outcomes[0], outcomes[2]]) == []
        assert [state == "in_flight" for state in states(store, ids)] == [False, True, False]
    assert store.settle([outcomes[1]]) == []
    assert state_of(store, ids[1]) != "in_flight"
    factory.check()


def test_a_deleted_job_is_stale_and_not_locked(factory, store):
    ids = put(store, "a", "b")
    outcomes = [success(lease) for lease in take(store)]
    with locked(factory, "jobs", f"id = {ids[0]}"):
        met(lambda: store.settle(outcomes))
    factory.sql("delete from {s}.jobs where id = %s", ids[1])
    assert store.row_locks.skips_locked
    assert store.settle(outcomes) == [ids[1]]


def test_a_locked_dead_letter_delays_its_own_job_alone(factory, store):
    (id,) = make_dead(store)
    store.redrive([id], force=True)
    other = put(store)[0]
    outcomes = [dead(lease) for lease in take(store)]
    with locked(factory, "dead_letters", f"job_id = {id}"):
        settle = met(lambda: store.settle(outcomes))
        with pytest.raises(RowsLocked) as raised:
            settle()
        assert raised.value.ids == {id}
        assert store.settle([outcome for outcome in outcomes if outcome.lease.id == other]) == []
    assert store.settle([outcome for outcome in outcomes if outcome.lease.id == id]) == []
    assert {dead_letter.id for dead_letter in dead_letters(store)} == {id, other}
    factory.check()


def test_a_locked_count_of_snoozes_delays_its_own_job_alone(factory, store):
    id, other = put(store, "a", "b")
    for _ in range(2):
        outcomes = [Outcome(it, Kind.SNOOZED, state=JobState.SCHEDULED, delay=5.0) for it in take(store)]
        if not store.get(id)["snoozes"]:
            store.settle(outcomes)
            factory.clock.step(5.0)
            promote(store, 10)
    with locked(factory, "snoozes", f"job_id = {id}"):
        settle = met(lambda: store.settle(outcomes))
        with pytest.raises(RowsLocked) as raised:
            settle()
        assert raised.value.ids == {id}
        assert store.settle([outcome for outcome in outcomes if outcome.lease.id == other]) == []
    assert store.settle([outcome for outcome in outcomes if outcome.lease.id == id]) == []
    assert [store.get(each)["snoozes"] for each in (id, other)] == [2, 2]
    factory.check()


def test_locked_attempts_are_thinned_out_another_time(factory, store):
    (id,) = put(store)
    for _ in range(60):
        store.settle([again(lease, delay=0.0) for lease in take(store)])
        promote(store, 1)
    outcomes = [again(lease) for lease in take(store)]
    with locked(factory, "attempts", f"job_id = {id}"):
        assert met(lambda: store.settle(outcomes))() == []
    assert state_of(store, id) == "scheduled"


def test_the_lease_of_a_locked_job_is_not_extended_and_not_stale_and_the_others_are_extended(factory, store):
    ids = put(store, *"abc")
    leases = take(store)
    before = deadlines(factory)
    factory.clock.step(10)
    with locked(factory, "jobs", f"id = {ids[1]}"):
        assert met(lambda: store.extend(leases, TTL, leases))() == []
        assert {id for id, until in deadlines(factory).items() if until > before[id]} == {ids[0], ids[2]}
        assert [store.get(id)["started_at"] is not None for id in ids] == [True, False, True]
    assert store.extend(leases, TTL, leases) == []
    assert store.get(ids[1])["started_at"] is not None
    assert min(deadlines(factory).values()) > max(before.values())


@pytest.mark.parametrize("act", [lambda store: store.announce(Presence("draining")), lambda store: store.leave()])
def test_a_supervisor_whose_own_row_is_locked_goes_on_and_ends(factory, store, act):
    with locked(factory, "supervisors", "owner = 'one'"):
        met(lambda: act(store))()
    (shown,) = factory.sql("select state from {s}.supervisors").fetchall()
    assert shown == ("starting",)


def test_an_owner_that_is_gone_and_locked_is_forgotten_another_time(factory, store):
    factory.kill(factory.joined("two"))
    with locked(factory, "supervisors", "owner = 'two'"):
        assert store.expired_leases(10) == []
        assert factory.sql("select owner from {s}.supervisors order by 1").fetchall() == [("one",), ("two",)]
    store.expired_leases(10)
    assert factory.sql("select owner from {s}.supervisors").fetchall() == [("one",)]


def test_a_dead_letter_of_an_owner_that_is_gone_is_offered_later_if_it_is_locked(factory, store):
    ids = make_dead(store, "a", "b")
    other = factory.joined("two")
    assert len(dead_letters(other)) == 2
    factory.kill(other)
    with locked(factory, "dead_letters", f"job_id = {ids[0]}"):
        store.expired_leases(10)
        assert [dead_letter.id for dead_letter in dead_letters(store)] == [ids[1]]
    factory.clock.step(TTL)
    assert ids[0] in [dead_letter.id for dead_letter in dead_letters(store)]


def test_an_expired_lease_is_not_shown_while_it_is_locked_unless_its_owner_is_gone(factory, store):
    """So a supervisor that watches it begins anew, and its owner, which waits for the same lock, settles first."""
    other = factory.joined("two")
    ids = put(store, "a", "b")
    take(other)
    factory.clock.step(TTL + 1)
    outcomes = [release(it.lease)._replace(seen=it.deadline) for it in store.expired_leases(10)]
    with locked(factory, "jobs", f"id = {ids[0]}"):
        assert [it.lease.id for it in store.expired_leases(10)] == ids[1:]
        assert [it.lease.id for it in store.expired_leases(1)] == ids[:1], "a full page is given as it is"
        assert store.recover(outcomes) == [ids[0]]
        assert not store.row_locks.skips_locked, "two that recover at once often meet like that"
        factory.kill(other)
        assert [(it.lease.id, it.owner_gone) for it in store.expired_leases(10)] == [(ids[0], True)]
    assert store.recover(outcomes[:1]) == []


def test_of_two_that_watch_an_expired_lease_neither_takes_the_other_for_its_owner(factory, store):
    """Otherwise each would begin anew time and again, and neither ever recover it."""
    other = factory.joined("two")
    watcher = factory.joined("three")
    ids = put(store, "a", "b")
    take(other)
    factory.clock.step(TTL + 1)
    with store.transaction():
        for one in (store, watcher):
            assert [it.lease.id for it in one.expired_leases(10)] == ids


@pytest.mark.parametrize("skips_locked", [False, True])
def test_a_supervisor_that_watches_an_expired_lease_does_not_delay_its_owner(factory, store, skips_locked):
    """However long the transaction is in which it looks."""
    owner = factory.joined("two")
    (id,) = put(store)
    leases = take(owner)
    factory.clock.step(TTL + 1)
    if skips_locked:
        owner.connection.session.lock_met_at = time.monotonic()
    with store.transaction():
        assert [it.lease.id for it in store.expired_leases(10)] == [id]
        assert owner.extend(leases, TTL, ()) == []
        assert store.expired_leases(10) == []


def test_two_that_watch_each_others_expired_leases_do_not_wait(factory, store):
    """As after an outage: each extends its own in the commit in which it looks at the other's."""
    stores = [store, factory.joined("two")]
    held = []
    for one in stores:
        put(store)
        held.append(take(one))
    factory.clock.step(TTL + 1)
    with stores[0].transaction(), stores[1].transaction():
        assert [len(one.expired_leases(10)) for one in stores] == [1, 1]
        assert [one.extend(leases, TTL, ()) for one, leases in zip(stores, held, strict=True)] == [[], []]


def test_an_accepted_dead_letter_that_is_locked_is_refused_and_its_claim_goes_on(factory, store):
    ids = make_dead(store, "a", "b")
    claimed = dead_letters(store)
    with locked(factory, "dead_letters", f"job_id = {ids[0]}"):
        accept = met(lambda: store.mark_accepted(claimed, "file"))
        with pytest.raises(RowsLocked) as raised:
            accept()
        assert raised.value.ids == {ids[0]}
        assert store.postpone(claimed, 5.0) == []
        assert store.mark_accepted([it for it in claimed if it.id == ids[1]], "file") == []
    assert store.mark_accepted([it for it in claimed if it.id == ids[0]], "file") == []
    assert {store.get(id)["dead_letter"] for id in ids} == {"delivered"}


def test_nothing_is_pruned_while_locked_rows_are_skipped(factory, store):
    ids = make_dead(store, "a", "b")
    store.mark_accepted(dead_letters(store), "file")
    factory.clock.step(40 * 86_400)
    with locked(factory, "dead_letters", f"job_id = {ids[0]}"):
        assert met(lambda: store.prune(RetentionSettings(), 10))() == 0
    store.connection.session.lock_met_at = None
    assert store.prune(RetentionSettings(), 10) == 2


def test_calls_that_wait_for_no_row_go_on_while_rows_are_locked(factory, store):
    ids = put(store, *"abcd", queue="locked") + put(store, "late", delay=1.0)
    put(store, *["mail"] * 3)
    factory.clock.step(2)
    with locked(factory, "jobs", f"id in ({ids[0]}, {ids[-1]})"):
        assert store.look(None, 10).waiting["default"].fresh == 3
        assert [lease.id for lease in take(store, queue="locked")] == ids[1:4]
        assert len(take(store)) == 3
        assert len(store.held()) == 6
        store.stats()


def test_a_due_job_that_is_locked_is_looked_at_again_after_a_second_and_no_other_is_late(factory, store):
    (first, _) = put(store, "a", "b", delay=1.0)
    put(store, delay=5.5)
    factory.clock.step(2)
    with locked(factory, "jobs", f"id = {first}"):
        assert store.look(None, 1).next_due == 0.0, "there may be more than it could move at once"
        assert store.look(None, 10) == Look({"default": Waiting(1, 0)}, 1.0)
        factory.clock.step(3)
        assert store.look(None, 10).next_due == 0.5
    assert store.look(None, 10) == Look({"default": Waiting(2, 0)}, 0.5)


def test_a_store_that_has_met_no_lock_for_a_while_skips_none(factory, store, monkeypatch):
    (id,) = put(store)
    outcomes = [success(lease) for lease in take(store)]
    sent = []
    send = store.connection._send
    monkeypatch.setattr(
        store.connection, "_send", lambda driver, statement: sent.append(statement[0]) or send(driver, statement)
    )
    with locked(factory, "jobs", f"id = {id}"):
        met(lambda: store.settle(outcomes))
        with pytest.raises(RowsLocked):
            store.settle(outcomes)
        assert any("skip locked" in statement for statement in sent)
        store.connection.session.lock_met_at -= factory.limits.skip_locked_seconds
        sent.clear()
        met(lambda: store.settle(outcomes))
        assert not any("skip locked" in statement for statement in sent)


def test_a_lock_on_the_whole_table_is_met_by_every_call(factory, store):
    put(store)
    outcomes = [success(lease) for lease in take(store)]
    with factory.server.connect() as person, person.transaction():
        person.execute(f'lock table "{factory.schema}".jobs in exclusive mode')
        for _ in range(3):
            met(lambda: store.settle(outcomes))
    assert store.settle(outcomes) == []


def test_locks_that_end_one_by_one_are_skipped_once_they_took_too_long_together(factory):
    """None of them exists as long as a lock is waited for."""
    factory.limits = PostgresLimits(near=False, lock_milliseconds=5_000, statement_milliseconds=500)
    store = factory.joined("one")
    ids = put(store, *"abcdefgh")
    outcomes = [success(lease) for lease in take(store)]
    with ExitStack() as persons:
        holds = [persons.enter_context(closing(factory.server.connect())) for _ in ids]
        for id, person in zip(ids, holds, strict=True):
            person.execute("begin")
            person.execute(f'select from "{factory.schema}".jobs where id = {id} for update')
        waits = Meanwhile(until_they_are_waited_for, factory, holds[:-1])
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            store.settle(outcomes)
        waits.join()
        with pytest.raises(RowsLocked) as raised:
            store.settle(outcomes)
        assert ids[-1] in raised.value.ids


def settle_free(outcome, ended: list[str]) -> Any:
    """Do as the committer does with one outcome: return whether it was settled."""

    def settle(store):
        try:
            return store.settle([outcome]) == []
        except RowsLocked:
            return False
        except StoreContended as error:
            ended.append(str(error))
            raise

    return settle


def test_a_deadlock_with_another_session_is_no_outage(factory, store):
    """Two settles of one commit, and a session that locks the same rows in the opposite order."""
    ids = put(store, "a", "b")
    first, second = sorted((success(lease) for lease in take(store)), key=lambda outcome: outcome.lease.id)
    store.connection.run("set lock_timeout = '5s'")
    store.connection.run("set deadlock_timeout = '10ms'")  # the session that looks first is the one that is ended
    lock = f'select from "{factory.schema}".jobs where id = %s for update'
    events: list[Any] = []
    ended: list[str] = []
    with factory.server.connect() as other, other.transaction():
        other.execute("set local deadlock_timeout = '1min'")
        other.execute(lock, [ids[1]])
        waits: list[Meanwhile] = []

        def settle_first(store):
            done = settle_free(first, ended)(store)
            if not waits:
                store.connection.flush()
                waits.append(Meanwhile(other.execute, lock, [ids[0]]))
                until_it_waits(factory, other)
            return done

        async def settle_both() -> list[bool]:
            bus = Bus()
            bus.subscribe(events.append)
            writer = Writer(store, asyncio.get_running_loop(), bus)
            both = writer.submit(settle_first), writer.submit(settle_free(second, ended))
            done = await asyncio.wait_for(asyncio.gather(*both), 20)
            assert await writer.close(30)
            return done

        assert asyncio.run(settle_both())[1] is False
        waits[0].join()
    assert events == []
    assert len(ended) == 1 and "deadlock" in ended[0]
    assert store.settle([first, second]) == []
    assert states(store, ids) == ["succeeded"] * 2
    factory.check()


def until_they_are_waited_for(factory, persons) -> None:
    """Release each lock once it is waited for, so that the next one is."""
    waiting = "select 1 from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    for person in persons:
        deadline = time.monotonic() + 0.3
        while not factory.sql(waiting, person.info.backend_pid).fetchone() and time.monotonic() < deadline:
            time.sleep(0.002)
        person.execute("rollback")


def until_it_waits(factory, other) -> None:
    waiting = "select 1 from pg_locks where pid = %s and not granted"
    wait_for(lambda: factory.sql(waiting, other.info.backend_pid).fetchone() is not None, every=0.002)


@pytest.mark.parametrize(
    ("extras", "its"),
    [
        ([Extras(unique="report:42")], "the unique key 'report:42'"),
        ([Extras(unique="report:42"), Extras(unique="report:43")], "one of 2 unique keys"),
        ([Extras(key="account")], "the key 'account'"),
    ],
)
def test_who_waits_in_vain_for_a_key_is_told_so(factory, extras, its):
    rows = [EnqueueRow("mail", "{}", extras=it) for it in extras]
    one, two = factory.joined("one"), factory.joined("two")
    with one.transaction():
        one.enqueue(rows[:1])
        with pytest.raises(
            StoreContended, match=f"lock timeout: another session .* a job with {its}: commit it or roll"
        ):
            two.enqueue(rows)
    assert len(two.enqueue(rows)) == len(rows)
