"""The consumer's thread, with a client whose brokers are the test."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from supervisor.config.kafka import BufferSettings
from supervisor.errors import StoreBroken, StoreUnavailable
from supervisor.kafka.events import OffsetReset, PartitionsRevoked
from supervisor.stores.kafka import consumer as consumer_module
from supervisor.stores.kafka.consumer import ConsumerLimits, GroupConsumer
from supervisor.stores.kafka.resets import ResetLimits
from tests.stores.factories import Clock, success, take
from tests.stores.simulated_kafka import FedStore, Log, kafka_settings
from tests.system.command import wait_for
from tests.unit.stores.kafka.fake_client import FakeClient, FakeMessage

P, Q = ("orders", 0), ("orders", 1)
LIMITS = ConsumerLimits(resets=ResetLimits(again=0.0, gather=0.0), uncommitted=0.0)


class Group:
    """A store, its consumer and its client."""

    def __init__(self, **options) -> None:
        options = {"commit_interval": 1e-6, "revoke_timeout": 0.001, **options}
        settings = kafka_settings({"orders": "order"}, **options)
        self.store = FedStore(Log(), settings, Clock())
        self.store.join("one", "host", 4711, frozenset({"dlq"}))
        self.events = []
        self.consumer = GroupConsumer(settings, self.store.state, self.events.append, LIMITS)
        self.client: FakeClient = self.consumer._client
        self.consumer.start()

    def give(self, *names):
        self.client.put(self.client.assign_partitions(*names))
        self.client.wait()

    def feed(self, *messages):
        self.client.put(*messages)
        self.client.wait()

    def claim(self):
        return take(self.store, 1000, queue="orders")

    def offset(self, name=P):
        return self.store.partitions[name].offsets.committable

    def seen(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def records(*offsets, name=P):
    return [FakeMessage(*name, offset) for offset in offsets]


def end(offset, name=P):
    return FakeMessage(*name, offset, KafkaError(KafkaError._PARTITION_EOF))


def refused(offset=-1001, name=P):
    """The brokers do not have this offset; -1001: nothing is committed."""
    return FakeMessage(*name, offset, KafkaError(KafkaError._AUTO_OFFSET_RESET))


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(consumer_module, "Consumer", FakeClient)
    groups = []

    def start(*names, **options):
        groups.append(group := Group(**options))
        if names:
            group.give(*names)
        return group

    yield start
    for group in groups:
        assert group.consumer.stop(10)


def test_what_is_done_is_committed_up_to_the_first_that_is_not(start):
    group = start(P)
    group.feed(*records(0, 1, 2, 5), end(7))
    a, b, c, d = group.claim()
    group.store.settle([success(b)])
    group.store.settle([success(a), success(d)])
    group.client.wait()
    assert group.client.committed_offsets[P][0] == 2
    group.store.settle([success(c)])
    group.client.wait()
    assert group.client.committed_offsets[P] == (7, "")


def test_a_partition_is_paused_while_its_share_of_the_buffer_is_full(start):
    group = start(P, Q, buffer=BufferSettings(records=8))
    group.feed(*records(0, 1, 2), *records(0, name=Q))
    assert "pause" not in [call for call, _ in group.client.calls]
    group.feed(*records(3))
    assert group.client.calls[-1] == ("pause", [(*P, 4)])
    leases = group.claim()
    group.store.settle([success(leases[0])])
    group.client.wait()
    assert group.client.calls[-1][0] == "pause"
    group.store.settle([success(leases[1])])
    group.client.wait()
    assert group.client.calls[-2:] == [("resume", [(*P, 4)]), ("seek", [(*P, 4)])]


@pytest.mark.parametrize("buffer", [BufferSettings(records=80), BufferSettings(size=80 * 11)])
def test_no_batch_fills_the_buffer_with_the_records_of_one_partition(start, buffer):
    """Each of these has 11 bytes, so the share of each partition is 40 records."""
    group = start(P, Q, buffer=buffer)
    assert next(iter(records(0))).value() == b"{}"
    group.client.put(*records(*range(200)))
    group.client.put(lambda: None)
    group.client.wait()
    taken = group.client.calls[[call for call, _ in group.client.calls].index("pause")]
    assert taken[0] == "pause" and taken[1][0][2] <= 50


def test_a_partition_that_was_paused_when_it_was_taken_is_read_when_it_is_given_again(start):
    """The client keeps a pause beyond the assignment."""
    group = start(P, buffer=BufferSettings(records=1))
    group.feed(*records(0))
    assert group.client.calls[-1][0] == "pause"
    group.client.put(lambda: group.client.rebalance("on_revoke", [P]))
    group.give(P)
    assert [call for call, _ in group.client.calls[-3:]] == ["on_revoke", "resume", "on_assign"]
    assert not group.store.partitions[P].paused


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_partitions_that_are_paused_are_read_on_after_a_reset(start, strategy):
    group = start(P, Q, kafka={"partition.assignment.strategy": strategy}, buffer=BufferSettings(records=2))
    group.feed(*records(0, name=Q))
    group.client.watermarks.append((40, 50))
    group.feed(refused())
    assert group.store.partitions[P].offsets.position == 40
    resets = [name for name, _ in group.client.calls[group.client.calls.index(("pause", [(*Q, 1)])) :]]
    if strategy == "range":
        assert resets[1:3] == ["assign", "resume"]
        assert group.client.calls[-1] == ("pause", [(*Q, 1)]), "it is full still"
    else:
        assert resets[1:] == ["incremental_unassign", "incremental_assign", "resume"]


def test_a_reset_waits_for_the_brokers_without_the_lock_and_is_tried_again(start):
    group = start(P)
    free = []

    def take_lock():
        with group.store.state.lock:
            free.append(True)

    def on_watermarks():
        thread = threading.Thread(target=take_lock)
        thread.start()
        thread.join(10)

    group.client.on_watermarks = on_watermarks
    group.client.watermarks += [KafkaException(KafkaError(KafkaError._TIMED_OUT)), (3, 9)]
    group.feed(refused())
    group.client.wait()
    assert (len(free), group.store.partitions[P].offsets.position) == (3, 3), (
        "it was asked once in vain, and then for both ends"
    )
    assert group.client.calls[-2:] == [("incremental_assign", [(*P, 3)]), ("resume", [(*P, 3)])]


@pytest.mark.parametrize("reset, position", [("earliest", 3), ("latest", 9), ("Latest", 9)])
def test_a_partition_without_a_committed_offset_is_read_from_where_the_user_wants(start, reset, position):
    group = start(P, kafka={"auto.offset.reset": reset})
    group.client.watermarks.append((3, 9))
    group.feed(refused())
    assert (group.offset(), group.seen(OffsetReset)) == (position, [])
    assert group.client.committed_offsets[P][0] == position, "otherwise the next owner would begin at a later end"


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_refusal_from_before_a_reset_skips_and_drops_nothing(start, strategy):
    """An eager client that reads one partition from another offset asks again for all that have no position yet."""
    group = start(P, Q, kafka={"auto.offset.reset": "latest", "partition.assignment.strategy": strategy})
    group.client.watermarks.append((0, 9))
    group.feed(refused())
    group.feed(*records(9, 10))
    leases = group.claim()
    group.client.watermarks.append((0, 11))
    group.feed(refused())
    assert group.client.watermarks == [(0, 11)], "there is nothing to ask"
    assert (group.store.partitions[P].offsets.position, group.seen(OffsetReset)) == (11, [])
    assert group.store.settle([success(lease) for lease in leases]) == []
    group.client.wait()
    assert group.client.committed_offsets[P][0] == 11


def test_partitions_that_are_refused_together_are_read_on_together(start):
    group = start(P, Q, kafka={"partition.assignment.strategy": "range"})
    group.client.watermarks += [(3, 9), (4, 9)]
    questions = []
    group.client.on_watermarks = lambda: questions.append(True)
    group.feed(refused(), refused(name=Q))
    assert len(questions) == 2, "one for each end of both"
    assert [each for each in group.client.calls if each[0] == "assign"] == [("assign", [(*P, 3), (*Q, 4)])]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_records_that_are_there_are_run_when_those_before_them_are_deleted(start, reset):
    group = start(kafka={"auto.offset.reset": reset})
    group.client.committed_offsets[P] = (2, "")
    group.give(P)
    group.client.watermarks.append((5, 9))
    group.feed(refused(2))
    assert [(event.wanted, event.now) for event in group.seen(OffsetReset)] == [(2, 5)]
    assert group.store.partitions[P].offsets.position == 5


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(start):
    group = start()
    group.client.committed_offsets[P] = (100, "")
    group.give(P)
    group.feed(*records(100))
    (lease,) = group.claim()
    group.client.watermarks.append((0, 5))
    group.feed(refused(101))
    group.feed(*records(0, 1))
    assert len(group.seen(OffsetReset)) == 1
    assert group.store.settle([success(lease)]) == [lease.id]
    assert (group.offset(), len(group.claim())) == (0, 2)


def test_a_partition_that_was_taken_meanwhile_is_not_reset(start):
    group = start(P)
    group.client.watermarks.append((3, 9))
    group.feed(refused(), lambda: group.client.rebalance("on_revoke", [P]))
    assert (group.client.watermarks, group.store.partitions) == ([(3, 9)], {})


def test_what_is_done_is_committed_before_a_partition_is_given_up(start):
    group = start(P, commit_interval=1000.0)
    group.feed(*records(0, 1))
    leases = group.claim()
    group.store.settle([success(leases[0])])
    group.feed(lambda: group.client.rebalance("on_revoke", [P]))
    assert group.client.commits == [{P: 1}]
    assert group.store.settle([success(leases[1])]) == [leases[1].id]
    assert [event.undone for event in group.seen(PartitionsRevoked)] == [1]


def test_outcomes_of_an_outage_are_settled_in_the_rebalance_that_ends_it(start):
    group = start(P, commit_interval=1000.0, revoke_timeout=60.0)
    group.store.state.require_available = group.consumer.connection.require
    group.feed(*records(0))
    outcomes = [success(lease) for lease in group.claim()]
    group.feed(group.consumer.connection.ask)
    with pytest.raises(StoreUnavailable):
        group.store.settle(outcomes)
    began = threading.Event()
    group.client.put(lambda: (began.set(), group.client.rebalance("on_revoke", [P])))
    assert began.wait(10)
    wait_for(lambda: _taken(group.store, outcomes), 10)
    group.client.wait()
    assert group.client.commits == [{P: 1}]


def _taken(store, outcomes):
    try:
        assert store.settle(outcomes) == []
    except StoreUnavailable as error:
        raise AssertionError(str(error)) from None


def test_failing_commits_are_no_problem_any_more_once_their_partitions_are_lost(start):
    group = start(P)
    group.client.commit_error = KafkaError(KafkaError.UNKNOWN_MEMBER_ID)
    group.feed(*records(0), end(1))
    group.client.wait()
    assert [problem.kind for problem in group.consumer.problems()] == ["commits"]
    group.feed(lambda: group.client.rebalance("on_lost", [P]))
    group.client.wait()
    assert group.consumer.problems() == []


def test_nothing_is_committed_of_a_lost_partition(start):
    group = start(P, commit_interval=1000.0)
    group.feed(*records(0))
    group.store.settle([success(lease) for lease in group.claim()])
    group.feed(lambda: group.client.rebalance("on_lost", [P]))
    assert (group.client.commits, group.store.partitions) == ([], {})


def test_a_partition_that_is_taken_and_given_again_while_a_batch_is_read_loses_nothing(start):
    """A message that was read before is of the earlier assignment: the new one begins at the committed offset."""
    group = start()
    group.client.committed_offsets[P] = (3, "")
    group.give(P)
    began, go_on = threading.Event(), threading.Event()
    group.client.put(lambda: (began.set(), go_on.wait(10)))
    assert began.wait(10)
    group.client.put(*records(7), lambda: group.client.rebalance("on_revoke", [P]), group.client.assign_partitions(P))
    go_on.set()
    group.client.wait()
    assert group.store.partitions[P].offsets.position == 3
    group.feed(*records(3, 7))
    assert len(group.claim()) == 2


def test_a_consumer_that_ends_by_an_error_leaves_the_group(start):
    """Others take over its partitions."""

    def fail():
        raise RuntimeError("a defect")

    group = start(P)
    group.client.put(fail)
    assert group.client.closed.wait(10)
    with pytest.raises(StoreBroken, match="a defect; restart the supervisor"):
        group.consumer.connection.require()


def test_a_supervisor_that_stops_commits_at_once_what_is_done(start):
    """However much still runs: the thread that settles waits for the consumer."""
    group = start(P, commit_interval=1000.0, revoke_timeout=1000.0)
    group.feed(*records(0, 1))
    leases = group.claim()
    group.store.settle([success(leases[0])])
    with group.store.transaction():
        assert group.consumer.stop(10)
    assert (group.client.commits, group.client.closed.is_set()) == ([{P: 1}], True)


def test_brokers_that_do_not_answer_are_awaited_and_reported_once(start, caplog):
    """A store that is left is closed next."""
    group = start(P)
    answers = threading.Event()
    group.client.put(lambda: answers.wait(10))
    assert not group.consumer.stop(0.001)
    assert not group.consumer.stop(3600.0), "the time has been up since the first call"
    assert caplog.text.count("records that are done may be run again") == 1
    answers.set()
    group.consumer._thread.join(10)
    assert group.consumer.stop(5)


def test_a_supervisor_that_stops_during_a_rebalance_commits_at_once_what_is_done(start):
    group = start(P, Q, commit_interval=1000.0, revoke_timeout=1000.0)
    group.feed(*records(0, 1), *records(0, name=Q))
    leases = group.claim()
    group.store.settle([success(leases[0])])
    group.client.put(lambda: group.client.rebalance("on_revoke", [P]))
    with group.store.transaction():
        assert group.consumer.stop(10)
    assert group.client.commits[0] == {P: 1}


def test_a_supervisor_waits_for_partitions_until_the_group_has_given_some(start):
    """`run --drain` would end before: a cooperative group gives a new member none at first."""
    group = start()
    assert not group.consumer.membership.joined
    group.give()
    assert not group.consumer.membership.joined
    group.give(P)
    assert group.consumer.membership.joined
    group.client.put(lambda: group.client.rebalance("on_revoke", [P]))
    group.client.wait()
    assert not group.consumer.membership.joined


def test_with_the_group_protocol_of_kafka_4_the_client_has_no_strategy_and_resets_one_partition(start):
    group = start(P, Q, kafka={"group.protocol": "consumer"})
    assert "partition.assignment.strategy" not in group.client.conf
    group.client.watermarks.append((40, 50))
    group.feed(refused())
    assert [name for name, _ in group.client.calls[-3:]] == ["incremental_unassign", "incremental_assign", "resume"]


def test_an_error_that_the_client_has_made_itself_is_no_answer_of_the_brokers(start):
    group = start(P)
    group.feed(group.consumer.connection.ask)
    assert not group.consumer.connection.answers
    group.feed(FakeMessage(*P, 0, KafkaError(KafkaError._TRANSPORT)))
    assert not group.consumer.connection.answers
    group.feed(*records(0))
    assert group.consumer.connection.answers
