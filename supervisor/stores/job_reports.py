"""The reports of jobs as stores keep them: the progress, and the last lines of the log, of the last attempt that had any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from supervisor.jobs import Progress
from supervisor.text.units import iso


class JobReport(NamedTuple):
    """The changes of one job, as JSON text; None leaves in the store what is there. It is kept only if `token` is still that of the
    job's last claim."""

    id: int
    token: int
    progress: str | None
    log: str | None


def progress_text(attempt: int, progress: Progress) -> str:
    return orjson.dumps({**progress._asdict(), "attempt": attempt}).decode()


def log_text(attempt: int, skipped: int, lines: Iterable[str]) -> str:
    return orjson.dumps({"attempt": attempt, "skipped": skipped, "lines": [*lines]}).decode()


def shown_progress(text: str | None, at: int | None) -> dict[str, Any] | None:
    """Return the `progress` of `jobs show --json`; None if there is none, or another program has put something else in its place."""
    progress = _object(text, {"done", "total", "message", "attempt"})
    return None if progress is None else {**progress, "at": iso(at)}


def shown_log(text: str | None) -> dict[str, Any] | None:
    """Return the `log` of `jobs show --json`."""
    log = _object(text, {"attempt", "skipped", "lines"})
    return log if log is not None and isinstance(log["lines"], list) else None


def _object(text: str | None, keys: set[str]) -> dict[str, Any] | None:
    try:
        found = None if text is None else orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() == keys else None


def add_progress(supervisors: Iterable[Mapping[str, Any]], progress: Mapping[int, dict[str, Any] | None]) -> None:
    """Add the progress, by job, to what the workers of these `supervisors` (as in `status --json`) are running: that of an earlier
    attempt is none."""
    for supervisor in supervisors:
        for worker in supervisor["workers"]:
            if job := worker.get("current_job"):
                found = progress.get(job["job_id"])
                job["progress"] = found if found and found["attempt"] == job.get("retry_count", 0) + 1 else None
