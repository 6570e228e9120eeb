"""The settings of a Kafka store, and of the client library librdkafka, which reads the mapping `kafka`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.config import types as kind
from supervisor.config.retries import BackoffSettings, RetrySettings
from supervisor.config.section import InvalidSection, One, Place, Section, reporting, setting
from supervisor.text.names import did_you_mean, did_you_mean_or_all
from supervisor.text.redaction import is_secret_name

KAFKA = "kafka"
"""The `type` of the store, and of the sink of its dead letters."""

DEAD_LETTER_TOPIC = "dead-letter topic"
"""The name of the sink that a Kafka store always has."""

MAX_TOPICS = 511
"""A job's id has the number of its topic in nine bits, from 1 on."""
MAX_TOPIC = 249
"""The characters of a topic's name, by Kafka's own rule."""

DEFAULT_RETRY = RetrySettings(backoff=BackoffSettings(base=1.0, jitter=0.2))
DEFAULT_GRACE = 30.0
"""The default of `unknown_handler.grace`: such a record holds back the offset of its partition."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")

_BESIDE = "expected it as {} beside kafka"
_REFUSED: Mapping[str, str] = {
    "bootstrap.servers": _BESIDE.format("bootstrap"),
    "metadata.broker.list": _BESIDE.format("bootstrap"),
    "group.id": _BESIDE.format("group"),
    "auto.commit.interval.ms": _BESIDE.format("commit_interval"),
    "enable.auto.commit": "expected no such key: an offset is committed once its record is done",
    "auto.commit.enable": "expected no such key: an offset is committed once its record is done",
    "enable.auto.offset.store": "expected no such key: an offset is committed once its record is done",
    "enable.partition.eof": "expected no such key: a supervisor always waits for further records",
    "transactional.id": "expected no such key: dead letters are not published in transactions",
    "acks": "expected no such key: a dead letter needs the acknowledgement of all in-sync replicas",
    "request.required.acks": "expected no such key: a dead letter needs the acknowledgement of all in-sync replicas",
}
_NUMBERS = {
    "ms": "milliseconds, such as 6000", "bytes": "bytes, such as 1000000", "kbytes": "kilobytes, such as 1000",
    "messages": "such as 1000",
}  # fmt: skip
"""The ends of keys of librdkafka that are numbers. It reads "6s" as 6, without an error."""
_NUMBER_AND_MORE = re.compile(r"[+-]?\d+(?!\.?\d*$).+")
_CALLBACKS = frozenset({"on_commit", "on_delivery", "logger", "default.topic.config"})


def refusal(key: str) -> str | None:
    """Return what was expected instead of this key of librdkafka, or None if a config may have it."""
    if key.endswith("_cb") or key in _CALLBACKS:
        return "expected no such key: it takes no plain value"
    return _REFUSED.get(key)


def is_topic(name: object) -> bool:
    """Return whether Kafka accepts `name` for a topic."""
    return isinstance(name, str) and len(name) <= MAX_TOPIC and name not in (".", "..") and bool(_TOPIC.fullmatch(name))


def topic(value: Any, place: Place | None) -> str:
    name = kind.text(value, place)
    if not is_topic(name):
        raise ValueError(f"expected the name of a topic: 1 to {MAX_TOPIC} of the characters a-z, A-Z, 0-9, ., - and _")
    return name


def topic_suffix(value: Any, place: Place | None) -> str:
    suffix = kind.text(value, place)
    if not is_topic(f"t{suffix}"):
        raise ValueError("expected characters out of a-z, A-Z, 0-9, ., - and _, such as .dlq")
    return suffix


def topics(value: Any, place: Place | None) -> Mapping[str, str | None]:
    """Return the handler of each topic, or None for the handler that each record names in a header."""
    if not isinstance(value, Mapping | list | tuple):
        raise ValueError("expected a mapping of topics to handlers, or a list of topics")
    if not 1 <= len(value) <= MAX_TOPICS:
        raise ValueError(f"expected 1 to {MAX_TOPICS} topics")
    found: dict[str, str | None] = {}
    pairs = value.items() if isinstance(value, Mapping) else ((name, None) for name in value)
    for index, (name, handler) in enumerate(pairs):
        with reporting(place and place.at(name if isinstance(value, Mapping) else index)):
            if topic(name, place) in found:
                raise ValueError("expected each topic once")
            found[name] = kind.optional(kind.queue_name)(handler, place)
    if len(found) < len(value):
        raise InvalidSection
    return found


def bootstrap(value: Any, place: Place | None) -> str:
    text = kind.text(value, place)
    servers = [_SERVER.fullmatch(server.strip()) for server in text.split(",")]
    if not all(server and 0 < int(server[1]) < 65_536 for server in servers):
        raise ValueError(
            "expected host:port of one broker or more, separated by commas, such as kafka1:9092,kafka2:9092"
        )
    return ",".join(server[0] for server in servers if server)


def client_settings(value: Any, place: Place | None) -> Mapping[str, Any]:
    """Return settings of librdkafka, in which files of a config are relative to the folder of that config."""
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping with settings of librdkafka, such as security.protocol: SSL")
    wrong = {key: problem for key, part in value.items() if (problem := _client_problem(str(key), part))}
    for key, problem in wrong.items():
        if place is None:
            raise InvalidSection(f"{key}: {problem}")
        place.findings.wrong(place.at(key).path, problem, secret=is_secret_name(str(key)))
    if wrong:
        raise InvalidSection
    return {key: _located(key, part, place.base) if place else part for key, part in value.items()}


def _client_problem(key: str, value: Any) -> str | None:
    if problem := refusal(key):
        return problem
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key}.{part}" for part in list(value)[:2]) or f"{key}.name"
        return f"expected the names of librdkafka, in one piece: {inside}"
    if is_secret_name(key) and not (isinstance(value, str) and value):
        return "expected text; quote a value that YAML reads as a number or a boolean"
    if isinstance(value, str) and key.rpartition(".")[2] in _NUMBERS and _NUMBER_AND_MORE.fullmatch(value.strip()):
        return f"expected a number without a unit ({_NUMBERS[key.rpartition('.')[2]]}): the client would leave out what follows it"
    return None if isinstance(value, str | int | float) else "expected text, a number, true or false"


def _located(key: str, value: Any, base: Path) -> Any:
    is_file = key.endswith((".location", ".file")) and isinstance(value, str) and value != "probe"
    return str(base / value) if is_file else value


class BufferSettings(Section):
    """The most records, and the most bytes of them, that a supervisor holds in memory."""

    records: int = setting(kind.whole(1, 10_000_000), default=10_000)
    size: int = setting(kind.size, default=64_000_000)


class KafkaSettings(Section):
    """The keys of `store` beside `type: kafka`. `topics` has the handler of each topic, or None if the header `handler_header` names
    it. `kafka` are settings of librdkafka."""

    bootstrap: str = setting(bootstrap, missing="host:port of one broker or more, separated by commas")
    group: str = setting(kind.text, missing="the name of a consumer group")
    topics: Mapping[str, str | None] = setting(topics, missing="a mapping of topics to handlers, or a list of topics")
    handler_header: str = setting(kind.text, default="handler")
    value: str = setting(kind.one_of("json", "text", "bytes"), default="json")
    ordering: str = setting(kind.one_of("key", "partition", "unordered"), default="key")
    buffer: BufferSettings = setting(One(BufferSettings), default=BufferSettings())
    commit_interval: float = setting(kind.duration, default=0.5)
    revoke_timeout: float = setting(kind.duration, default=10.0)
    kafka: Mapping[str, Any] = setting(client_settings, default_factory=dict)

    @property
    def shown(self) -> str:
        """The store for a person to read."""
        return f"Kafka at {self.bootstrap}, group {self.group}"

    def sink_options(self, suffix: str) -> dict[str, Any]:
        """Return the options of the sink that publishes to `<topic><suffix>`."""
        return {"bootstrap": self.bootstrap, "topic_suffix": suffix, "kafka": self.kafka}


def kafka_settings(options: Mapping[str, Any], place: Place) -> KafkaSettings | None:
    """Return the settings from the keys beside `type: kafka`, or None after mistakes, which are added to the findings."""
    for key in options.keys() - set(KafkaSettings.known):
        place.findings.wrong(place.at(key).path, f"unknown key{_hint(key)}", secret=True)
    known = {key: part for key, part in options.items() if key in KafkaSettings.known}
    with reporting(place):
        return KafkaSettings.read(known, place)
    return None


def _hint(key: str) -> str:
    keys = ["type", *KafkaSettings.known]
    if "." in key and not did_you_mean(key, keys):
        return "; settings of librdkafka stand below store.kafka"
    return did_you_mean_or_all(key, keys)
