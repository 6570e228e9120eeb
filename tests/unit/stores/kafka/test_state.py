from __future__ import annotations

import threading
from base64 import b64encode
from contextlib import contextmanager, suppress

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.errors import StoreError, StoreUnavailable
from supervisor.jobs import Kind, Outcome
from supervisor.stores.job_reports import JobReport
from supervisor.stores.kafka import state as kafka_state
from supervisor.stores.memory import state as memory_state
from tests.stores.factories import TTL, Clock, again, dead, is_readable, promote, release, success, take
from tests.stores.simulated_kafka import FedStore, Log, kafka_settings

P, Q = ("orders", 0), ("orders", 1)


class Failed(Exception):
    """Raised to fail a transaction half way."""


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def store(log):
    return joined(log)


def joined(log, epochs=None, **options):
    store = FedStore(log, kafka_settings({"orders": "order"}, **options), Clock(), epochs)
    store.join("one", "host", 4711, frozenset({"dlq"}))
    store.assign(P, Q)
    return store


def feed(store, *keys, name=P, value=b"{}"):
    """Append a record for each key, and fetch all. Return their ids."""
    before = set(store.state.assignment.records)
    for key in keys:
        store.log.append(name, key, value)
    store.fetch(name)
    return sorted(set(store.state.assignment.records) - before)


def claim(store, limit=100):
    return take(store, limit, queue="orders")


def ids(leases):
    return [lease.id for lease in leases]


def offset(store, name=P):
    return store.partitions[name].offsets.committable


def test_records_become_jobs_and_their_offsets_are_done_once_these_have_ended(store):
    first, second = feed(store, None, None)
    a, b = claim(store)
    assert (ids([a, b]), a.handler, a.queue, a.payload) == ([first, second], "order", "orders", "{}")
    assert store.settle([success(b)]) == []
    assert offset(store) == 0
    assert store.settle([success(a)]) == []
    assert offset(store) == 2
    assert store.get(first) is None and not store.state.assignment.records
    store.commit()
    assert store.log.committed[P] == (2, "")


def test_records_of_a_key_run_one_at_a_time_retries_included(store):
    a1, a2, b1 = feed(store, b"a", b"a", b"b")
    first, other = claim(store)
    assert ids([first, other]) == [a1, b1]
    store.settle([again(first, delay=5.0), success(other)])
    assert claim(store) == [], "the second of a waits until the first is done"
    store.clock.step(5)
    promote(store, 10)
    (retry,) = claim(store)
    assert (retry.id, retry.attempt) == (a1, 2)
    store.settle([success(retry)])
    assert ids(claim(store)) == [a2]


def test_a_released_job_keeps_its_place_in_its_line(store):
    a1, _ = feed(store, b"a", b"a")
    store.settle([release(lease) for lease in claim(store)])
    (lease,) = claim(store)
    assert (lease.id, lease.attempt) == (a1, 1)
    store.settle([release(lease, delay=3.0)])
    assert claim(store) == []


def test_a_dead_letter_holds_its_line_and_its_offset_until_it_is_delivered(store):
    a1, a2 = feed(store, b"a", b"a")
    store.settle([dead(lease) for lease in claim(store)])
    assert (claim(store), offset(store)) == ([], 0)
    claimed = store.claim_dead_letters(10, TTL)
    store.postpone(claimed, 3.0)
    assert (claim(store), offset(store)) == ([], 0)
    store.clock.step(3)
    (dead_letter,) = store.claim_dead_letters(10, TTL)
    assert (dead_letter.id, dead_letter.tries) == (a1, 2)
    assert store.mark_accepted([dead_letter], "dlq") == []
    assert (ids(claim(store)), offset(store)) == ([a2], 1)
    assert store.get(a1)["dead_letter"] == "delivered"


def test_a_failure_without_a_dead_letter_is_done_at_once(store):
    a1, a2 = feed(store, b"a", b"a")
    store.settle([dead(lease, dead_letter=False) for lease in claim(store)])
    assert (ids(claim(store)), offset(store)) == ([a2], 1)
    assert store.get(a1)["state"] == "failed"


def test_a_dead_letter_has_its_record_unchanged(store):
    store.log.append(P, b"\xffkey", b"\x00value", [("h", None), ("h", b"\xfe")], timestamp=1_000)
    store.fetch(P)
    store.settle([dead(lease) for lease in claim(store)])
    ((dead_letter),) = store.claim_dead_letters(10, TTL)
    assert dead_letter.job["record"] == {
        "topic": "orders", "partition": 0, "offset": 0, "epoch": 1, "timestamp": 1_000,
        "key": b64encode(b"\xffkey").decode(), "value": b64encode(b"\x00value").decode(),
        "headers": [["h", None], ["h", b64encode(b"\xfe").decode()]],
    }  # fmt: skip


# transactions


def test_what_a_failed_transaction_has_settled_is_not_done(store):
    a1, a2 = feed(store, b"a", b"a")
    (lease,) = claim(store)
    with suppress(Failed), store.transaction():
        store.settle([success(lease)])
        raise Failed
    assert (offset(store), store.held(), claim(store)) == (0, [(a1, lease.token)], [])
    with store.transaction():
        pass
    assert offset(store) == 0
    assert store.settle([success(lease)]) == []
    assert (offset(store), ids(claim(store))) == (1, [a2])


def test_what_a_failed_transaction_has_claimed_is_claimed_again(store):
    feed(store, b"a", None)
    with suppress(Failed), store.transaction():
        assert len(claim(store)) == 2
        raise Failed
    assert (store.held(), len(claim(store))) == ([], 2)


def test_a_refused_outcome_undoes_its_transaction(store):
    feed(store, None, None)
    good, undecided = claim(store)
    with pytest.raises(StoreError), store.transaction():
        store.settle([success(good)])
        with suppress(StoreError):
            store.settle([Outcome(undecided, Kind.FAILED)])
    assert (offset(store), len(store.held())) == (0, 2)


def test_dead_letters_that_a_failed_transaction_has_delivered_are_pending(store):
    feed(store, b"a")
    store.settle([dead(lease) for lease in claim(store)])
    claimed = store.claim_dead_letters(10, TTL)
    with suppress(Failed), store.transaction():
        store.mark_accepted(claimed, "dlq")
        raise Failed
    assert (offset(store), store.remaining(None, None)["dead_letters"]) == (0, 1)
    store.mark_accepted(claimed, "dlq")
    assert offset(store) == 1


def test_the_next_of_a_line_is_ready_at_the_end_of_the_transaction(store):
    feed(store, b"a", b"a")
    with store.transaction():
        store.settle([success(lease) for lease in claim(store)])
        assert (claim(store), offset(store)) == ([], 0)
    assert (len(claim(store)), offset(store)) == (1, 1)


def test_a_job_that_is_pruned_as_soon_as_it_has_ended_is_done(store):
    _, a2 = feed(store, b"a", b"a")
    with store.transaction():
        store.settle([success(lease) for lease in claim(store)])
        assert store.prune(RetentionSettings(succeeded=0.0), 10) == 1
    assert (ids(claim(store)), offset(store)) == ([a2], 1)


def test_no_transaction_begins_while_the_brokers_do_not_answer(store):
    feed(store, None)
    (lease,) = claim(store)

    def unavailable():
        raise StoreUnavailable("no answer")

    store.state.require_available = unavailable
    for call in (lambda: store.settle([success(lease)]), lambda: claim(store), lambda: store.look(None, 10)):
        with pytest.raises(StoreUnavailable):
            call()
    store.state.require_available = lambda: None
    assert (offset(store), store.settle([success(lease)]), offset(store)) == (0, [], 1)


def test_records_that_are_fetched_during_a_transaction_wait_for_its_end(store):
    store.log.append(P)
    fetched = threading.Thread(target=store.fetch, args=(P,))
    with suppress(Failed), store.transaction():
        fetched.start()
        assert not store.state.jobs
        raise Failed
    fetched.join(10)
    assert len(claim(store)) == 1


# notifications


@contextmanager
def notifies(store, expected=True):
    store.clear_notifications()
    yield
    assert is_readable(store.notification_fd(), 0.0) is expected


def test_the_supervisor_is_notified_of_what_has_become_ready(store):
    with notifies(store):
        feed(store, b"a")
    with notifies(store, False):
        feed(store, b"a")
    with notifies(store):
        store.settle([success(lease) for lease in claim(store)])
    with notifies(store):
        store.lose(P)
    with notifies(store, False):
        store.lose(Q)


# operators


@pytest.mark.parametrize("state", ["ready", "in_flight", "scheduled"])
def test_a_cancelled_job_is_done_and_its_outcome_stale(store, state):
    a1, a2 = feed(store, b"a", b"a")
    leases = claim(store) if state != "ready" else []
    if state == "scheduled":
        store.settle([again(lease) for lease in leases])
    assert store.get(a1)["state"] == state
    assert list(store.cancel([a1]).changed) == [a1]
    assert (offset(store), store.get(a1)["state"], ids(claim(store))) == (1, "cancelled", [a2])
    if state == "in_flight":
        assert store.settle([success(lease) for lease in leases]) == [a1]
    assert offset(store) == 1


def test_a_scheduled_job_can_be_made_due_and_an_ended_one_can_not_be_run_again(store):
    a, b = feed(store, b"a", b"b")
    one, other = claim(store)
    store.settle([again(one), dead(other, dead_letter=False)])
    done, refused = store.retry([a, b])
    assert (list(done), list(refused)) == ([a], [b])
    assert ids(claim(store)) == [a]


def test_a_topic_can_be_paused(store):
    feed(store, None)
    store.pause("orders", True)
    assert (claim(store), store.paused(), store.remaining(None, None)) == ([], {"orders"}, {"ready": 1})
    store.pause("orders", False)
    assert len(claim(store)) == 1


# partitions that are given up


def test_no_job_of_a_partition_that_is_given_up_starts(store):
    feed(store, b"a", b"a", None)
    (other,) = feed(store, None, name=Q)
    store.state.give_up(store.named([P]), 0.0)
    assert ids(claim(store)) == [other]


@pytest.mark.parametrize("outcome", [release, again, lambda lease: again(lease, delay=0.0), success])
def test_a_job_that_ends_while_its_partition_is_given_up_is_the_last_of_its_line(store, outcome):
    feed(store, b"a", b"a")
    (lease,) = claim(store)
    store.state.give_up(store.named([P]), 0.0)
    with store.transaction():
        assert store.settle([outcome(lease)]) == []
        store.look(None, 10)
        assert claim(store) == []
    store.clock.step(100)
    store.look(None, 10)
    assert (claim(store), store.state.jobs) == ([], {})
    assert offset(store) == (1 if outcome is success else 0)


def test_a_failed_transaction_leaves_a_job_in_flight_whose_partition_is_given_up(store):
    feed(store, b"a")
    (lease,) = claim(store)
    store.state.give_up(store.named([P]), 0.0)
    with suppress(Failed), store.transaction():
        store.settle([again(lease)])
        raise Failed
    assert store.held() == [(lease.id, lease.token)]
    assert (store.settle([success(lease)]), offset(store)) == ([], 1)


@contextmanager
def given_up(store, timeout, hurry=lambda: False):
    """Give P up on a thread of its own: inside, none of its jobs can start any more. Yield a list that has the offset to commit once
    the thread waits no longer, which it does at the end."""
    partitions, began, committable = store.named([P]), threading.Event(), []

    def give_up():
        with store.state.lock:
            began.set()
            store.state.give_up(partitions, timeout, hurry)
            committable.append(offset(store))

    thread = threading.Thread(target=give_up)
    thread.start()
    assert began.wait(10)
    with store.state.lock:  # it is free once the thread waits
        assert partitions[0].leaving
    yield committable
    thread.join(10)
    assert not thread.is_alive()


def test_giving_up_waits_for_what_runs_and_for_dead_letters(store):
    feed(store, None, None, b"a")
    good, bad, unstarted = claim(store)
    store.settle([release(unstarted)])
    with given_up(store, 60.0) as committable:
        store.settle([success(good)])
        store.settle([dead(bad)])
        store.mark_accepted(store.claim_dead_letters(10, TTL), "dlq")
    assert committable == [2]


def test_giving_up_ends_at_once_when_the_supervisor_stops(store):
    feed(store, None)
    claim(store)
    stopping = threading.Event()
    with given_up(store, 60.0, stopping.is_set) as committable:
        stopping.set()
        store.state.woke()
    assert committable == [0]


def test_giving_up_ends_although_a_job_runs_on(store):
    feed(store, None)
    (lease,) = claim(store)
    store.revoke(P, timeout=0.001)
    assert (store.settle([success(lease)]), store.log.committed[P]) == ([lease.id], (0, ""))


# outcomes of earlier assignments


def test_all_that_a_dropped_partition_had_is_stale(store):
    feed(store, None, None, b"a", b"a")
    first, second, third = claim(store)
    store.settle([dead(third)])
    claimed = store.claim_dead_letters(10, TTL)
    assert store.lose(P) == 4
    assert store.settle([success(first), dead(second)]) == [first.id, second.id]
    assert store.extend([first], TTL, [second]) == sorted([first.id, second.id])
    assert store.mark_accepted(claimed, "dlq") == store.postpone(claimed, 1.0) == [third.id]
    store.keep_reports([JobReport(first.id, first.token, "1", None)])
    assert (store.held(), store.state.jobs, store.claim_dead_letters(10, TTL)) == ([], {}, [])
    assert sum(store.state.counts.values()) == 0


def test_a_partition_that_is_assigned_again_runs_its_undone_records_under_other_tokens(store):
    feed(store, b"a", None, b"a", None)
    a1, b, c = claim(store)
    store.settle([success(c)])
    store.commit()
    store.lose(P)
    store.assign(P)
    store.fetch(P)
    new = claim(store)
    assert ids(new) == ids([a1, b])
    assert all(lease.token > old.token for lease, old in zip(new, [a1, b], strict=True))
    assert store.settle([success(a1), success(b)]) == ids([a1, b])
    assert offset(store) == 0
    assert store.settle([success(new[1])]) == []
    assert store.settle([success(new[0])]) == []
    assert (offset(store), len(claim(store))) == (2, 1)


def test_an_acceptance_of_an_earlier_assignment_is_stale(store):
    """However often the dead letter was claimed in both."""
    (id,) = feed(store, b"a")
    store.settle([dead(lease) for lease in claim(store)])
    earlier = store.claim_dead_letters(10, TTL)
    store.lose(P)
    store.assign(P)
    store.fetch(P)
    store.settle([dead(lease) for lease in claim(store)])
    claimed = store.claim_dead_letters(10, TTL)
    assert store.mark_accepted(earlier, "dlq") == store.postpone(earlier, 5.0) == [id]
    assert (offset(store), store.mark_accepted(claimed, "dlq"), offset(store)) == (0, [], 1)


@pytest.mark.parametrize("state", ["paused", "scheduled"])
def test_partitions_that_come_and_go_leave_nothing_in_memory(store, state):
    """Nothing is taken out of the heaps of a paused queue, or of retries that are not due."""
    store.pause("orders", state == "paused")
    feed(store, *[None] * 100)
    for _ in range(50):
        store.settle([again(lease, delay=1000.0) for lease in claim(store)])
        store.lose(P)
        store.assign(P)
        store.fetch(P)
    entries = len(store.state._scheduled) + sum(len(heap) for heap in store.state._ready.values())
    assert entries <= 2 * 100 + memory_state.MAX_STALE + 100
    store.pause("orders", False)
    assert len(claim(store)) == 100


def read_again_from_the_first(store):
    """Run two records of one key, of which the second fails and is kept to be shown, and lose the partition before a commit: then the
    second waits for the first once more. Return the lease that the second had."""
    feed(store, b"a", b"a")
    store.settle([success(lease) for lease in claim(store)])
    (second,) = claim(store)
    store.settle([dead(second, dead_letter=False)])
    store.lose(P)
    store.assign(P)
    store.fetch(P)
    return second


def test_a_late_report_of_an_earlier_assignment_changes_nothing(store):
    second = read_again_from_the_first(store)
    (first,) = claim(store)
    store.keep_reports([JobReport(second.id, second.token, None, '{"attempt":1,"cut":0,"lines":["x"]}')])
    assert (claim(store), offset(store), len(store.state.assignment.records)) == ([], 0, 2)
    store.settle([success(first)])
    assert (ids(claim(store)), offset(store)) == ([second.id], 1)


def test_giving_up_does_not_wait_for_a_job_that_ended_in_an_earlier_assignment(store):
    read_again_from_the_first(store)
    with given_up(store, 60.0) as committable:
        pass
    assert committable == [0]


# ended jobs that can be shown


def failed(store, n, value=b"{}"):
    found = feed(store, *[None] * n, value=value)
    store.settle([dead(lease, dead_letter=False) for lease in claim(store, n)])
    return found


def test_failed_and_cancelled_jobs_are_shown_up_to_a_number(store, monkeypatch):
    monkeypatch.setattr(kafka_state, "MAX_ENDED", 3)
    (cancelled,) = feed(store, None)
    store.cancel([cancelled])
    older = failed(store, 2)
    assert [job["id"] for job in store.list_jobs()] == [*reversed(older), cancelled]
    newer = failed(store, 2)
    assert [job["id"] for job in store.list_jobs()] == [*reversed(newer), older[1]]
    assert (offset(store), len(store.state.assignment.records)) == (5, 0)


def test_failed_jobs_are_shown_up_to_the_size_of_their_payloads(store, monkeypatch):
    monkeypatch.setattr(kafka_state, "MAX_ENDED_BYTES", 100)
    failed(store, 3, value=b'"' + b"x" * 38 + b'"')
    assert len(store.state.jobs) == 2
    failed(store, 1, value=b'"' + b"x" * 200 + b'"')
    assert len(store.state.jobs) == 0
    assert len(failed(store, 50)) == 50
    assert len(store.state.jobs) == 50


def test_a_record_that_runs_again_is_no_longer_an_ended_one(store, monkeypatch):
    monkeypatch.setattr(kafka_state, "MAX_ENDED", 2)
    (again_,) = failed(store, 1)
    store.lose(P)
    store.assign(P)
    store.fetch(P)
    assert store.get(again_)["state"] == "ready"
    (lease,) = claim(store)
    store.settle([dead(lease, dead_letter=False)])
    (second,) = failed(store, 1)
    assert [job["id"] for job in store.list_jobs()] == [second, again_], "both are among the last two"


def test_a_record_that_runs_again_after_its_ended_job_was_pruned_is_not_removed_with_old_ones(store, monkeypatch):
    monkeypatch.setattr(kafka_state, "MAX_ENDED", 2)
    failed(store, 1)
    store.prune(RetentionSettings(failed=0.0), 10)
    store.lose(P)
    store.assign(P)
    feed(store, None, None, None)
    again_, *others = claim(store)
    store.settle([dead(lease, dead_letter=False) for lease in others])
    assert store.held() == [(again_.id, again_.token)]


def test_giving_up_does_not_wait_for_a_record_that_waits_and_ended_before(store):
    first, second = feed(store, b"a", b"a")
    store.settle([release(lease) for lease in claim(store)])
    store.cancel([first])
    store.cancel([second])
    store.lose(P)
    store.assign(P)
    store.fetch(P)
    with given_up(store, 60.0) as committable:
        pass
    assert committable == [0]
    assert store.get(second) is None, "it is to be run"


def test_a_report_of_an_ended_job_changes_neither_its_offset_nor_what_is_kept(store):
    (id,) = feed(store, None)
    (lease,) = claim(store)
    store.settle([dead(lease, dead_letter=False)])
    before = dict(store.state._shown)
    store.keep_reports([JobReport(id, lease.token, None, '{"attempt":1,"cut":0,"lines":["x"]}')])
    assert (store.state._shown, offset(store)) == (before, 1)


@pytest.mark.parametrize("ordering, claimed", [("key", 3), ("unordered", 5), ("partition", 1)])
def test_the_ordering_decides_what_runs_at_once(log, ordering, claimed):
    store = joined(log, ordering=ordering)
    feed(store, b"a", b"a", b"b", b"b", None)
    assert len(claim(store)) == claimed
    assert sum(queue["in_flight"] for queue in store.stats()["queues"]) == claimed


def test_the_work_that_is_left_counts_records_that_wait_and_partitions_that_are_not_read(store):
    store.fetch(Q)
    store.log.append(P, b"a")
    store.log.append(P, b"a")
    store.fetch(P, limit=1)
    joined = 1  # the group of a consumer that has not joined
    assert store.remaining(None, None) == {"ready": 1 + 1 + joined}
    store.fetch(P)
    assert store.remaining(None, None) == {"ready": 1 + 1 + joined}
    claim(store)
    assert store.remaining(None, None) == {"in_flight": 1, "ready": 1 + joined}


def test_records_that_wait_are_shown_as_ready_and_have_not_ended(store):
    first, second, third = feed(store, b"a", b"a", b"b")
    (queue,) = store.stats()["queues"]
    assert queue["queue_size"] == 3
    assert store.ended([first, second, third, 7]) == [7]


def test_records_that_wait_in_a_paused_queue_or_in_one_that_is_not_served_are_not_waited_for(store):
    feed(store, b"a", b"a")
    joined = 1
    assert store.remaining(frozenset({"others"}), None) == {"ready": joined}
    store.pause("orders", True)
    assert store.remaining(None, None) == {"ready": joined}


def test_jobs_are_counted_by_state(store):
    feed(store, *[None] * 5)
    a, b, c, d = claim(store, 4)
    store.settle([again(a), dead(b), success(c)])
    (queue,) = store.stats()["queues"]
    assert [queue[name] for name in ("queue_size", "scheduled", "in_flight", "failed")] == [1, 1, 1, 1]
    assert [d.id] == [id for id, _ in store.held()]
