"""Publish dead letters to a topic of Kafka. Each is accepted once the brokers have acknowledged it."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from supervisor.config import kafka as checked
from supervisor.dead_letters.file_sink import STRICT
from supervisor.dead_letters.kafka_headers import REFERENCE, failure_headers, record_headers
from supervisor.errors import NotAccepted, StoreError
from supervisor.kafka.client import Publisher, Record, Refused

SECONDS = 25.0
"""The time for all attempts of one publish: it must end within the time of a sink."""


class KafkaSink:
    """The sink type `kafka`. Dead letters go to `topic`, or each to the topic of its record with `topic_suffix` behind it.

    A dead letter of a record is that record, byte by byte, with further headers; any other is the JSON object of its job. One that
    the topic does not take because of its size is published with a reference in place of its value. `kafka` are settings of
    librdkafka. Nothing is connected before the first publish.

    Raises ValueError, without a secret in it, if a key can't be used.
    """

    def __init__(
        self, bootstrap: str, topic: str | None = None, topic_suffix: str | None = None, kafka: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if (topic is None) == (topic_suffix is None):
            raise ValueError(
                "topic: expected the name of a topic" + ("" if topic is None else ", without topic_suffix")
            )
        self._topic = topic if topic is None else _checked("topic", checked.topic, topic)
        self._suffix = "" if topic_suffix is None else _checked("topic_suffix", checked.topic_suffix, topic_suffix)
        servers = _checked("bootstrap", checked.bootstrap, bootstrap)
        try:
            self._publisher = Publisher(servers, _checked("kafka", checked.client_settings, kafka or {}))
        except StoreError as error:
            raise ValueError(str(error)) from None

    def publish(self, dead_letters: Sequence[Mapping[str, Any]]) -> Iterable[int]:
        """Publish the dead letters, and return their ids. Raises NotAccepted with an error for each that is not acknowledged."""
        until = time.monotonic() + SECONDS
        records: dict[int, Record] = {}
        refused: dict[int, str] = {}
        for dead_letter in dead_letters:
            try:
                records[dead_letter["id"]] = self._record(dead_letter)
            except (TypeError, ValueError, KeyError) as error:
                refused[dead_letter["id"]] = f"no record can be made of it: {type(error).__name__}: {error}"
        by_id = {dead_letter["id"]: dead_letter for dead_letter in dead_letters}
        for id, problem in self._published(records, until).items():
            left = self._published_alone(by_id[id], records[id], problem, until, in_batch=len(records) > 1)
            if left is not None:
                refused[id] = left.text
        if refused:
            raise NotAccepted(refused, by_id.keys() - refused.keys())
        return list(by_id)

    def close(self) -> None:
        self._publisher.close()

    def _published(self, records: Mapping[int, Record], until: float) -> dict[int, Refused]:
        """Publish records by id, and return those that are not acknowledged."""
        ids = list(records)
        refused = self._publisher.publish(list(records.values()), within=until - time.monotonic())
        return {ids[index]: problem for index, problem in refused.items()}

    def _published_alone(
        self, dead_letter: Mapping[str, Any], record: Record, problem: Refused, until: float, *, in_batch: bool
    ) -> Refused | None:
        """Publish a record again that was refused as too large, and return the problem that is left.

        Brokers refuse a whole batch if one record of it is too large, so each is tried alone before its value is given up.
        """
        attempts = (
            [record, _with_reference(dead_letter, record)] if in_batch else [_with_reference(dead_letter, record)]
        )
        for each in attempts:
            if not problem.too_large or time.monotonic() >= until:
                return problem
            left = self._published({0: each}, until)
            if not left:
                return None
            problem = left[0]
        return problem

    def _record(self, dead_letter: Mapping[str, Any]) -> Record:
        source = dead_letter.get("record")
        if source is None:
            topic = self._topic or f"{dead_letter['queue']}{self._suffix}"
            key, value = str(dead_letter["id"]).encode(), orjson.dumps(dead_letter, option=STRICT)
            return Record(topic, key, value, failure_headers(dead_letter))
        headers = [(name, _bytes(value)) for name, value in source["headers"]]
        return Record(
            self._topic or f"{source['topic']}{self._suffix}", _bytes(source["key"]), _bytes(source["value"]),
            [*headers, *record_headers(dead_letter, source)],
        )  # fmt: skip


def _with_reference(dead_letter: Mapping[str, Any], record: Record) -> Record:
    """Return the record with the place of its value instead of the value: in its source topic, or in the store of the job."""
    place = dead_letter.get("record") or dead_letter
    names = ("topic", "partition", "offset") if place is not dead_letter else ("queue", "handler", "id")
    reference = {name: place[name] for name in names}
    header = (REFERENCE, "/".join(map(str, reference.values())).encode())
    return record._replace(value=orjson.dumps(reference), headers=[*record.headers, header])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _checked(key: str, check: Any, value: Any) -> Any:
    """Return the value as the config has it. Raises ValueError with the key."""
    try:
        return check(value, None)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
