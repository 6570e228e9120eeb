"""The mock cluster and its injected errors."""

from __future__ import annotations

import pytest

from tests.kafka.mock_cluster import MockCluster


def test_a_commit_keeps_its_metadata_and_takes_injected_errors(mock_cluster: MockCluster) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    mock_cluster.create_topic("t", 2)
    mock_cluster.count_requests()
    consumer = Consumer({"bootstrap.servers": mock_cluster.bootstrap, "group.id": "g"})
    mock_cluster.inject("OffsetCommit", [KafkaError.OFFSET_METADATA_TOO_LARGE])
    with pytest.raises(KafkaException, match="metadata string too large"):
        consumer.commit(offsets=[TopicPartition("t", 1, 5, "lost")], asynchronous=False)
    consumer.commit(offsets=[TopicPartition("t", 1, 6, "kept")], asynchronous=False)
    [found] = consumer.committed([TopicPartition("t", 1)], 10)
    consumer.close()
    assert (found.offset, found.metadata) == (6, "kept")
    assert mock_cluster.requests().count("OffsetCommit") == 2


def test_a_broker_that_is_down_and_up_again_keeps_its_data(mock_cluster: MockCluster) -> None:
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import AdminClient

    mock_cluster.create_topic("t")
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100})
    producer.produce("t", b"v")
    assert producer.flush(10) == 0
    mock_cluster.set_down()
    admin = AdminClient({"bootstrap.servers": mock_cluster.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.1)
    mock_cluster.set_up()
    assert list(admin.list_topics(timeout=10).topics) == ["t"]
