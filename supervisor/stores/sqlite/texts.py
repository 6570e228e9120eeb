"""The payloads and headers of jobs in SQLite: short ones are in the row of the job, long ones beside it."""

from __future__ import annotations

MAX_INLINE = 500
"""The maximum of characters of a payload, and of headers, that stand in the row of the job."""
# Each claim and settle writes the row of its job anew, so long texts are not in it. If the payload or the headers are longer than
# MAX_INLINE, the payload is here, and null in the row; the same for the headers if they are longer themselves.
PAYLOADS = "create table payloads(job_id integer primary key, payload text, headers text)"
PAYLOAD = "cast(coalesce(jobs.payload, (select payload from payloads where job_id = jobs.id), '') as text)"
HEADERS = "cast(coalesce(jobs.headers, (select headers from payloads where job_id = jobs.id)) as text)"
TEXT_LENGTH = f"length({PAYLOAD}) + coalesce(length({HEADERS}), 0)"


def texts_are_long(row: str) -> str:
    return f"(coalesce(length({row}.payload), 0) > {MAX_INLINE} or {headers_are_long(row)})"


def headers_are_long(row: str) -> str:
    return f"coalesce(length({row}.headers), 0) > {MAX_INLINE}"
