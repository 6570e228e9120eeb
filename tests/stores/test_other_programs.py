"""Other programs change the tables by plain SQL: what they leave is right, or is put right, or they are refused."""

from __future__ import annotations

import pytest

from supervisor.stores.records import EnqueueRow
from tests.stores.factories import StoreFactory, dead_letters, make_dead, put, take, take_one

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
