"""The settings of every Kafka client, and a publisher that waits until the brokers have acknowledged each record.

confluent_kafka is imported by the first client only. A client has threads, so none is made in a worker or before a fork.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.errors import StoreError
from supervisor.kafka.errors import TOO_LARGE, ErrorTexts, is_outage, without_state
from supervisor.text.rate_limit import RateLimit, times

if TYPE_CHECKING:
    from types import ModuleType

    from confluent_kafka import Consumer, KafkaError, Message, Producer

MESSAGE_TIMEOUT = 20.0  # seconds, at most, for the acknowledgement of a record
MAX_BYTES = 50_000_000  # of a record: the topic decides what is too large, unless the settings do
DOWN_FOR = 5.0  # seconds of a publish until it gives up since no broker is reachable
TOPIC_TIMEOUT = (
    5.0  # seconds until a topic that no broker has is reported missing; one that is being created appears within them
)
SLACK = 1.0  # seconds after the timeout of records for their reports to arrive
POLL = 0.1
ERRORS_SERVED = 100

_TIMEOUTS = ("message.timeout.ms", "delivery.timeout.ms")
_OWN = frozenset({*_TIMEOUTS, "acks", "request.required.acks"})
_WHERE = re.compile(r"^\[thrd:[^\]]*\]: ")
_VARYING = re.compile(r"\d+ identical error\(s\)|\d+ms")
_OF_OTHER_CLIENTS = re.compile(r"is a (?:consumer|producer) property and will be ignored")


def require() -> ModuleType:
    """Return the module confluent_kafka. Raises StoreError, with what to install, if there is none."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise StoreError(
            f"Kafka needs confluent-kafka: pip install 'job-supervisor[kafka]' ({type(error).__name__}: {error})"
        ) from None
    return confluent_kafka


def client_settings(bootstrap: str, kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for a consumer, a producer or an admin client: those of `kafka` override our defaults. The log lines of the
    client go to the log of the supervisor."""
    return {
        "client.id": f"supervisor-{socket.gethostname()}-{os.getpid()}",
        "log.connection.close": False,
        "logger": ClientLog(ErrorTexts(bootstrap, kafka)),
        **kafka,
        "bootstrap.servers": bootstrap,
    }


_read_headers = methodcaller("headers")
"""A plain call would crash the process on a name that is not UTF-8: the client returns a torn list beside its error, and the
interpreter checks a call that it has specialized for no such thing."""


def headers_of(message: Message) -> Sequence[tuple[str, bytes | None]] | None:
    """Return the headers of a message, or None if the client can't read them: a name is not UTF-8."""
    try:
        headers: Any = _read_headers(message) or ()
    except (SystemError, ValueError):  # what the client raises depends on its version
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def serve_errors(client: Consumer) -> None:
    """Have a client that nobody polls call its error_cb for the errors so far. It must not be subscribed: a message would be lost."""
    for _ in range(ERRORS_SERVED):
        client.poll(0)


class ClientLog:
    """The `logger` of a client: passes its lines on to the log, each at most once a minute. A lost connection is made again by the
    client, so it is a warning."""

    def __init__(self, texts: ErrorTexts) -> None:
        self._mask = texts.mask
        self._log = logging.getLogger("supervisor")
        self._repeats = RateLimit(time.monotonic)

    def log(self, level: int, _format: str, kind: str, client: str, line: str) -> None:
        """Write one line. librdkafka passes its `kind`, such as FAIL, and the name of the client."""
        if _OF_OTHER_CLIENTS.search(line):
            return
        text = self._mask(without_state(_WHERE.sub("", line)))
        if (held := self._repeats.allow((kind, _VARYING.sub("", text)))) is not None:
            role = client.partition("#")[2]
            self._log.log(min(level, logging.WARNING), "kafka: %s: %s%s", role, text, times(held))


class Record(NamedTuple):
    """A record to publish. A value or a header may be null (None), which is not the same as empty. The key decides on its partition
    unless one is given."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = -1


class Refused(NamedTuple):
    """Why a record is not published; `too_large` if the client or the topic has refused its size, `unavailable` if no broker has
    answered."""

    text: str
    too_large: bool = False
    unavailable: bool = False


class Publisher:
    """Publishes records with acks=all, and by default as an idempotent producer, on one thread at a time.

    Raises StoreError without confluent-kafka, and ValueError if a setting can't be used.
    """

    def __init__(self, bootstrap: str, kafka: Mapping[str, Any], timeout: float = MESSAGE_TIMEOUT) -> None:
        self._kafka = require()
        self._texts = ErrorTexts(bootstrap, kafka)
        self._timeout = timeout
        self.settings = {
            "enable.idempotence": True,
            "message.max.bytes": MAX_BYTES,
            "topic.metadata.propagation.max.ms": int(TOPIC_TIMEOUT * 1000),
            **client_settings(bootstrap, {key: value for key, value in kafka.items() if key not in _OWN}),
            "acks": "all",
            "message.timeout.ms": _within(kafka, timeout),
        }
        self._producer: Producer | None = None
        self._all_down = False
        self._cause: KafkaError | None = None
        self._check()

    def _check(self) -> None:
        """Make a client that connects to nothing, to find mistakes in the settings."""
        try:
            self._kafka.Producer({**self.settings, "bootstrap.servers": "", "test.mock.num.brokers": 0})
        except self._kafka.KafkaException as error:
            raise ValueError(self._texts.setting(error.args[0])) from None

    def publish(
        self,
        records: Sequence[Record],
        within: float = MESSAGE_TIMEOUT,
        places: dict[int, tuple[int, int]] | None = None,
    ) -> dict[int, Refused]:
        """Publish records, and return the index and the reason of each that the brokers have not acknowledged. Put into `places` by
        index the partition and the offset of those that they have.

        It returns within the timeout, or within so many seconds if these are fewer, and two seconds more. A record that was refused
        may have been written all the same.
        """
        self._cause = None
        batch = _Batch(records, self._refusal)
        self._publish(batch, min(within, self._timeout) + SLACK)
        batch.refuse_open()
        # A client sends later what has no report yet, never recovers from some errors, and believes for minutes that a topic is missing.
        if not all(refused.too_large for refused in batch.refused.values()):
            self._discard()
        if places is not None:
            places.update(batch.places)
        return batch.refused

    def close(self) -> None:
        """Drop what is not sent, and end the client."""
        self._discard()

    def _publish(self, batch: _Batch, seconds: float) -> None:
        producer, started = self._made(), time.monotonic()
        for index, record in enumerate(batch.records):
            batch.send(producer, index, record)
        while batch.open and time.monotonic() < started + seconds:
            acknowledged = len(batch.places)
            producer.poll(POLL)
            if len(batch.places) > acknowledged:
                self._all_down = False
            if self._all_down and time.monotonic() - started >= DOWN_FOR:
                break

    def _made(self) -> Producer:
        if self._producer is None:
            self._all_down = False
            self._producer = self._kafka.Producer({**self.settings, "error_cb": self._note_error})
        return self._producer

    def _note_error(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._all_down = True
        else:
            self._cause = error

    def _refusal(self, error: KafkaError | None, topic: str) -> Refused:
        """Return why a record is not acknowledged; no error stands for no answer."""
        if error is None:
            unavailable = self._cause is None or is_outage(self._cause, None)
            return Refused(self._texts.unreachable(topic, self._cause), unavailable=unavailable)
        text = self._texts.of(error, topic, self._cause)
        return Refused(text, error.name() in TOO_LARGE, is_outage(error, self._cause))

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(blocking=False)
            producer.poll(0)


class _Batch:
    """The records of one publish: those without a report yet are `open`."""

    def __init__(self, records: Sequence[Record], refusal: Callable[[KafkaError | None, str], Refused]) -> None:
        self.records = records
        self.refused: dict[int, Refused] = {}
        self.open: set[int] = set()
        self.places: dict[int, tuple[int, int]] = {}
        self._refusal = refusal

    def send(self, producer: Producer, index: int, record: Record) -> None:
        """Give a record to the client. Raises nothing for a record that the client refuses."""
        self.open.add(index)
        try:
            producer.produce(
                record.topic, record.value, record.key, record.partition, headers=list(record.headers),
                on_delivery=lambda error, message: self._report(index, error, message),
            )  # fmt: skip
        except BufferError:
            producer.poll(POLL)
            self._refuse(index, Refused(f"{record.topic}: the queue of the client is full"))
        except (TypeError, ValueError) as error:
            self._refuse(index, Refused(f"{record.topic}: no record can be made of this: {error}"))
        except require().KafkaException as error:
            self._report(index, error.args[0], None)

    def refuse_open(self) -> None:
        """Refuse the records without a report."""
        for index in sorted(self.open):
            self._refuse(index, self._refusal(None, self.records[index].topic))

    def _report(self, index: int, error: KafkaError | None, message: Message | None) -> None:
        if index not in self.open:
            return
        if error is None:
            self.open.discard(index)
            assert message is not None
            self.places[index] = message.partition() or 0, message.offset() or 0
            return
        self._refuse(index, self._refusal(error, self.records[index].topic))

    def _refuse(self, index: int, refused: Refused) -> None:
        self.open.discard(index)
        self.refused[index] = refused


def _within(kafka: Mapping[str, Any], timeout: float) -> Any:
    """Return the timeout of records in milliseconds: that of the settings, if it is shorter than ours."""
    most = int(timeout * 1000)
    for key in _TIMEOUTS:
        try:
            wanted = int(kafka.get(key, most))
        except (TypeError, ValueError):
            return kafka[key]  # librdkafka refuses it, and names it
        most = min(most, wanted) if wanted > 0 else most
    return most
