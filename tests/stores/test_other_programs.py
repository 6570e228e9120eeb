"""Other programs change the tables by plain SQL: what they leave is right, or is put right, or they are refused."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager

import psycopg
import pytest

from supervisor.stores.records import EnqueueRow, Waiting
from tests.stores.factories import (
    PostgresFactory,
    StoreFactory,
    dead_letters,
    make_dead,
    promote,
    put,
    release,
    success,
    take,
    take_one,
    waiting,
)

DURABLE = pytest.mark.parametrize("factory", ["sqlite", "postgresql"], indirect=True)
TABLES = ("jobs", "attempts", "dead_letters")


def rows_left(factory: StoreFactory) -> dict[str, int]:
    return {table: next(iter(factory.sql(f"select count(*) from {{s}}.{table}")))[0] for table in TABLES}


@DURABLE
def test_a_deleted_job_takes_its_dead_letter_its_attempts_and_its_count_with_it(factory, store):
    gone, kept = make_dead(store, "a", "b")
    factory.sql(f"delete from {{s}}.jobs where id = {gone}")
    assert rows_left(factory) == {"jobs": 1, "attempts": 1, "dead_letters": 1}
    assert store.remaining(None, None) == {"dead_letters": 1}
    assert [dead_letter.id for dead_letter in dead_letters(store)] == [kept]
    factory.check()


@DURABLE
@pytest.mark.parametrize("column", ["payload", "headers"])
def test_long_texts_inserted_and_updated_by_sql_reach_the_handler(factory, store, column):
    texts = ['{"a": "' + letter * 5000 + '"}' for letter in "xyz"]
    for text in texts:
        factory.sql(f"insert into {{s}}.jobs(handler, {column}) values ('mail', '{text}')")
    factory.sql(f"update {{s}}.jobs set {column} = '{texts[0]}' where id = 3")
    leases = take(store)
    assert [getattr(lease, column) for lease in leases] == [texts[0], texts[1], texts[0]]
    assert [store.get(lease.id)[column]["a"][0] for lease in leases] == ["x", "y", "x"]
    factory.check()


@DURABLE
def test_jobs_deleted_in_any_state_leave_nothing_to_wait_for(factory, store):
    store.enqueue([EnqueueRow("a", "{}", queue=queue) for queue in ("x", "x", "y")])
    put(store, "late", delay=60.0)
    put(store, "held")
    held = take_one(store)
    factory.sql("delete from {s}.jobs")
    assert (store.remaining(None, None), store.look(None, 10).waiting) == ({}, {})
    assert store.extend([held], 30.0, []) == [held.id]
    factory.check()
    put(store, "new")
    assert [lease.handler for lease in take(store)] == ["new"]


@pytest.mark.parametrize("factory", ["postgresql"], indirect=True)
def test_truncated_jobs_leave_nothing_to_wait_for(factory, store):
    make_dead(store)
    put(store)
    factory.sql("truncate {s}.jobs")
    assert rows_left(factory) == dict.fromkeys(TABLES, 0)
    assert store.remaining(None, None) == {}
    factory.check()


@DURABLE
def test_a_dead_letter_that_was_inserted_without_a_job_is_passed_over(factory, store):
    (id,) = make_dead(store)
    factory.sql("insert into {s}.dead_letters(job_id, state, due_at) values (77, 1, 0)")
    assert [dead_letter.id for dead_letter in dead_letters(store)] == [id]


GARBAGE = {
    "accepted": ("x", "", "7", '{"a": 1}', '["file"'),
    "owed": ("x", "null", '"file"'),
    "state": (-1, 3),
    "token": (-1, 2**63 - 1),
    "tries": (-1, 2**31 - 1),
    "due_at": (-(2**63), 2**63 - 1),
}
READABLE = ("[null, 7]", '[["file"], {"file": 1}]', '["\u2028", "\\ufffe"]', ' [ "alert" ] ')
"""Lists that no store writes, and that every store takes."""


@DURABLE
@pytest.mark.parametrize(("column", "value"), [(column, value) for column, its in GARBAGE.items() for value in its])
def test_a_dead_letter_that_no_claim_could_read_is_refused(factory, store, column, value):
    (id,) = make_dead(store)
    literal = f"'{value}'" if isinstance(value, str) else value
    with pytest.raises((sqlite3.Error, psycopg.Error), match=r"(?i)check|json"):
        factory.sql(f"update {{s}}.dead_letters set {column} = {literal}")
    assert [dead_letter.id for dead_letter in dead_letters(store)] == [id]


@pytest.mark.parametrize("factory", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["accepted", "owed", "state", "token", "tries", "due_at"])
def test_a_dead_letter_with_a_value_of_another_type_is_refused(factory, store, column):
    make_dead(store)
    with pytest.raises(sqlite3.Error, match="CHECK"):
        factory.sql(f"update {{s}}.dead_letters set {column} = x'5b5d'")


@DURABLE
@pytest.mark.parametrize("text", READABLE)
@pytest.mark.parametrize("column", ["accepted", "owed"])
def test_a_list_of_sinks_that_another_program_wrote_is_read_as_far_as_it_can_be(factory, store, column, text):
    ids = make_dead(store, "a", "b")
    factory.sql(f"update {{s}}.dead_letters set {column} = '{text}' where job_id = {ids[0]}")
    claimed = dead_letters(store)
    assert [dead_letter.id for dead_letter in claimed] == ids
    assert store.mark_accepted(claimed, "file") == []
    store.drop_sink("alert")
    assert store.get(ids[1])["dead_letter"] == "delivered"
    assert store.get(ids[0])["dead_letter"] == "delivered"


@DURABLE
@pytest.mark.parametrize("text", ["x", '["file"'])
def test_garbage_that_is_there_all_the_same_holds_up_no_other_dead_letter(factory, store, text):
    """As after a check was dropped, or in a damaged file."""
    ids = make_dead(store, "a", "b", "c")
    with unchecked(factory) as sql:
        sql(f"update {{s}}.dead_letters set accepted = '{text}' where job_id = {ids[0]}")
        sql(f"update {{s}}.dead_letters set owed = '{text}' where job_id = {ids[1]}")
    claimed = dead_letters(store)
    assert [dead_letter.id for dead_letter in claimed] == ids
    assert store.mark_accepted(claimed, "file") == []
    assert [store.get(id)["dead_letter"] for id in ids] == ["delivered"] * 3


@contextmanager
def unchecked(factory):
    if isinstance(factory, PostgresFactory):
        factory.sql("alter table {s}.dead_letters drop constraint claimable_dead_letter")
        yield factory.sql
        return
    with closing(sqlite3.connect(factory.path, isolation_level=None)) as database:
        database.execute("pragma ignore_check_constraints = on")
        yield lambda text: database.execute(text.replace("{s}", "main"))


ATTEMPTS = ("x", "", "7", "[]", "null", '{"at": "yesterday"}', '{"at": 1e300}', '{"message": "mine"}')


OF_JOBS = {
    "sqlite": ("state = 9", "started_at = 'a'", "finished_at = 9223372036854775807", "policy = 77", "payload = x'ff'"),
    "postgresql": (
        "policy = 'x'",
        "policy = '7'",
        "policy = '[1]'",
        "finished_at = 9223372036854775807",
        "headers = '{'",
    ),
}


@pytest.mark.parametrize(
    ("factory", "change"), [(kind, change) for kind, its in OF_JOBS.items() for change in its], indirect=["factory"]
)
def test_a_job_that_another_program_has_changed_holds_up_no_other_dead_letter(factory, store, change):
    ids = make_dead(store, "a", "b")
    factory.sql(f"update {{s}}.jobs set {change} where id = {ids[0]}")
    claimed = dead_letters(store)
    assert [dead_letter.id for dead_letter in claimed] == ids
    assert store.mark_accepted(claimed, "file") == []
    assert {job["id"] for job in store.list_jobs()} == set(ids)


@DURABLE
@pytest.mark.parametrize("text", ATTEMPTS)
def test_a_failure_that_another_program_wrote_holds_up_nothing(factory, store, text):
    ids = make_dead(store, "a", "b")
    factory.sql(f"update {{s}}.attempts set record = '{text}' where job_id = {ids[0]}")
    claimed = dead_letters(store)
    assert [dead_letter.id for dead_letter in claimed] == ids
    (error,) = store.get(ids[0])["errors"]
    assert error["cause"] == "unreadable"
    assert error.get("message", text) in (text, "mine")
    assert {job["id"] for job in store.list_jobs()} == set(ids)


@DURABLE
def test_a_job_inserted_with_a_due_time_in_the_future_waits_for_it(factory, store):
    factory.clock.now = time.time()  # a trigger of SQLite knows no other clock
    due = factory.clock.microseconds + 3_600_000_000
    factory.sql(f"insert into {{s}}.jobs(handler, due_at) values ('late', {due}), ('due', {due - 7_200_000_000})")
    assert waiting(store) == {"default": Waiting(1, 0)}
    factory.check()
    assert [lease.handler for lease in take(store)] == ["due"]
    factory.clock.step(3601)
    assert promote(store, 10) == 1
    assert [lease.handler for lease in take(store)] == ["late"]


@DURABLE
def test_a_job_that_was_moved_to_another_queue_is_claimed_there(factory, store):
    put(store, "a", "b")
    factory.sql("update {s}.jobs set queue = 'other' where handler = 'a'")
    assert waiting(store) == {"default": Waiting(1, 0), "other": Waiting(1, 0)}
    assert [lease.handler for lease in take(store, queue="other")] == ["a"]
    factory.check()


@DURABLE
def test_a_job_that_was_moved_while_it_ran_leaves_counts_that_are_repaired(factory, store):
    put(store)
    lease = take_one(store)
    factory.sql("update {s}.jobs set queue = 'other'")
    assert store.settle([success(lease)]) == []
    assert store.repair() == "the counts of jobs in default, other, since another program has changed its rows"
    assert store.remaining(frozenset({"other"}), None) == {}
    factory.check()


@DURABLE
@pytest.mark.parametrize("columns", [{}, {"owner": 1}, {"lease_until": 1}])
def test_a_job_in_flight_without_a_lease_is_refused(factory, store, columns):
    row = {"handler": "'mail'", "state": 2, **columns}
    with pytest.raises((sqlite3.Error, psycopg.Error), match=r"jobs\.owner: expected|leased"):
        factory.sql(f"insert into {{s}}.jobs({', '.join(row)}) values ({', '.join(map(str, row.values()))})")
    assert [*store.list_jobs()] == []


@pytest.mark.parametrize("factory", ["sqlite"], indirect=True)
def test_a_job_that_was_put_in_flight_without_a_lease_is_recovered(factory, store):
    (id,) = put(store)
    factory.sql("update {s}.jobs set state = 2")
    wrong = "the counts of jobs in default and 1 job in flight without a lease"
    assert store.repair() == f"{wrong}, since another program has changed its rows"
    (expired,) = store.expired_leases(10)
    assert expired.lease.id == id
    assert store.recover([release(expired.lease)._replace(seen=expired.deadline)]) == []
    assert [lease.id for lease in take(store)] == [id]
    factory.check()


CHANGES = {
    "ready again by hand": "update {s}.jobs set state = 1 where state = 2",
    "succeeded by hand": "update {s}.jobs set state = 3 where state < 3",
    "scheduled by hand": "update {s}.jobs set state = 0 where handler = 'a'",
    "a retry by hand": "update {s}.jobs set tier = 1 where state = 1",
    "of scheduled jobs alone": "update {s}.jobs set state = 5 where state = 0",
    "of jobs in flight alone": "update {s}.jobs set state = 5 where state = 2",
    "counts deleted": "delete from {s}.counts",
    "counts of ready jobs deleted": "delete from {s}.counts where state = 1",
    "counts of jobs that never were": "insert into {s}.counts(state, queue, tier, n) values (0, 'q', 0, 3), (2, 'q', 1, -2)",
}


@DURABLE
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_counts_that_differ_from_the_jobs_are_repaired_and_reported_once(factory, store, change):
    put(store, "a", "b", "c")
    put(store, "late", delay=60.0)
    take_one(store)
    assert store.repair() == ""
    factory.sql(change)
    assert store.repair().startswith("the counts of jobs in ")
    assert store.repair() == ""
    factory.check()
    (ready,) = next(iter(factory.sql("select count(*) from {s}.jobs where state = 1")))
    assert len(take(store)) == ready


def test_a_store_that_nobody_else_has_changed_needs_no_repair(factory, store):
    make_dead(store)
    put(store, "a", "b")
    put(store, "late", delay=60.0)
    with store.transaction():
        (lease,) = take(store, 1)
        store.settle([success(lease)])
        assert store.repair() == ""
    assert store.repair() == ""
    factory.check()


@pytest.mark.parametrize("factory", ["postgresql"], indirect=True)
def test_of_two_that_repair_at_once_one_leaves_it_to_the_other(factory, store):
    other = factory.joined("two")
    put(store)
    factory.sql("delete from {s}.counts")
    with store.transaction():
        assert store.repair() == "the counts of jobs in default, since another program has changed its rows"
        assert other.repair() == ""
    assert other.repair() == ""
    factory.check()
