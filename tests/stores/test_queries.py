from __future__ import annotations

import tracemalloc

import pytest

from supervisor.jobs import JobState
from supervisor.stores.records import EnqueueRow, Presence
from supervisor.stores.supervisors import ABOUT
from tests.stores.factories import (
    again,
    dead,
    dead_letters,
    make_dead,
    make_retries,
    next_due,
    put,
    success,
    take,
    take_one,
)


def ids(jobs):
    return [job["id"] for job in jobs]


def test_jobs_are_listed_newest_first(store):
    a, b, c = put(store, *"abc")
    assert ids(store.list_jobs()) == [c, b, a]
    assert ids(store.list_jobs(limit=2)) == [c, b]
    assert [*store.list_jobs(limit=1)] == [store.get(c)]


def test_jobs_are_listed_by_queue_handler_and_state(store):
    (mail,) = put(store, "mail", queue="post")
    (scan,) = put(store, "scan")
    take_one(store)
    assert ids(store.list_jobs(queue="post")) == [mail]
    assert ids(store.list_jobs(handler="scan")) == [scan]
    assert ids(store.list_jobs(state=JobState.IN_FLIGHT)) == [scan]
    assert ids(store.list_jobs(state=JobState.READY, handler="scan")) == []


def test_finished_jobs_are_listed_by_when_they_finished(factory, store):
    first, second = put(store, "a", "b")
    leases = {lease.id: lease for lease in take(store)}
    store.settle([success(leases[second])])
    factory.clock.step(1)
    store.settle([success(leases[first])])
    assert ids(store.list_jobs(state=JobState.SUCCEEDED)) == [first, second]


def test_dead_letters_are_listed_by_their_state(store):
    delivered, pending = make_dead(store, "a", "b")
    make_dead(store, "c", dead_letter=False)
    claimed = [dead_letter for dead_letter in dead_letters(store) if dead_letter.id == delivered]
    store.mark_accepted(claimed, "file")
    assert ids(store.list_jobs(dead_letter="pending")) == [pending]
    assert ids(store.list_jobs(dead_letter="delivered")) == [delivered]
    assert ids(store.list_jobs(dead_letter="any")) == [pending, delivered]


def test_remaining_work_is_counted_as_a_drain_needs_it(factory, store):
    put(store, delay=5.0)
    put(store, delay=50.0)
    put(store, queue="other")
    put(store)
    take_one(store)
    put(store, "a", "b")
    assert store.remaining(None, None) == {"scheduled": 2, "ready": 3, "in_flight": 1}
    assert store.remaining(None, store.clock() + 5.0) == {"scheduled": 1, "ready": 3, "in_flight": 1}
    assert store.remaining(frozenset({"other"}), None) == {"ready": 1}
    latest = store.clock() + 5.0
    factory.clock.step(46.0)
    assert store.remaining(None, latest) == {"scheduled": 1, "ready": 3, "in_flight": 1}, "it does not move along"
    store.pause("default", True)
    assert store.remaining(None, None) == {"ready": 1}


def test_no_more_rows_are_counted_than_the_limit(factory, store):
    make_dead(store, "a", "b", "c")
    put(store, *["paused"] * 5, delay=1.0, queue="paused")
    put(store, *["mail"] * 3, delay=2.0)
    put(store, delay=50.0)
    store.pause("paused", True)
    assert store.remaining(None, None) == {"scheduled": 4, "dead_letters": 3}
    assert store.remaining(None, None, 2) == {"scheduled": 4, "dead_letters": 2}, "without a time all are counted"
    latest = store.clock() + 5.0
    for most in (1, 2, 3):
        assert store.remaining(None, latest, most) == {"scheduled": most, "dead_letters": most}
    assert store.remaining(None, latest, 4) == {"scheduled": 3, "dead_letters": 3}
    assert store.remaining(frozenset({"other"}), latest, 4) == {"dead_letters": 3}
    assert store.remaining(None, latest - 3.5, 4) == {"dead_letters": 3}


def test_scheduled_jobs_are_counted_only_of_the_handlers_that_are_asked_for(store):
    put(store, "mail", "mail", "other", delay=2.0)
    put(store, "mail", delay=50.0)
    put(store, "other")
    latest = store.clock() + 5.0
    assert store.remaining(None, None, handlers=["mail"]) == {"scheduled": 3, "ready": 1}
    assert store.remaining(None, None, 1, ["mail"]) == {"scheduled": 1, "ready": 1}
    assert store.remaining(None, latest, handlers=["mail"]) == {"scheduled": 2, "ready": 1}
    assert store.remaining(None, None, handlers=[]) == {"ready": 1}


def test_without_a_scheduled_job_nothing_is_due_next(store):
    put(store)
    assert next_due(store) is None


def test_the_status_has_the_counts_of_each_queue(factory, store):
    make_retries(factory, store, "a")
    put(store, "b", "c")
    put(store, delay=5.0)
    make_queue = put(store, queue="other")
    lease = [lease for lease in take(store, queue="other") if lease.id in make_queue]
    store.settle([dead(lease[0], dead_letter=False)])
    store.pause("empty", True)
    store.settle([again(take_one(store))])
    running = take_one(store)
    take_one(store)
    worker = {"pid": 1, "state": "busy", "current_job": {"job_id": running.id, "handler": "c"}}
    store.announce(Presence("running", [worker, {"pid": 2, "state": "idle", "current_job": None}]))
    assert store.stats()["queues"] == [
        {"queue": "default", "queue_size": 0, "retry_queue_size": 0, "blocked": 0, "scheduled": 2, "in_flight": 2, "failed": 0,
         "paused": False, "processing": 1},
        {"queue": "empty", "queue_size": 0, "retry_queue_size": 0, "blocked": 0, "scheduled": 0, "in_flight": 0, "failed": 0,
         "paused": True, "processing": 0},
        {"queue": "other", "queue_size": 0, "retry_queue_size": 0, "blocked": 0, "scheduled": 0, "in_flight": 0, "failed": 1,
         "paused": False, "processing": 0},
    ]  # fmt: skip


def test_the_status_has_queue_sizes_by_tier(factory, store):
    make_retries(factory, store, "a", "b")
    put(store)
    (queue,) = store.stats()["queues"]
    assert (queue["queue_size"], queue["retry_queue_size"]) == (1, 2)


def test_the_status_has_the_presence_of_each_supervisor(factory, store):
    worker = {"pid": 5, "state": "idle", "current_job": None}
    store.announce(Presence("running", [worker], idle=1))
    assert store.stats()["supervisors"] == [
        {"owner": "one", "host": "host", "pid": 4711, "state": "running", "seen_at": "2023-11-14T22:13:20.000000Z",
         "in_flight": 0, "lease_until": None, "workers": [worker], "sinks": ["file"], **ABOUT}
    ]  # fmt: skip
    other = factory.joined("two")
    assert [row["owner"] for row in other.stats()["supervisors"]] == ["one", "two"]
    store.leave()
    assert [row["owner"] for row in other.stats()["supervisors"]] == ["two"]


def test_the_status_has_what_supervisors_announce_and_hold(factory, store):
    job, _ = put(store, "a", "b")
    take(store)
    (row,) = store.stats()["supervisors"]
    about = {"queues": ["mail"], "handlers": ["a"], "lease_ttl": 30.0, "missing_handlers": ["b"]}
    store.announce(Presence("running", about=about))
    (row,) = factory.open().stats()["supervisors"]
    assert row.items() >= {**ABOUT, **about, "in_flight": 2, "lease_until": "2023-11-14T22:13:50.000000Z"}.items()
    assert store.get(job)["lease"] == {"owner": "one", "until": "2023-11-14T22:13:50.000000Z"}
    store.leave()
    (row,) = factory.joined("two").stats()["supervisors"][:1]
    assert row.items() >= {**ABOUT, "state": "gone", "in_flight": 2}.items()


def test_a_current_job_has_the_time_at_which_it_was_started_however_old_the_row_is(factory, store):
    job = {"job_id": 1, "handler": "a", "retry_count": 0, "is_retry": False, "running_for": 90.5}
    workers = [{"pid": 7, "state": "busy", "current_job": job}, {"pid": 8, "state": "idle", "current_job": None}]
    store.announce(Presence("running", workers))
    factory.clock.step(5.0)
    (row,) = factory.open().stats()["supervisors"]
    busy, idle = row["workers"]
    assert busy["current_job"] == {**job, "running_since": "2023-11-14T22:11:49.500000Z", "progress": None}
    assert idle["current_job"] is None


def test_the_status_has_the_time_at_which_it_was_read(factory, store):
    factory.clock.step(5.0)
    assert store.stats()["at"] == "2023-11-14T22:13:25.000000Z"


def test_a_reader_sees_committed_changes_only(factory, store):
    put(store)
    reader = factory.open()
    assert len([*reader.list_jobs()]) == 1
    assert reader.stats() == store.stats()
    assert reader.remaining(None, None) == {"ready": 1}
    reader.close()


def test_a_long_list_is_read_in_pages_without_jobs_that_are_deleted_meanwhile(store):
    made = store.enqueue([EnqueueRow("mail", str(number)) for number in range(450)])
    jobs = store.list_jobs(limit=440)
    first = next(jobs)
    assert (first["id"], first["payload"]) == (made.pop(), 449)
    if not store.url.startswith("memory"):
        store.delete([made.pop(20)])
    assert ids(jobs) == made[10:][::-1]


@pytest.mark.parametrize("factory", ["sqlite", "postgresql"], indirect=True)
def test_a_list_of_large_jobs_holds_few_of_them_at_once_and_a_brief_one_none(store):
    size, text = 500_000, "x" * 499_998
    store.enqueue([EnqueueRow("mail", f'"{text}"')] * 40)
    while leases := take(store, 40):
        assert store.settle([success(lease, result=f'"{text}"') for lease in leases]) == []
    peaks = {}
    for brief in (False, True):
        tracemalloc.start()
        for job in store.list_jobs(brief=brief):
            assert (job["payload"], job["result"]) == ((None, None) if brief else (text, text))
        peaks[brief] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[False] < 40 * size, "half of all texts"
    assert peaks[True] < size


def test_a_brief_list_has_the_last_error(store):
    put(store, "mail")
    store.settle([again(take_one(store), delay=0.0)])
    store.look(None, 10)
    store.settle([dead(take_one(store), stderr="last")])
    (job,) = store.list_jobs(brief=True)
    assert job["errors"][-1]["stderr"] == "last"
    assert store.url.startswith(("memory", "Kafka")) or len(job["errors"]) == 1
