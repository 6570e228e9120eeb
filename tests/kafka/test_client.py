"""The publisher and the texts of errors, on librdkafka's mock cluster."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from supervisor.kafka import client as kafka_client
from supervisor.kafka.client import ClientLog, Publisher, Record, client_settings, headers_of
from supervisor.kafka.errors import ErrorTexts
from tests.kafka.mock_cluster import MockCluster, read
from tests.kafka.raw_producer import produce_with_header

MSG_SIZE_TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE
NOT_ENOUGH_REPLICAS = KafkaError.NOT_ENOUGH_REPLICAS
TOPIC_AUTHORIZATION_FAILED = KafkaError.TOPIC_AUTHORIZATION_FAILED
UNKNOWN_TOPIC_OR_PART = KafkaError.UNKNOWN_TOPIC_OR_PART
PASSWORD = "correct-horse-battery"
HEADERS = [("n", None), ("b", b"\xff\x00"), ("e", b""), ("e", b"again"), ("größe", b"1")]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


def unused_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def test_bytes_headers_and_nulls_are_published_unchanged(cluster: MockCluster) -> None:
    cluster.create_topic("t")
    publisher = Publisher(cluster.bootstrap, {})
    records = [Record("t", b"\xff", b"\x80", HEADERS), Record("t", None, None), Record("t", b"", b"")]
    assert publisher.publish(records) == {}
    first, second, third = read(cluster.bootstrap, "t", 3)
    assert (first.key(), first.value(), first.headers()) == (b"\xff", b"\x80", HEADERS)
    assert (second.key(), second.value(), second.headers()) == (None, None, None)
    assert (third.key(), third.value()) == (b"", b"")
    publisher.close()


def test_only_what_is_not_acknowledged_is_refused(cluster: MockCluster) -> None:
    cluster.create_topic("good")
    cluster.create_topic("denied")
    cluster.fail_topic("denied", TOPIC_AUTHORIZATION_FAILED)
    publisher = Publisher(cluster.bootstrap, {})
    refused = publisher.publish([Record("good", b"1", b"x"), Record("denied", b"2", b"x"), Record("good", b"3", b"x")])
    assert list(refused) == [1]
    assert f"{cluster.bootstrap}: topic denied: the user of this client has no right to this topic" in refused[1].text
    assert [message.key() for message in read(cluster.bootstrap, "good", 2)] == [b"1", b"3"]


def test_a_missing_topic_is_named_soon(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "TOPIC_TIMEOUT", 0.5)
    cluster.create_topic("gone")
    cluster.fail_topic("gone", UNKNOWN_TOPIC_OR_PART)
    refused = Publisher(cluster.bootstrap, {}).publish([Record("gone", None, b"x")])
    assert "topic gone: the topic does not exist; create it" in refused[0].text


def test_a_record_that_the_client_or_the_broker_refuses_by_its_size(cluster: MockCluster) -> None:
    cluster.create_topic("t")
    publisher = Publisher(cluster.bootstrap, {"message.max.bytes": 2000})
    refused = publisher.publish([Record("t", None, b"x" * 3000), Record("t", None, b"x")])
    assert refused.keys() == {0} and refused[0].too_large
    cluster.inject("Produce", [MSG_SIZE_TOO_LARGE])
    refused = publisher.publish([Record("t", None, b"y")])
    assert refused[0].too_large and "raise max.message.bytes" in refused[0].text


def test_an_error_that_passes_is_tried_again_by_the_client(cluster: MockCluster) -> None:
    cluster.create_topic("t")
    cluster.inject("Produce", [NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS])
    assert Publisher(cluster.bootstrap, {}).publish([Record("t", None, b"x")]) == {}


def test_without_a_broker_it_gives_up_soon_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "DOWN_FOR", 0.5)
    port = unused_port()
    publisher = Publisher(f"127.0.0.1:{port}", {"sasl.password": PASSWORD})
    began = time.monotonic()
    refused = publisher.publish([Record("t", None, b"x")])
    assert time.monotonic() - began < 5
    assert refused[0].text.startswith(f"127.0.0.1:{port}: topic t: no broker has answered")
    assert "check the addresses in bootstrap" in refused[0].text


def test_a_broker_that_does_not_answer_is_given_up_at_the_timeout(cluster: MockCluster) -> None:
    cluster.create_topic("t")
    publisher = Publisher(cluster.bootstrap, {}, timeout=2.0)
    assert publisher.publish([Record("t", None, b"before")]) == {}
    cluster.delay(60_000)
    began = time.monotonic()
    refused = publisher.publish([Record("t", None, b"lost"), Record("t", None, b"lost too")])
    assert time.monotonic() - began < 6
    assert refused.keys() == {0, 1} and "no broker has answered" in refused[0].text
    cluster.delay(0)
    assert publisher.publish([Record("t", None, b"after")]) == {}


def test_a_stopped_broker_is_found_again(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "DOWN_FOR", 0.3)
    cluster.create_topic("t")
    publisher = Publisher(cluster.bootstrap, {}, timeout=5.0)
    assert publisher.publish([Record("t", None, b"1")]) == {}
    cluster.set_down()
    assert publisher.publish([Record("t", None, b"2")]).keys() == {0}
    cluster.set_up()
    assert publisher.publish([Record("t", None, b"3")]) == {}


@pytest.mark.parametrize(
    ("kafka", "text"),
    [
        ({"no.such.key": "1"}, 'No such configuration property: "no.such.key"'),
        ({"linger.ms": "soon"}, "queue.buffering.max.ms"),
        ({"message.timeout.ms": "soon"}, "message.timeout.ms"),
        ({"ssl.ca.location": "/no/such/file", "security.protocol": "ssl"}, "ssl.ca.location failed"),
    ],
)
def test_a_wrong_setting_is_named_at_once_without_secrets(kafka: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="kafka: ") as raised:
        Publisher("127.0.0.1:1", {"sasl.password": PASSWORD, **kafka})
    assert text in str(raised.value) and PASSWORD not in str(raised.value)


def test_acks_and_the_timeout_are_ours_and_a_shorter_timeout_is_theirs(cluster: MockCluster) -> None:
    cluster.create_topic("t")
    publisher = Publisher(cluster.bootstrap, {"acks": 0, "delivery.timeout.ms": 3_600_000})
    cluster.inject("Produce", [TOPIC_AUTHORIZATION_FAILED])  # without acks, no answer is waited for
    assert publisher.publish([Record("t", None, b"x")]).keys() == {0}
    assert publisher.settings["message.timeout.ms"] == 20_000
    assert Publisher(cluster.bootstrap, {"message.timeout.ms": "500"}).settings["message.timeout.ms"] == 500


def test_the_settings_of_the_user_override_ours() -> None:
    settings = client_settings("a:1,b:2", {"client.id": "mine", "sasl.password": PASSWORD})
    assert settings["bootstrap.servers"] == "a:1,b:2"
    assert settings["client.id"] == "mine"
    assert client_settings("a:1", {})["client.id"].startswith("supervisor-")


def test_no_text_has_a_secret() -> None:
    texts = ErrorTexts("a:1", {"sasl.password": PASSWORD, "ssl.key.pem": "-----BEGIN"})
    error = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, f"{PASSWORD} is wrong")
    assert texts.of(error).startswith("a:1: the brokers refuse the login")
    assert PASSWORD not in texts.of(error)
    down = KafkaError(KafkaError._MSG_TIMED_OUT)
    assert texts.of(down, "t", error) == texts.of(error, "t"), "the cause is why no broker has answered"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (
            KafkaError.INCONSISTENT_GROUP_PROTOCOL,
            "other members of the group have another partition.assignment.strategy",
        ),
        (KafkaError.INVALID_SESSION_TIMEOUT, "the brokers do not allow this session.timeout.ms"),
        (KafkaError.GROUP_MAX_SIZE_REACHED, "the group has as many members as the brokers allow"),
        (KafkaError.FENCED_INSTANCE_ID, "another member of the group has the same group.instance.id"),
    ],
)
def test_a_group_that_refuses_a_member_is_explained(code: int, remedy: str) -> None:
    assert ErrorTexts("a:1", {}).of(KafkaError(code)).startswith(f"a:1: {remedy}")


def test_a_repeated_line_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog(ErrorTexts("a:1", {"sasl.password": PASSWORD}))
    with caplog.at_level(logging.INFO, logger="supervisor"):
        for waited in (0, 1, 2):
            log.log(
                logging.ERROR, "", "FAIL", "x#producer-1", f"[thrd:a]: a:1: {PASSWORD} (after {waited}ms in state UP)"
            )
        log.log(logging.WARNING, "", "CONFWARN", "x#producer-1", "a is a consumer property and will be ignored by this")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "kafka: producer-1: a:1: ***")
    ]


def test_headers_that_can_not_be_read_crash_nothing_once_the_code_is_warm(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("t")
    for name in [b"a"] * 30 + [b"\xff"] * 5:
        produce_with_header(mock_cluster.bootstrap, "t", b"1", name)
    consumer = Consumer({"bootstrap.servers": mock_cluster.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[object] = []
    while len(found) < 35:
        found += [headers_of(message) for message in consumer.consume(35, 1)]
    consumer.close()
    assert [headers is None for headers in found] == [False] * 30 + [True] * 5
