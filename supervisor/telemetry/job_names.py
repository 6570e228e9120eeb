"""A job as lines of the log name it: with a Kafka store also by its record, since people look for a topic, a partition and an offset."""

from __future__ import annotations

from typing import Any

import orjson

from supervisor.jobs import Lease

_OFFSET = '"kafka.offset":'


def named(lease: Lease) -> str:
    """Return the id, the handler and the record of a job."""
    place = record_place(lease)
    return f"job={lease.id} handler={lease.handler}{f' record={place}' if place else ''}"


def job_fields(lease: Lease) -> dict[str, Any]:
    """Return the fields of a line about the job in a log of JSON."""
    fields = {"job": lease.id, "handler": lease.handler, "queue": lease.queue, "attempt": lease.attempt}
    return {**fields, "record": place} if (place := record_place(lease)) else fields


def record_place(lease: Lease) -> str | None:
    """Return the place of the record, as in `orders/3@1207`, or None for a job that is none."""
    if lease.headers is None or _OFFSET not in lease.headers:
        return None
    headers = orjson.loads(lease.headers)
    return f"{lease.queue}/{headers.get('kafka.partition')}@{headers.get('kafka.offset')}"
