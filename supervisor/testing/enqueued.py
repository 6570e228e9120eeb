"""A job that the code under test has enqueued, as tests look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from supervisor.stores.sqlite.store import SqliteStore

MAX_LISTED = 100_000


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """A job as it is now. `delay` is the seconds from its enqueueing until it was due first, 0 without `delay` or `at`; `due_at` is when
    it is due now. `state`, `attempt`, `result`, `errors` and `progress` are those of its JSON."""

    id: int
    handler: str
    payload: Any
    queue: str
    priority: int
    delay: float
    due_at: datetime
    headers: Mapping[str, Any]
    max_retries: int | None
    state: str
    attempt: int
    result: Any
    errors: tuple[Mapping[str, Any], ...]
    progress: Mapping[str, Any] | None = None


def enqueued_job(shown: Mapping[str, Any], delay: float | None = None) -> EnqueuedJob:
    """Return the job of its JSON form. Without `delay`, the job has not been retried."""
    due_at, created_at = (datetime.fromisoformat(shown[name]) for name in ("due_at", "created_at"))
    return EnqueuedJob(
        id=shown["id"],
        handler=shown["handler"],
        payload=shown["payload"],
        queue=shown["queue"],
        priority=shown["priority"],
        delay=max(0.0, (due_at - created_at).total_seconds()) if delay is None else delay,
        due_at=due_at,
        headers=shown["headers"],
        max_retries=shown["max_retries"],
        state=shown["state"],
        attempt=shown["attempt"],
        result=shown["result"],
        errors=tuple(shown["errors"]),
        progress=shown["progress"],
    )


def enqueued_in(store: Path) -> list[EnqueuedJob]:
    """Return the jobs of a SQLite store, the first enqueued one first."""
    opened = SqliteStore(store)
    try:
        return [enqueued_job(shown) for shown in sorted(opened.list_jobs(limit=MAX_LISTED), key=itemgetter("id"))]
    finally:
        opened.close()
