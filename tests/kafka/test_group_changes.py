"""Members of the group that come, go and are lost while jobs run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError

from supervisor.config.kafka import KafkaSettings
from supervisor.jobs import Lease, Policy
from supervisor.stores.kafka.store import KafkaStore
from supervisor.stores.records import ClaimRequest
from tests.kafka.mock_cluster import MockCluster
from tests.kafka.supervised import QUICK, Elsewhere, Supervised
from tests.stores.factories import success, take
from tests.system.command import wait_for


@contextmanager
def never_going_back(supervised: Supervised) -> Iterator[None]:
    """Fail if a committed offset goes down meanwhile."""
    ended = threading.Event()
    wrong: list[tuple[dict[int, int], dict[int, int]]] = []

    def look() -> None:
        last: dict[int, int] = {}
        while not ended.wait(0.1):
            committed = supervised.committed()
            wrong.extend((last, committed) for number, offset in last.items() if committed[number] < offset)
            last = committed

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not wrong, f"committed offsets went back: {wrong}"


def of_partitions(supervised: Supervised, partitions: int, **config: object) -> None:
    """Give it a topic with so many partitions, which the members share."""
    supervised.topic += f"-{partitions}"
    supervised.broker.create_topic(supervised.topic, partitions)
    supervised.write(**config)  # type: ignore[arg-type]


def test_a_job_longer_than_max_poll_interval_runs_once(supervised: Supervised) -> None:
    of_partitions(
        supervised, 2, kafka={"max.poll.interval.ms": 6000}, store={"revoke_timeout": "1s", "buffer": {"records": 2}}
    )
    supervised.run()
    owner = supervised.owner(0)
    supervised.run()
    supervised.until_moved(owner)
    before = supervised.broker.end_offsets(supervised.topic)
    for partition in (0, 1):
        supervised.produce({"seconds": 8}, *[None] * 3, partition=partition)
    for partition in (0, 1):
        supervised.until_committed(before[partition] + 4, partition)
        assert not supervised.run_again(partition)


def test_an_outcome_of_a_partition_that_moved_commits_nothing(supervised: Supervised) -> None:
    of_partitions(supervised, 2, store={"revoke_timeout": "100ms"})
    first = supervised.run()
    owner = supervised.owner(0)
    for partition in (0, 1):
        supervised.produce({"files": "run-{}"}, partition=partition)
    supervised.until_started(1, partition=0)
    supervised.until_started(0, partition=1)
    supervised.release("run-2")
    with never_going_back(supervised):
        second = supervised.run()
        moved = supervised.until_moved(owner)
        end = supervised.broker.end_offsets(supervised.topic)[moved]
        supervised.until_committed(end, moved)
        supervised.release("run-1")
        supervised.produce(None, partition=moved)
        supervised.until_committed(end + 1, moved)
        supervised.until_committed(supervised.broker.end_offsets(supervised.topic)[1 - moved], 1 - moved)
        for run in (first, second):
            run.signal(signal.SIGTERM)
            assert run.wait() == 0


def test_a_token_of_an_earlier_assignment_settles_nothing(mock_cluster: MockCluster, topic: str, group: str) -> None:
    mock_cluster.first_join_delay(100)
    mock_cluster.create_topic(topic)
    settings = KafkaSettings(bootstrap=mock_cluster.bootstrap, group=group, topics={topic: "work"}, kafka=QUICK)
    store = KafkaStore(settings)

    def claim() -> Lease:
        store.look(None, 0)
        claimed = store.claim([ClaimRequest(topic, 1, 0, 0, 0)], 60.0, lambda *_: Policy())
        assert claimed
        return claimed[0]

    try:
        store.join("us", "here", 1)
        Elsewhere(mock_cluster.bootstrap).produce(topic, [(b"k", b"1", ())])
        old = wait_for(claim, 30.0)
        mock_cluster.inject("Heartbeat", [KafkaError.UNKNOWN_MEMBER_ID])
        new = wait_for(claim, 30.0)
        assert old.id == new.id
        assert store.settle([success(old)]) == [old.id]
        assert store.settle([success(new)]) == []
    finally:
        store.leave()
        store.close()


def test_a_paused_partition_is_read_on_after_it_was_lost(mocked: Supervised, mock_cluster: MockCluster) -> None:
    mocked.write(store={"buffer": {"records": 2}}, workers={"count": 2})
    mocked.produce(None)
    mocked.run()
    mocked.until_committed(1)
    mocked.produce(*[{"files": "run-{}"}] * 10)
    wait_for(lambda: len(mocked.starts()) == 3)
    mocked.release("run-2")
    mock_cluster.inject("Heartbeat", [KafkaError.UNKNOWN_MEMBER_ID])
    wait_for(lambda: 2 in mocked.starts().values(), 30.0)
    mocked.release("run-1")
    mocked.until_committed(11)


def test_a_partition_that_comes_back_is_committed_where_the_other_member_was(supervised: Supervised) -> None:
    of_partitions(supervised, 2, kafka={"fetch.wait.max.ms": 1000})  # it is asked to commit before it knows the end
    first = supervised.run()
    owner = supervised.owner(0)
    supervised.owner(1)
    with never_going_back(supervised):
        second = supervised.run()
        moved = supervised.until_moved(owner)
        end = supervised.broker.end_offsets(supervised.topic)[moved]
        supervised.until_committed(end, moved)
        second.signal(signal.SIGTERM)
        assert second.wait() == 0
        assigned = f"partitions assigned: {supervised.topic}/{moved}\n"
        wait_for(lambda: assigned in first.log, 30.0)
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
    assert supervised.committed()[moved] == end


def test_a_group_that_grows_and_shrinks_while_long_jobs_run_settles(supervised: Supervised) -> None:
    of_partitions(supervised, 3, store={"revoke_timeout": "1s"}, shutdown={"grace": "1s"})
    first = supervised.run()
    owner = supervised.owner(0)
    with never_going_back(supervised):
        for partition in range(3):
            supervised.produce({"files": "never"}, partition=partition)
        others = [supervised.run(), supervised.run()]
        supervised.until_owners(3)
        for run in others:
            run.signal(signal.SIGTERM)
            assert run.wait() == 0
        supervised.until_owned(owner, owner, owner)
        first.signal(signal.SIGTERM)
        assert first.wait() == 0


def test_the_brokers_may_assign_the_partitions(mock_cluster: MockCluster, topic: str, group: str) -> None:
    """With the consumer protocol of Kafka 4, for which the client refuses a strategy of assignment."""
    mock_cluster.create_topic(topic, 2)
    broker = Elsewhere(mock_cluster.bootstrap)
    for partition in range(2):
        broker.produce(topic, [(None, b"{}", ())] * 3, partition=partition)
    settings = KafkaSettings(
        bootstrap=mock_cluster.bootstrap, group=group, topics={topic: "work"}, kafka={"group.protocol": "consumer"}
    )
    store = KafkaStore(settings)
    store.join("one", "host", 4711)
    store.look(None, 1)
    leases: list[Lease] = []

    def all_read() -> None:
        leases.extend(take(store, 10, queue=topic))
        assert len(leases) == 6

    wait_for(all_read, 30.0)
    store.settle([success(lease) for lease in leases])
    store.leave()
    store.close()
    assert {number: offset for number, (offset, _) in broker.committed(group, topic).items()} == {0: 3, 1: 3}
