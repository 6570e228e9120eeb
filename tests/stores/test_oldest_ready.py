"""How long the oldest ready job waits, by queue and tier."""

from __future__ import annotations

from supervisor.stores.oldest import OldestReady
from supervisor.stores.sqlite.oldest import OLDEST_READY
from supervisor.stores.sqlite.store import SqliteStore
from tests.stores.factories import make_dead, make_retries, put, take_one


def test_it_is_the_job_that_was_due_first_of_all_priorities(factory, store):
    put(store, "low", priority=-5)
    factory.clock.step(10)
    put(store, "high", priority=5)
    put(store, "mail", queue="post")
    factory.clock.step(2)
    put(store, "mail", "mail", queue="post")
    assert store.oldest_ready(10) == [OldestReady("post", 0, 2.0), OldestReady("default", 0, 12.0)]
    assert store.oldest_ready(1) == [OldestReady("post", 0, 2.0)]
    store.pause("post", True)
    assert store.oldest_ready(10) == [OldestReady("default", 0, 12.0)]


def test_a_delayed_job_waits_from_its_due_time(factory, store):
    put(store, "later", delay=10.0)
    factory.clock.step(5)
    put(store, "now")
    assert store.oldest_ready(10) == [OldestReady("default", 0, 0.0)]
    factory.clock.step(6)
    store.look(None, 100)
    assert store.oldest_ready(10) == [OldestReady("default", 0, 6.0)]


def test_retries_are_a_tier_of_their_own_and_jobs_in_flight_do_not_wait(factory, store):
    make_retries(factory, store)
    factory.clock.step(3)
    put(store, "fresh")
    tiers = {it.tier: it.seconds for it in store.oldest_ready(10)}
    assert tiers.keys() == {0, 1} and tiers[0] == 0.0
    take_one(store)
    take_one(store)
    assert store.oldest_ready(10) == []


def test_sqlite_reads_through_the_index_however_many_jobs_wait(tmp_path):
    store = SqliteStore(tmp_path / "jobs.db", create=True)
    plan = store.connection.execute(f"explain query plan {OLDEST_READY.as_one_text}", (100,)).fetchall()
    steps = [step.decode() for *_, step in plan if b" jobs " in step]
    store.close()
    assert len(steps) == 3
    for step in steps:
        assert step.startswith("SEARCH jobs USING") and "INDEX ready (queue=? AND tier=?" in step


def test_the_sinks_are_those_of_the_status(store):
    make_dead(store, "a", "b")
    assert store.sinks() == store.stats()["sinks"] != []
