"""Eager rebalances, static members, drains and reloads of a group."""

from __future__ import annotations

import signal

from confluent_kafka import KafkaError

from tests.kafka.mock_cluster import MockCluster
from tests.kafka.supervised import Supervised
from tests.kafka.test_group_changes import never_going_back, of_partitions
from tests.system.test_http import served
from tests.system.test_readiness import refused


def test_an_eager_group_commits_what_is_done_before_all_partitions_are_given_again(supervised: Supervised) -> None:
    of_partitions(supervised, 2, kafka={"partition.assignment.strategy": "range"}, store={"commit_interval": "1h"})
    first = supervised.run()
    owner = supervised.owner(0)
    for partition in (0, 1):
        supervised.produce(*[None] * 50, partition=partition)
        supervised.until_ended(*range(50), partition=partition)
    with never_going_back(supervised):
        second = supervised.run()
        supervised.until_moved(owner)
        for run in (first, second):
            run.signal(signal.SIGTERM)
            assert run.wait() == 0
    assert supervised.committed() == supervised.broker.end_offsets(supervised.topic)
    assert not supervised.run_again(0) and not supervised.run_again(1)


def test_a_static_member_that_another_has_replaced_starts_no_further_job(
    mocked: Supervised, mock_cluster: MockCluster
) -> None:
    mocked.write(kafka={"group.instance.id": "one"}, http={"listen": "127.0.0.1:0"})
    run = mocked.run()
    mocked.produce(None)
    mocked.until_committed(1)
    mock_cluster.inject("Heartbeat", [KafkaError.FENCED_INSTANCE_ID])
    assert "restart the supervisor" in refused(served(mocked.command, run), "store")
    mocked.produce(None)
    run.signal(signal.SIGTERM)
    run.wait()
    assert mocked.starts() == {0: 1}


def test_a_drain_runs_what_is_there_and_ends(supervised: Supervised) -> None:
    of_partitions(supervised, 2, store={"buffer": {"records": 10}})
    supervised.broker.create_topic(f"{supervised.topic}.dlq")
    for partition in (0, 1):
        supervised.produce(*[None] * 30, {"failures": 1}, {"failures": 9}, partition=partition)
    ended = supervised.command.call("run", "--drain")
    assert ended.code == 0 and "62 succeeded, 2 failed, 4 retried, 2 dead letters" in ended.out
    assert supervised.committed() == {0: 32, 1: 32}
    assert len(supervised.broker.read(f"{supervised.topic}.dlq")) == 2
    ended = supervised.command.call("run", "--drain")
    assert ended.code == 0 and "no jobs" in ended.out


def test_a_reload_names_the_settings_that_need_a_restart(supervised: Supervised) -> None:
    run = supervised.run()
    supervised.produce(None)
    supervised.until_committed(1)
    supervised.write(store={"topics": {supervised.topic: "work", "another": "work"}})
    run.signal(signal.SIGHUP)
    run.logged("a restart is needed for: store")
    supervised.produce(None)
    supervised.until_committed(2)
    supervised.write(kafka={"session.timeout.ms": 7000}, workers={"count": 2})
    run.signal(signal.SIGHUP)
    run.logged("workers.count: 2")
    supervised.produce(None)
    supervised.until_committed(3)
