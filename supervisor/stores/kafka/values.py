"""A record of Kafka as a job: its handler, payload and headers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from supervisor.stores.limits import MAX_TIME
from supervisor.text.printable import printable
from supervisor.text.strict_json import NO_VALUE

RawHeaders = Sequence[tuple[str, bytes | None]]

TOMBSTONE = f"{NO_VALUE}a tombstone: the record has no value"
UNREADABLE = f"{NO_VALUE}its headers can't be read: the name of one is not UTF-8"
NO_HANDLER = "(no header {header!r})"
"""The name of the handler of a record that names none: no plugin can have it."""


def payload_of(value: bytes | None, kind: str) -> str:
    """Return the payload as JSON text. For a value that can't be decoded this is a text that gives the reason (`NO_VALUE`): the
    worker rejects the job with it, as it rejects any payload that is no JSON."""
    if value is None:
        return TOMBSTONE
    if kind == "bytes":
        return f'"{b64encode(value).decode()}"'
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return f"{NO_VALUE}not UTF-8: {error}"
    if kind == "text":
        return orjson.dumps(text).decode()
    return text


def headers_of(
    own: RawHeaders, *, topic: str, partition: int, offset: int, key: bytes | None, timestamp: int | None
) -> str:
    """Return the headers of the job as JSON text: those of the record, the last one of each name, and its place in Kafka."""
    place = {
        "kafka.topic": topic,
        "kafka.partition": partition,
        "kafka.offset": offset,
        "kafka.key": None if key is None else b64encode(key).decode(),
        "kafka.timestamp": timestamp,
    }
    if own:
        place = {_name(name): _shown(value) for name, value in own} | place
    return orjson.dumps(place).decode()


def handler_of(own: RawHeaders, header: str) -> str:
    """Return the handler that the last header of this name gives."""
    named = [value for name, value in own if name == header and value]
    if not named:
        return NO_HANDLER.format(header=header)
    return printable(named[-1].decode(errors="backslashreplace"))


def created_at(timestamp: int | None, now: int) -> int:
    """Return the time of a record in microseconds; `timestamp` is in milliseconds. One that no store could keep is `now`."""
    at = now if timestamp is None else timestamp * 1000
    return at if 0 <= at <= MAX_TIME else now


def raw_record(
    *, topic: str, partition: int, offset: int, epoch: int, timestamp: int | None,
    key: bytes | None, value: bytes | None, headers: RawHeaders,
) -> Mapping[str, Any]:  # fmt: skip
    """Return the record as its dead letter has it: key, value and headers are unchanged, in base64."""
    return {
        "topic": topic, "partition": partition, "offset": offset, "epoch": epoch, "timestamp": timestamp,
        "key": _base64(key), "value": _base64(value), "headers": [[name, _base64(each)] for name, each in headers],
    }  # fmt: skip


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _name(name: str) -> str:
    return printable(name)


def _shown(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
