"""The sink of type kafka: on librdkafka's mock cluster for errors, and on a real broker."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from supervisor.config.loading import load
from supervisor.dead_letters.kafka_headers import MAX_REASON
from supervisor.dead_letters.kafka_sink import KafkaSink
from supervisor.dead_letters.opening import BuiltInSinks, SinkBuilder, close_sinks
from supervisor.errors import NotAccepted
from supervisor.kafka import client as kafka_client
from supervisor.plugins.manager import PluginManager
from tests.docs.pages import blocks
from tests.kafka.broker import Broker
from tests.kafka.mock_cluster import MockCluster, read

HEADERS = [
    ("null", None), ("bytes", b"\xff\x00"), ("empty", b""), ("twice", b"1"), ("twice", b"2"), ("größe", b"g"),
    ("large", b"x" * 100_000), ("offset", b"their own"),
]  # fmt: skip


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


def encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def dead_letter(
    id: int, key: bytes | None = b"k", value: bytes | None = b"v", headers: Sequence[Any] = (), message: str = "no",
    topic: str = "orders", **more: Any,
) -> Mapping[str, Any]:  # fmt: skip
    """A dead letter of a Kafka store."""
    record = {
        "topic": topic, "partition": 3, "offset": 40 + id, "epoch": 2, "timestamp": 1_700_000_000_000,
        "key": encoded(key), "value": encoded(value), "headers": [[name, encoded(part)] for name, part in headers],
    }  # fmt: skip
    return {**of_other_store(id, message), "record": record, **more}


def of_other_store(id: int, message: str = "no") -> dict[str, Any]:
    failure = {"attempt": 4, "cause": "error", "type": "ValueError", "message": message, "at": "2026-11-30T00:00:00Z"}
    return {"id": id, "handler": "mail", "queue": "post", "payload": {"a": 1}, "attempt": 4, "errors": [failure]}


def test_key_value_and_headers_stay_as_they_were_and_ours_follow(broker: Broker, topic: str) -> None:
    broker.create_topic(f"{topic}.dlq")
    sink = KafkaSink(broker.bootstrap, topic_suffix=".dlq")
    assert list(sink.publish([dead_letter(1, b"\x80", b"\xff\x00{", HEADERS, topic=topic)])) == [1]
    (message,) = broker.read(f"{topic}.dlq")
    assert (message.key(), message.value()) == (b"\x80", b"\xff\x00{")
    assert message.headers() == [
        *HEADERS,
        ("x-error-reason", b"error: ValueError: no"),
        ("x-retry-attempt", b"4"),
        ("source-topic", topic.encode()),
        ("partition", b"3"),
        ("offset", b"41"),
        ("epoch", b"2"),
    ]
    sink.close()


def test_a_tombstone_and_an_empty_value_are_not_the_same(broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    sink = KafkaSink(broker.bootstrap, topic)
    sink.publish([dead_letter(1, None, None), dead_letter(2, b"", b"")])
    assert [(message.key(), message.value()) for message in broker.read(topic)] == [(None, None), (b"", b"")]
    sink.close()


def test_a_dead_letter_of_another_store_is_the_json_of_its_job(broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    sink = KafkaSink(broker.bootstrap, topic)
    job = of_other_store(7)
    assert list(sink.publish([job])) == [7]
    (message,) = broker.read(topic)
    assert (message.key(), json.loads(message.value())) == (b"7", job)
    assert message.headers() == [("x-error-reason", b"error: ValueError: no"), ("x-retry-attempt", b"4")]
    sink.close()


def test_a_reason_is_one_line_of_some_kilobytes(broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    sink = KafkaSink(broker.bootstrap, topic)
    sink.publish([dead_letter(1, message="line\n  line\n" + "ä" * 20_000), dead_letter(2, message="\ud800")])
    first, second = (dict(message.headers())["x-error-reason"] for message in broker.read(topic))
    assert len(first) <= MAX_REASON and first.decode().startswith("error: ValueError: line line ä")
    assert second == b"error: ValueError: \\ud800"
    sink.close()


def test_no_id_is_accepted_before_the_broker_has_acknowledged_it(
    own_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_broker.create_topic(topic)
    sink = KafkaSink(own_broker.bootstrap, topic)
    assert list(sink.publish([dead_letter(1)])) == [1]
    own_broker.freeze()
    monkeypatch.setattr("supervisor.dead_letters.kafka_sink.SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(NotAccepted) as raised:
        sink.publish([dead_letter(2), dead_letter(3)])
    assert time.monotonic() - began < 10
    assert raised.value.refused.keys() == {2, 3} and not raised.value.accepted
    own_broker.thaw()
    assert list(sink.publish([dead_letter(4)])) == [4]
    assert {41, 44} <= {int(dict(message.headers())["offset"]) for message in own_broker.read(topic)}
    sink.close()


def test_a_broker_that_restarts_is_published_to_again(own_broker: Broker, topic: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(kafka_client, "DOWN_FOR", 0.5)
    sink = KafkaSink(own_broker.bootstrap, topic)
    own_broker.kill()
    with pytest.raises(NotAccepted) as raised:
        sink.publish([dead_letter(1)])
    assert own_broker.bootstrap in raised.value.refused[1] and "no broker has answered" in raised.value.refused[1]
    own_broker.start()
    own_broker.create_topic(topic)
    assert list(sink.publish([dead_letter(1)])) == [1]
    assert [message.key() for message in own_broker.read(topic)] == [b"k"]
    sink.close()


def test_only_those_of_a_topic_that_refuses_are_refused(cluster: MockCluster) -> None:
    cluster.create_topic("good.dlq")
    cluster.create_topic("bad.dlq")
    cluster.fail_topic("bad.dlq", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    sink = KafkaSink(cluster.bootstrap, topic_suffix=".dlq")
    with pytest.raises(NotAccepted) as raised:
        sink.publish([dead_letter(1, topic="good"), dead_letter(2, topic="bad"), dead_letter(3, topic="good")])
    assert raised.value.accepted == {1, 3}
    assert "topic bad.dlq: the user of this client has no right to this topic" in raised.value.refused[2]
    assert len(read(cluster.bootstrap, "good.dlq", 2)) == 2
    cluster.fail_topic("bad.dlq", 0)
    assert list(sink.publish([dead_letter(2, topic="bad")])) == [2], "it is published once the right is granted"


def test_a_topic_that_is_missing_is_named(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "TOPIC_TIMEOUT", 0.5)
    cluster.create_topic("orders.dlq")
    cluster.fail_topic("orders.dlq", KafkaError.UNKNOWN_TOPIC_OR_PART)
    sink = KafkaSink(cluster.bootstrap, topic_suffix=".dlq")
    with pytest.raises(NotAccepted, match=r"topic orders\.dlq: the topic does not exist; create it"):
        sink.publish([dead_letter(1)])
    cluster.fail_topic("orders.dlq", 0)
    assert list(sink.publish([dead_letter(1)])) == [1], "it is published once the topic is there"


def test_of_a_record_that_is_too_large_a_reference_is_published(cluster: MockCluster) -> None:
    cluster.create_topic("d")
    sink = KafkaSink(cluster.bootstrap, "d", kafka={"message.max.bytes": 2000})
    large = dead_letter(1, value=b"x" * 5000, headers=[("a", b"\xff")])
    assert list(sink.publish([large, dead_letter(2), {**of_other_store(9), "payload": "x" * 5000}])) == [1, 2, 9]
    by_key = {dict(message.headers()).get("offset", b"job"): message for message in read(cluster.bootstrap, "d", 3)}
    reference = by_key[b"41"]
    assert json.loads(reference.value()) == {"topic": "orders", "partition": 3, "offset": 41}
    assert (reference.key(), reference.headers()[0]) == (b"k", ("a", b"\xff"))
    assert reference.headers()[-1] == ("x-value-reference", b"orders/3/41")
    assert by_key[b"42"].value() == b"v"
    assert json.loads(by_key[b"job"].value()) == {"queue": "post", "handler": "mail", "id": 9}
    assert by_key[b"job"].headers()[-1] == ("x-value-reference", b"post/mail/9")


def test_a_batch_that_the_broker_finds_too_large_costs_no_record_its_value(cluster: MockCluster) -> None:
    cluster.create_topic("d")
    sink = KafkaSink(cluster.bootstrap, "d")
    cluster.inject("Produce", [KafkaError.MSG_SIZE_TOO_LARGE, 0, KafkaError.MSG_SIZE_TOO_LARGE])
    assert list(sink.publish([dead_letter(1), dead_letter(2)])) == [1, 2]
    first, second = read(cluster.bootstrap, "d", 2)
    assert first.value() == b"v"
    assert json.loads(second.value())["offset"] == 42, "the broker has refused this one alone"


def test_one_that_can_not_be_made_a_record_holds_back_no_other(cluster: MockCluster) -> None:
    cluster.create_topic("d")
    sink = KafkaSink(cluster.bootstrap, "d")
    with pytest.raises(NotAccepted) as raised:
        sink.publish([{**of_other_store(1), "payload": object()}, dead_letter(2)])
    assert raised.value.accepted == {2} and "no record can be made of it" in raised.value.refused[1]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, "topic: expected the name of a topic"),
        ({"topic": "a", "topic_suffix": ".b"}, "topic: expected the name of a topic, without topic_suffix"),
        ({"topic": "a b"}, "topic: expected the name of a topic: 1 to 249"),
        ({"topic_suffix": "/"}, "topic_suffix: expected"),
        ({"topic": "a", "bootstrap": "host"}, "bootstrap: expected host:port"),
        ({"topic": "a", "kafka": {"acks": "1"}}, "kafka: acks: expected no such key"),
        ({"topic": "a", "kafka": {"no.such": "x", "sasl.password": "geheim-1"}}, "kafka: No such configuration"),
    ],
)
def test_a_key_that_can_not_be_used_is_named(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match="^" + problem.replace("(", r"\(")) as raised:
        KafkaSink(**{"bootstrap": "127.0.0.1:1", **keys})
    assert "geheim" not in str(raised.value)


def test_the_sink_of_the_pages_can_be_built(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("yaml") if "type: kafka" in block.text and "sinks:" in block.text)
    (tmp_path / "supervisor.yaml").write_text(block.text)
    settings = load(tmp_path / "supervisor.yaml", {"KAFKA_PASSWORD": "correct-horse"})
    builder = SinkBuilder(settings, manager := PluginManager())
    manager.register(BuiltInSinks(), BuiltInSinks.NAME)
    builder.build()
    assert builder.errors == [] and list(builder.sinks) == ["kafka"]
    assert "correct-horse" in settings.secrets
    close_sinks(builder.sinks.values())


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ValueError, match=r"pip install 'job-supervisor\[kafka\]'"):
        KafkaSink("127.0.0.1:1", "t")
