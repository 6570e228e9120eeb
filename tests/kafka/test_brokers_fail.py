"""Brokers that are down, hang, or refuse: what is said, what goes on meanwhile, and that it ends by itself."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError

from supervisor.threads import start_thread
from tests.kafka.broker import Broker, unique_name
from tests.kafka.mock_cluster import MockCluster
from tests.kafka.supervised import PLUGIN, Elsewhere, Supervised
from tests.system.command import Command, wait_for
from tests.system.test_http import served
from tests.system.test_readiness import ready, reasons, refused

HTTP = {"listen": "127.0.0.1:0"}


def test_no_offset_passes_a_dead_letter_that_the_broker_has_not_taken(
    mocked: Supervised, mock_cluster: MockCluster
) -> None:
    dlq = f"{mocked.topic}.dlq"
    mock_cluster.create_topic(dlq)
    mock_cluster.fail_topic(dlq, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    mocked.write(http=HTTP)
    mocked.produce({"failures": 9}, *[None] * 5, key=None)
    run = mocked.run()
    mocked.until_done_beyond(0, (1, 6))
    mocked.produce(*[None] * 5)
    mocked.until_done_beyond(0, (1, 11))
    run.logged("the user of this client has no right to this topic")
    assert "has no right" in " ".join(reasons(served(mocked.command, run).ask("/readyz")).values())
    began = time.monotonic()
    run.signal(signal.SIGTERM)
    assert run.wait() == 0 and time.monotonic() - began < 10
    run = mocked.run()
    wait_for(lambda: mocked.starts()[0] == 4, 30.0)
    assert mocked.committed()[0] == 0
    mock_cluster.fail_topic(dlq, 0)
    mocked.until_committed(11, timeout=60.0)
    ready(served(mocked.command, run))
    [message] = mocked.broker.read(dlq)
    assert dict(message.headers())["offset"] == b"0"
    assert mocked.starts() == {0: 4, **dict.fromkeys(range(1, 11), 1)}


def test_a_commit_that_a_rebalance_refuses_is_made_afterwards(mocked: Supervised, mock_cluster: MockCluster) -> None:
    run = mocked.run()
    mocked.produce(None)
    mocked.until_committed(1)
    mock_cluster.inject("OffsetCommit", [KafkaError.REBALANCE_IN_PROGRESS] * 3)
    mocked.produce(None)
    mocked.until_committed(2)
    run.logged(f"offsets not committed of {mocked.topic}/0")
    run.logged("offsets are committed again")
    mock_cluster.inject("OffsetCommit", [KafkaError.REBALANCE_IN_PROGRESS])
    mocked.produce(None)
    mocked.until_committed(3)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_a_last_commit_that_a_rebalance_refuses_is_repeated(mocked: Supervised, mock_cluster: MockCluster) -> None:
    mocked.write(store={"commit_interval": "1h"})
    run = mocked.run()
    mocked.produce(None)
    mocked.until_ended(0)
    mock_cluster.inject("OffsetCommit", [KafkaError.REBALANCE_IN_PROGRESS] * 3)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert mocked.committed() == {0: 1}


def test_a_broker_that_is_down_at_the_start_is_named_and_its_return_is_noticed(
    command: Command, mock_cluster: MockCluster, topic: str, group: str
) -> None:
    mock_cluster.first_join_delay(100)
    mock_cluster.set_down()
    mocked = Supervised(command, Elsewhere(mock_cluster.bootstrap), topic, group)
    mocked.write(http=HTTP)
    run = command.run()
    run.logged("HTTP: ")
    run.logged(mock_cluster.bootstrap, timeout=10.0)
    mock_cluster.set_up()
    run.logged(f"no topic {topic}: create it", timeout=20.0)
    mock_cluster.create_topic(topic)
    mocked.produce(None)
    mocked.until_committed(1)
    site = served(command, run)
    ready(site)
    mock_cluster.set_down()
    assert mock_cluster.bootstrap in refused(site, "store", within=10.0)
    mock_cluster.set_up()
    ready(site)
    mocked.produce(None)
    mocked.until_committed(2)
    assert mocked.starts() == {0: 1, 1: 1}


@pytest.mark.parametrize("when", ["never up", "unknown topic", "down later"])
def test_a_supervisor_ends_in_time_without_its_brokers(
    command: Command, mock_cluster: MockCluster, topic: str, group: str, when: str
) -> None:
    mocked = Supervised(command, Elsewhere(mock_cluster.bootstrap), topic, group)
    mocked.write(store={"bootstrap": "127.0.0.1:1"} if when == "never up" else {}, shutdown={"grace": "1s"})
    if when == "down later":
        mock_cluster.first_join_delay(100)
        mock_cluster.create_topic(topic)
        mocked.produce({"files": "never"})
    run = command.run()
    if when == "down later":
        mocked.until_started(0)
        mock_cluster.set_down()
    run.logged(f"no topic {topic}" if when == "unknown topic" else "no broker has answered")
    began = time.monotonic()
    run.signal(signal.SIGTERM)
    run.wait(30.0)
    assert time.monotonic() - began < 10.0


def test_a_broker_that_hangs_is_noticed_and_nothing_is_lost(own_broker: Broker, command: Command) -> None:
    topic, group = unique_name("topic"), unique_name("group")
    own_broker.create_topic(topic)
    supervised = Supervised(command, own_broker, topic, group)
    supervised.write(http=HTTP)
    run = supervised.run()
    supervised.produce(None, {"files": "go"})
    supervised.until_started(1)
    own_broker.freeze()
    refused(served(command, run), "store", within=20.0)
    supervised.release("go")
    own_broker.thaw()
    supervised.until_committed(2)
    supervised.produce(None)
    supervised.until_committed(3)
    own_broker.freeze()
    began = time.monotonic()
    run.signal(signal.SIGTERM)
    run.wait(30.0)
    assert time.monotonic() - began < 15.0


def test_a_handler_with_a_kafka_client_of_its_own(supervised: Supervised) -> None:
    plugin = """
        import confluent_kafka
        from supervisor import handler

        @handler
        def work(job):
            producer = confluent_kafka.Producer({"bootstrap.servers": job.payload["bootstrap"]})
            producer.produce(job.payload["to"], str(job.headers["kafka.offset"]).encode())
            assert producer.flush(20) == 0
    """
    to = unique_name("topic")
    supervised.broker.create_topic(to)
    supervised.write(plugin=plugin, workers={"count": 2, "max_jobs": 3})
    supervised.produce(*[{"bootstrap": supervised.broker.bootstrap, "to": to}] * 60)
    run = supervised.run()
    supervised.until_committed(60)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert "worker" in run.log and "killed" not in run.log
    assert sorted(int(message.value()) for message in supervised.broker.read(to)) == list(range(60))


def test_a_tls_connection_that_fails_is_the_reason_at_the_start(command: Command) -> None:
    """The client reports the reason by a callback that is called only in a poll, and nobody polls before the start."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        start_thread(lambda: _answer_without_tls(server), "no-tls")
        store = {
            "type": "kafka", "bootstrap": f"127.0.0.1:{server.getsockname()[1]}", "group": "g", "topics": {"t": "work"},
            "kafka": {"security.protocol": "SSL"},
        }  # fmt: skip
        command.write(config=json.dumps({"store": store}), plugins={"work.py": PLUGIN})
        run = command.run()
        run.logged("ERROR store unavailable: ", 30.0)
        run.logged("security.protocol", 30.0)
        run.end()


def _answer_without_tls(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.sendall(b"no TLS here")
            connection.close()
