"""Long payloads and headers, which stand beside the rows of their jobs: a claim and a settle do not write them anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from supervisor.jobs import LEASE_HEADERS, LEASE_ID, LEASE_PAYLOAD
from supervisor.stores.sqlite.connection import Connection, Select, first_that_fit, packed
from supervisor.stores.sqlite.texts import HEADERS, MAX_INLINE, PAYLOAD, TEXT_LENGTH

MEASURED_AT_ONCE = 64

LENGTHS = f"""
  select json_group_array({TEXT_LENGTH}) from json_each(?) as it cross join jobs on jobs.id = it.value"""
TEXTS = Select(
    f"{PAYLOAD}, {HEADERS}",
    "from json_each(?) as it cross join jobs on jobs.id = it.value",
)
FORGET_LONG_TEXTS = "delete from payloads where job_id = ?"
PUT_LONG_TEXTS = "insert into payloads(job_id, payload, headers) values (?, ?, ?)"


def put_long_texts(
    connection: Connection, texts: Iterable[tuple[int, str, str | None]]
) -> list[tuple[str | None, str | None]]:
    """Store the texts (id of the job, payload, headers) that are too long for the rows of the jobs. Return (payload, headers) of
    the rows."""
    long, inline = [], []
    for id, payload, headers in texts:
        long_headers = headers if headers is not None and len(headers) > MAX_INLINE else None
        is_long = len(payload) > MAX_INLINE or long_headers is not None
        if is_long:
            long.append((id, payload, long_headers))
        inline.append((None if is_long else payload, headers if long_headers is None else None))
    if long:
        connection.run_many(PUT_LONG_TEXTS, long)
    return inline


def with_long_texts(connection: Connection, rows: list[list[Any]]) -> list[list[Any]]:
    """Return the first of these candidates that fit into one claim, with the long texts that were not read with them."""
    large = [row for row in rows if row[LEASE_PAYLOAD] is None]
    if not large:
        return rows
    room = connection.limits.claim_characters
    fit = first_that_fit(connection, [row[LEASE_ID] for row in large], LENGTHS, MEASURED_AT_ONCE, room)
    for row, (payload, headers) in zip(large, connection.rows(TEXTS, packed(fit)), strict=False):
        row[LEASE_PAYLOAD], row[LEASE_HEADERS] = payload, headers
    return rows if len(fit) == len(large) else rows[: rows.index(large[len(fit)])]
