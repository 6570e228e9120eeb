"""Errors of Kafka clients as a person reads them: the brokers, the topic, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.text.redaction import Mask, secrets_in

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE"})
UNREACHABLE = frozenset(
    {"_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE", "_FAIL", "_MSG_TIMED_OUT", "_TIMED_OUT", "_TIMED_OUT_QUEUE"}
)
_STATE = re.compile(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)")
REACH = "check the addresses in bootstrap and security.protocol, and that the brokers run"

_NO_TOPIC = "the topic does not exist; create it, or let the brokers create topics (auto.create.topics.enable)"
_DENIED = "the user of this client has no right to %s; grant it that (ACL)"
_LOGIN = "the brokers refuse the login; check security.protocol and the keys sasl.… of kafka"
_TOO_LARGE = "a record is too large; raise max.message.bytes of the topic, and message.max.bytes of kafka"
_REPLICAS = "too few replicas are in sync; start the missing brokers, or lower min.insync.replicas"
_REMEDIES: Mapping[str, str] = {
    "UNKNOWN_TOPIC_OR_PART": _NO_TOPIC,
    "_UNKNOWN_TOPIC": _NO_TOPIC,
    "_UNKNOWN_PARTITION": "the topic has no such partition",
    "TOPIC_EXCEPTION": "no topic can have this name; expected at most 249 of A-Z, a-z, 0-9, '.', '_' and '-'",
    "TOPIC_AUTHORIZATION_FAILED": _DENIED % "this topic",
    "GROUP_AUTHORIZATION_FAILED": _DENIED % "read as this group",
    "CLUSTER_AUTHORIZATION_FAILED": _DENIED % "use the cluster (IdempotentWrite, before Kafka 2.8)",
    "INCONSISTENT_GROUP_PROTOCOL": "other members of the group have another partition.assignment.strategy, which is range,roundrobin "
    "in most clients; stop them, set the same below kafka, or use a new group",
    "INVALID_SESSION_TIMEOUT": "the brokers do not allow this session.timeout.ms; write one between their group.min.session.timeout.ms "
    "and group.max.session.timeout.ms",
    "GROUP_MAX_SIZE_REACHED": "the group has as many members as the brokers allow (group.max.size); stop some, or raise it",
    "FENCED_INSTANCE_ID": "another member of the group has the same group.instance.id; give each supervisor one of its own",
    "SASL_AUTHENTICATION_FAILED": _LOGIN,
    "UNSUPPORTED_SASL_MECHANISM": _LOGIN,
    "_AUTHENTICATION": _LOGIN,
    "_SSL": "the TLS connection fails; check security.protocol and the keys ssl.… of kafka",
    "NOT_ENOUGH_REPLICAS": _REPLICAS,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": _REPLICAS,
    "POLICY_VIOLATION": "a policy of the brokers refuses this",
    "INVALID_RECORD": "the brokers refuse the record; a compacted topic takes only records with a key",
    "KAFKA_STORAGE_ERROR": "a disk of a broker fails; see the log of the broker",
    **dict.fromkeys(TOO_LARGE, _TOO_LARGE),
}


class ErrorTexts:
    """Makes one line for a person of each error of the clients that have these settings, without a secret of them."""

    def __init__(self, bootstrap: str, kafka: Mapping[str, Any]) -> None:
        self._bootstrap = bootstrap
        self._files = {key: str(path) for key, path in kafka.items() if key.endswith(".location")}
        self.mask = Mask(secrets_in(kafka))

    def of(self, error: KafkaError, topic: str | None = None, cause: KafkaError | None = None) -> str:
        """Return what failed where, and what to do. `cause` is the last error of a connection, if there is one."""
        if error.name() in UNREACHABLE:
            return self.unreachable(topic, cause or error)
        remedy, reason = _REMEDIES.get(error.name()), f"{error.name()}: {without_state(error.str())}"
        return self._line(topic, f"{remedy} ({reason})" if remedy else reason)

    def unreachable(self, topic: str | None = None, cause: KafkaError | None = None) -> str:
        """Return that no broker has answered, or the error of the connections that explains it."""
        if cause is not None and cause.name() not in UNREACHABLE:
            return self.of(cause, topic)
        why = f"no broker has answered ({without_state(cause.str())})" if cause else "no broker has answered in time"
        return self._line(topic, f"{why}; {REACH}")

    def setting(self, error: KafkaError) -> str:
        """Return why a client can't be made: one of its settings is wrong."""
        missing = (f"; {key}: no such file: {path}" for key, path in self._files.items() if not Path(path).exists())
        text = f"kafka: {error.str()}{next(missing, '')}; see the list of settings of librdkafka"
        return " ".join(self.mask(text).split())

    def _line(self, topic: str | None, text: str) -> str:
        where = f"{self._bootstrap}: topic {topic}" if topic else self._bootstrap
        return " ".join(self.mask(f"{where}: {text}").split())


def is_outage(error: KafkaError, cause: KafkaError | None) -> bool:
    """Return whether no broker is reachable, for which no setting is known to be the cause: the same may succeed later."""
    return error.name() in UNREACHABLE and (cause is None or cause.name() in UNREACHABLE)


def without_state(text: str) -> str:
    """Return a text of librdkafka without the state of its connection, which means nothing to a person."""
    return _STATE.sub("", text).replace("/bootstrap:", ":")
