"""Enqueue jobs as records: of the topic whose handler they name."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence

import orjson

from supervisor.config.kafka import KafkaSettings
from supervisor.config.settings import DEFAULT_QUEUE
from supervisor.errors import StoreError, StoreUnavailable, Unsupported
from supervisor.kafka.client import Publisher, Record
from supervisor.stores.extras import NO_EXTRAS, Extras
from supervisor.stores.kafka.ids import Place, job_id, topic_numbers
from supervisor.stores.records import EnqueueRow

_NOT_IN_A_RECORD = ("priority", "delay", "at", "max_retries", "timeout", "backoff")


class Producing:
    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._numbers = topic_numbers(settings.topics)
        self._publisher: Publisher | None = None

    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        """Publish a record for each row, and return the ids that their jobs will have. Unlike other stores, it may publish some of
        the rows and fail for the others."""
        records = [self._record(row) for row in rows]
        if self._publisher is None:
            self._publisher = self._new_publisher()
        places: dict[int, tuple[int, int]] = {}
        refused = self._publisher.publish(records, places=places)
        if refused:
            first, n = refused[min(refused)], len(records)
            done = f"{n - len(refused)} of {n} records were published; " if n > 1 else ""
            raise StoreUnavailable(f"{done}{first.text}")
        return [job_id(Place(self._numbers[record.topic], *places[index])) for index, record in enumerate(records)]

    def _new_publisher(self) -> Publisher:
        try:
            return Publisher(self._settings.bootstrap, self._settings.kafka)
        except ValueError as error:
            raise StoreError(str(error)) from None

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

    def _record(self, row: EnqueueRow) -> Record:
        given = [
            name for name in _NOT_IN_A_RECORD if getattr(row, name) not in (None, EnqueueRow._field_defaults[name])
        ]
        if row.extras is not None:
            given += [
                name
                for name in Extras._fields
                if name != "key" and getattr(row.extras, name) != getattr(NO_EXTRAS, name)
            ]
        if given:
            raise Unsupported(f"enqueue with {given[0]}", "leave it out, since a record has no such field")
        topic = self._topic(row)
        headers = {} if row.headers is None else orjson.loads(row.headers)
        if self._settings.topics[topic] is None:
            headers[self._settings.handler_header] = row.handler
        key = None if row.extras is None or row.extras.key is None else row.extras.key.encode()
        return Record(topic, key, self._value(row), [(name, _bytes(value)) for name, value in headers.items()])

    def _topic(self, row: EnqueueRow) -> str:
        """Return the topic that the queue of the row names, or else the only one whose records this handler gets."""
        topics = self._settings.topics
        if row.queue != DEFAULT_QUEUE:
            if row.queue not in topics:
                raise StoreError(f"queue {row.queue}: expected one of the topics of the store: {', '.join(topics)}")
            if topics[row.queue] not in (None, row.handler):
                raise StoreError(
                    f"queue {row.queue}: records of this topic go to {topics[row.queue]}, not to {row.handler}"
                )
            return row.queue
        fitting = [topic for topic, handler in topics.items() if handler == row.handler]
        fitting = fitting or [topic for topic, handler in topics.items() if handler is None]
        if len(fitting) != 1:
            found = f"topics {', '.join(fitting)}: name one as the queue" if fitting else "no topic of the store"
            raise StoreError(f"handler {row.handler}: it gets the records of {found}")
        return fitting[0]

    def _value(self, row: EnqueueRow) -> bytes:
        if self._settings.value == "json":
            return row.payload.encode()
        payload = orjson.loads(row.payload)
        if not isinstance(payload, str):
            raise StoreError(f"payload: expected text, since store.value is {self._settings.value}")
        try:
            return payload.encode() if self._settings.value == "text" else b64decode(payload, validate=True)
        except ValueError:
            raise StoreError("payload: expected base64, since store.value is bytes") from None


def _bytes(value: object) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else orjson.dumps(value)
