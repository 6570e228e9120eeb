"""The headers that a dead letter has in a topic, behind those of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REASON, ATTEMPT = "x-error-reason", "x-retry-attempt"
SOURCE = ("source-topic", "partition", "offset", "epoch")
REFERENCE = "x-value-reference"
MAX_REASON = 4000
"""Bytes of a reason: a long message must not make the record too large for its topic."""

Headers = Sequence[tuple[str, bytes | None]]

_OF_RECORD = (REASON, ATTEMPT, *SOURCE)
_OF_JOB = (REASON, ATTEMPT)


def failure_headers(job: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """Return the headers with the last failure of a job and its attempt, which is 1 for the first one."""
    failure = job["errors"][-1] if job.get("errors") else {}
    attempt = failure.get("attempt") or job.get("attempt") or 1
    return [(REASON, _reason(failure)), (ATTEMPT, str(attempt).encode())]


def record_headers(job: Mapping[str, Any], record: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """Return the headers of a job that was a record: its failure, and where the record is."""
    place = (record["topic"], record["partition"], record["offset"], record["epoch"])
    return [*failure_headers(job), *((name, str(value).encode()) for name, value in zip(SOURCE, place, strict=True))]


def split(headers: Any) -> tuple[Headers, dict[str, bytes | None]]:
    """Return the headers of the original record, and those behind them that were added to a dead letter, by name. `headers` are those
    of a message, or None.

    The original may have headers of the same names: only a whole group at the end counts.
    """
    headers = headers or []
    for group in (_OF_RECORD, _OF_JOB):
        for added in ((*group, REFERENCE), group):
            if tuple(name for name, _ in headers[-len(added) :]) == added:
                return headers[: -len(added)], dict(headers[-len(added) :])
    return headers, {}


def _reason(failure: Mapping[str, Any]) -> bytes:
    parts = (failure.get("cause"), failure.get("type"), failure.get("message"))
    line = " ".join(": ".join(str(part) for part in parts if part).split()).encode("utf-8", "backslashreplace")
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3].decode(errors="ignore").encode() + "…".encode()
