"""Jobs as people see them: the object that `supervisor jobs show --json` prints, the same in every store, and lists of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from supervisor.jobs import JobState
from supervisor.text.strict_json import NotJSON, decode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Shown(NamedTuple):
    """A job as any store keeps it. Times are microseconds since the epoch; the texts are as stored, so they may not be JSON."""

    id: int
    handler: str
    payload: str
    queue: str
    priority: int
    state: str
    retries: int
    max_retries: int | None
    due_at: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    result: str | None
    headers: str | None
    errors: Sequence[Mapping[str, Any]]
    dead_letter: str | None
    missing_sinks: Sequence[str]
    expired_count: int
    owner: str | None
    lease_until: int | None


PAGE_JOBS, PAGE_CHARACTERS = 200, 1_000_000


def in_pages(ids: list[int], read: Callable[[list[int]], tuple[int, list[dict[str, Any]]]]) -> Iterator[dict[str, Any]]:
    """Yield the jobs with these ids. `read` gets up to PAGE_JOBS of the ids; it returns how many of them it has read, at least one,
    and those of the jobs that exist."""
    start = 0
    while start < len(ids):
        count, jobs = read(ids[start : start + PAGE_JOBS])
        yield from jobs
        start += count


def job_dict(job: Shown) -> dict[str, Any]:
    """The object that `supervisor jobs show --json` prints."""
    return {
        "id": job.id,
        "handler": job.handler,
        "payload": readable(job.payload),
        "queue": job.queue,
        "priority": job.priority,
        "state": job.state,
        "attempt": job.retries + 1,
        "retries": job.retries,
        "max_retries": job.max_retries,
        "due_at": iso(job.due_at),
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
        "result": None if job.result is None else readable(job.result),
        "headers": {} if job.headers is None else readable(job.headers),
        "errors": [{**error, "at": iso(error["at"])} for error in job.errors],
        "dead_letter": job.dead_letter,
        "missing_sinks": list(job.missing_sinks),
        "expired_count": job.expired_count,
        "lease": {"owner": job.owner, "until": iso(job.lease_until)} if job.state == JobState.IN_FLIGHT else None,
    }


def iso(microseconds: int | None) -> str | None:
    """Return ISO 8601 text in UTC with microseconds; a time outside of the calendar becomes the nearest time inside."""
    if not isinstance(microseconds, int):  # other programs can put a text into SQLite
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        moment = (datetime.max if microseconds > 0 else datetime.min).replace(tzinfo=UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def readable(text: str) -> Any:
    """Return the value of JSON `text`, or the text itself if it isn't strict JSON (another program wrote it)."""
    try:
        return decode(text)
    except NotJSON:
        return text
