"""The settings of a Kafka store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.config.kafka import BufferSettings, KafkaSettings
from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.jobs import Backoff

LEAST = "type: kafka, bootstrap: 'k1:9092', group: g, topics: {orders: handle_order}"


@pytest.fixture
def read(write: Any) -> Any:
    def read(keys: str = "", rest: str = "", environ: dict[str, str] | None = None) -> Settings:
        return load(write(f"store: {{{LEAST}{keys and ', '}{keys}}}\n{rest}\n"), environ or {})

    return read


def kafka(settings: Settings) -> KafkaSettings:
    assert settings.store.kafka is not None
    return settings.store.kafka


def test_the_defaults(read: Any) -> None:
    settings = read()
    assert kafka(settings) == KafkaSettings(bootstrap="k1:9092", group="g", topics={"orders": "handle_order"})
    found = kafka(settings)
    assert (found.handler_header, found.value, found.ordering) == ("handler", "json", "key")
    assert (found.buffer, found.commit_interval, found.revoke_timeout) == (BufferSettings(), 0.5, 10.0)
    assert (found.buffer.records, found.buffer.size, found.kafka) == (10_000, 64_000_000, {})
    assert (settings.store.scheme, settings.store.shown) == ("kafka", "Kafka at k1:9092, group g")


def test_every_key(write: Any) -> None:
    text = """
store:
  type: kafka
  bootstrap: k1:9092, [::1]:9093
  group: billing
  topics: [orders, payments]
  handler_header: job
  value: bytes
  ordering: partition
  buffer: {records: 5, size: 1MB}
  commit_interval: 2s
  revoke_timeout: 1m
  kafka: {session.timeout.ms: 6000, client.id: 1a, linger.ms: '0.5', socket.keepalive.enable: true}
"""
    found = kafka(load(write(text), {}))
    assert found == KafkaSettings(
        bootstrap="k1:9092,[::1]:9093",
        group="billing",
        topics=["orders", "payments"],
        handler_header="job",
        value="bytes",
        ordering="partition",
        buffer={"records": 5, "size": "1MB"},
        commit_interval=2.0,
        revoke_timeout="1m",
        kafka={"session.timeout.ms": 6000, "client.id": "1a", "linger.ms": "0.5", "socket.keepalive.enable": True},
    )
    assert found.topics == {"orders": None, "payments": None}


def test_the_handler_of_a_topic_may_be_null(write: Any) -> None:
    path = write(f"store: {{{LEAST.replace('{orders: handle_order}', '{orders: handle_order, mixed: null}')}}}")
    assert kafka(load(path, {})).topics == {"orders": "handle_order", "mixed": None}


def test_other_stores_have_no_such_settings(write: Any) -> None:
    settings = load(write("store: {type: mine, topics: 7}"), {})
    assert settings.store.kafka is None
    assert settings.store.options == {"topics": 7}
    assert settings.dlq.sinks == ()


# --- mistakes


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ("ordering: sometimes", "ordering: expected key or partition or unordered, got sometimes"),
        ("value: avro", "value: expected json or text or bytes, got avro"),
        ("buffer: {records: 0}", "buffer.records: expected a whole number from 1 to 10000000, got 0"),
        ("commit_interval: 5", "commit_interval: expected a duration such as"),
        ("handler_header: ''", "handler_header: expected printable text"),
        ("toppics: [a]", "toppics: unknown key, did you mean 'topics'?"),
        ("sasl.password: sesame-0815", "sasl.password: unknown key; settings of librdkafka stand below store.kafka"),
        ("kafka: [a]", "kafka: expected a mapping with settings of librdkafka, such as"),
        (
            "kafka: {ssl: {ca.location: x}}",
            "kafka.ssl: expected the names of librdkafka, in one piece: ssl.ca.location",
        ),
        ("kafka: {client.id: null}", "kafka.client.id: expected text, a number, true or false, got null"),
        ("kafka: {debug: [a]}", "kafka.debug: expected text, a number, true or false"),
        ("kafka: {bootstrap.servers: h}", "kafka.bootstrap.servers: expected it as bootstrap beside kafka, got h"),
        ("kafka: {metadata.broker.list: h}", "kafka.metadata.broker.list: expected it as bootstrap beside kafka"),
        (
            "kafka: {session.timeout.ms: 6s}",
            "kafka.session.timeout.ms: expected a number without a unit (milliseconds, such as 6000)",
        ),
        ("kafka: {linger.ms: 5 ms}", "kafka.linger.ms: expected a number without a unit"),
        (
            "kafka: {fetch.max.bytes: 50MB}",
            "kafka.fetch.max.bytes: expected a number without a unit (bytes, such as 1000000)",
        ),
        ("kafka: {group.id: h}", "kafka.group.id: expected it as group beside kafka"),
        ("kafka: {enable.auto.commit: true}", "kafka.enable.auto.commit: expected no such key: an offset is committed"),
        ("kafka: {enable.auto.offset.store: true}", "kafka.enable.auto.offset.store: expected no such key"),
        ("kafka: {enable.partition.eof: true}", "kafka.enable.partition.eof: expected no such key"),
        ("kafka: {acks: 1}", "kafka.acks: expected no such key: a dead letter needs the acknowledgement"),
        ("kafka: {error_cb: f}", "kafka.error_cb: expected no such key: it takes no plain value"),
        ("kafka: {on_commit: f}", "kafka.on_commit: expected no such key: it takes no plain value"),
    ],
)
def test_a_mistake_is_named_with_its_key(errors: Any, keys: str, error: str) -> None:
    (found,) = errors(f"store: {{{LEAST}, {keys}}}")
    assert found.startswith(f"supervisor.yaml:1: store.{error}")
    assert "sesame" not in found


@pytest.mark.parametrize(
    ("topics", "error"),
    [
        ("{}", "topics: expected 1 to 511 topics"),
        ("orders", "topics: expected a mapping of topics to handlers, or a list of topics, got orders"),
        (
            "{a b: h}",
            "topics.a b: expected the name of a topic: 1 to 249 of the characters a-z, A-Z, 0-9, ., - and _, got h",
        ),
        ("['^orders-.*']", "topics[0]: expected the name of a topic"),
        ("[..]", "topics[0]: expected the name of a topic"),
        (f"[{'x' * 250}]", "topics[0]: expected the name of a topic"),
        ("[a, b, a]", "topics[2]: expected each topic once, got a"),
        ("{a: ' h'}", "topics.a: expected a name of 1 to 255 printable characters"),
        ("{a: [h]}", "topics.a: expected a name of 1 to 255 printable characters"),
        (f"[{', '.join(f't{n}' for n in range(512))}]", "topics: expected 1 to 511 topics"),
    ],
)
def test_a_mistake_in_the_topics_is_named_with_its_topic(errors: Any, topics: str, error: str) -> None:
    (found,) = errors(f"store: {{type: kafka, bootstrap: 'k:1', group: g, topics: {topics}}}")
    assert found.startswith(f"supervisor.yaml:1: store.{error}")


@pytest.mark.parametrize(
    "servers", ["k1", "k1:0", "k1:65536", "k1:9092,", "http://k1:9092", "k1:9092 k2:9092", ":9092"]
)
def test_the_brokers_are_hosts_and_ports(errors: Any, servers: str) -> None:
    (found,) = errors(f"store: {{type: kafka, bootstrap: '{servers}', group: g, topics: [a]}}")
    assert found.startswith(
        "supervisor.yaml:1: store.bootstrap: expected host:port of one broker or more, separated by"
    )


def test_all_that_is_missing_is_named_at_once(errors: Any) -> None:
    assert [error.partition(";")[0] for error in errors("store: {type: kafka}")] == [
        "supervisor.yaml:1: store.bootstrap: missing",
        "supervisor.yaml:1: store.group: missing",
        "supervisor.yaml:1: store.topics: missing",
    ]


def test_a_url_is_no_way_to_a_kafka_store(errors: Any) -> None:
    (found,) = errors("store: kafka://k1:9092/orders")
    assert (
        found
        == "supervisor.yaml:1: store: expected no URL for Kafka, but a mapping with type: kafka, bootstrap, group and topics"
    )
    assert "expected either url or type, not both" in errors(f"store: {{url: 'sqlite:///a.db', {LEAST}}}")[0]


# --- secrets


def test_secrets_of_librdkafka_are_found_by_their_names(read: Any) -> None:
    keys = "kafka: {sasl.password: 'sesame-0815', ssl.key.pem: '-----BEGIN', sasl.username: ann, sasl.mechanism: PLAIN}"
    assert read(keys).secrets == {"sesame-0815", "-----BEGIN"}


@pytest.mark.parametrize("keys", ["kafka: {sasl.password: 12345}", "kafka: {sasl.password: '${PASSWORD}', debug: [x]}"])
def test_a_secret_is_not_shown_in_a_mistake(write: Any, keys: str) -> None:
    from supervisor.errors import ConfigError

    with pytest.raises(ConfigError) as raised:
        load(write(f"store: {{{LEAST}, {keys}}}"), {"PASSWORD": "12345"})
    assert "12345" not in str(raised.value)
    assert "12345" in raised.value.settings.secrets


def test_a_variable_is_a_secret_only_under_the_name_of_one(read: Any) -> None:
    environ = {"HOST": "worker-17", "PASSWORD": "sesame-0815"}
    keys = "kafka: {client.id: '${HOST}', group.instance.id: '${HOST}', sasl.password: '${PASSWORD}'}"
    assert read(keys, environ=environ).secrets == {"sesame-0815"}


def test_a_url_of_librdkafka_may_have_a_password(read: Any) -> None:
    assert "sesame-0815" in read("kafka: {sasl.oauthbearer.token.endpoint.url: 'https://u:sesame-0815@h/'}").secrets


def test_secrets_of_a_sink_for_kafka_are_found_too(write: Any) -> None:
    text = """
dlq:
  sinks:
    - {type: kafka, topic: dead, bootstrap: '${BROKER}', kafka: {sasl.password: '${PASSWORD}', client.id: '${HOST}'}}
"""
    environ = {"BROKER": "k1.example:9092", "PASSWORD": "sesame-0815", "HOST": "worker-17"}
    assert load(write(text), environ).secrets == {"sesame-0815"}


# --- what follows from them


def test_dead_letters_go_to_a_topic(read: Any) -> None:
    settings = read("kafka: {client.id: me}", "dlq: {topic_suffix: -dead, sinks: [{type: file, path: d}]}")
    first, sink = settings.dlq.sinks
    assert first.type == "file"
    assert (sink.type, sink.name, sink.key) == ("kafka", "dead-letter topic", "dlq.topic_suffix")
    assert sink.options == {"bootstrap": "k1:9092", "topic_suffix": "-dead", "kafka": {"client.id": "me"}}
    assert settings.dlq.active
    assert settings.dlq.names == {"file", "dead-letter topic"}


def test_without_dead_letters_there_is_no_sink_for_them(read: Any) -> None:
    assert read("", "dlq: {enabled: false}").dlq.sinks == ()


def test_the_suffix_makes_names_of_topics(errors: Any, write: Any) -> None:
    (found,) = errors("dlq: {topic_suffix: ' dlq'}")
    assert (
        found
        == "supervisor.yaml:1: dlq.topic_suffix: expected characters out of a-z, A-Z, 0-9, ., - and _, such as .dlq, got  dlq"
    )


def test_the_defaults_of_retries_and_unknown_handlers_are_those_of_this_store(read: Any) -> None:
    settings = read()
    assert settings.policy("h", "orders", {}).backoff == Backoff(1.0, 2.0, 30.0, 0.2)
    assert (settings.retry.max_retries, settings.unknown_handler.grace) == (3, 30.0)


def test_what_is_written_goes_before_the_defaults_of_this_store(read: Any) -> None:
    settings = read("", "retry: {max_retries: 1, backoff: {base: 2s, max: 5s}}\nunknown_handler: {grace: 5m}")
    assert settings.retry.backoff.curve == Backoff(2.0, 2.0, 5.0, 0.2)
    assert (settings.retry.max_retries, settings.unknown_handler.grace) == (1, 300.0)


def test_files_of_librdkafka_are_relative_to_the_config(read: Any, tmp_path: Path) -> None:
    found = kafka(read("kafka: {ssl.ca.location: ca.pem, ssl.key.location: /etc/key.pem}")).kafka
    assert found == {"ssl.ca.location": f"{tmp_path}/ca.pem", "ssl.key.location": "/etc/key.pem"}
    assert kafka(read("kafka: {ssl.ca.location: probe}")).kafka == {"ssl.ca.location": "probe"}


def test_a_sink_for_kafka_has_the_same_rules(write: Any, errors: Any, tmp_path: Path) -> None:
    text = "dlq: {sinks: [{type: kafka, topic: dead, bootstrap: 'k:1', kafka: {%s}}]}"
    (sink,) = load(write(text % "ssl.ca.location: ca.pem"), {}).dlq.sinks
    assert sink.options["kafka"] == {"ssl.ca.location": f"{tmp_path}/ca.pem"}
    (found,) = errors(text % "acks: 1")
    assert found.startswith("supervisor.yaml:1: dlq.sinks[0].kafka.acks: expected no such key")
