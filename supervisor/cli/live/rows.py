"""The rows of the screen as text that is safe for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from supervisor.cli.job_output import progress_line
from supervisor.cli.live.looks import Look
from supervisor.cli.render import ago, clipped, due, last_error
from supervisor.jobs import JobState
from supervisor.stores.problems import Present
from supervisor.text.units import counted, format_duration

QUEUE_COLUMNS = ("queue", "fresh", "retries", "scheduled", "in flight", "failed", "busy", "")
QUEUE_KEYS = ("queue_size", "retry_queue_size", "scheduled", "in_flight", "failed", "processing")
WORKER_COLUMNS = ("worker", "state", "for", "job", "handler", "attempt", "progress", "host")
JOB_COLUMNS = ("job", "handler", "queue", "state", "attempt", "when", "last error")
MAX_QUEUES = 500
MAX_WORKERS = 1_000
MAX_PROBLEMS = 200

Mask = Callable[[str], str]


class Row(NamedTuple):
    """A row of a table: its texts, and for each the value to sort by. `key` is the same at the next look. `of` is the id of the job, or
    the name of the queue, that it shows."""

    key: str
    cells: Sequence[str]
    order: Sequence[Any]
    of: Any


def queue_rows(look: Look) -> list[Row]:
    """Return the queues, those with the most jobs if they are too many."""
    queues = look.status["queues"]
    if len(queues) > MAX_QUEUES:
        queues = sorted(queues, key=lambda queue: -sum(queue[key] for key in QUEUE_KEYS))[:MAX_QUEUES]
    return [
        _row(
            queue["queue"],
            [queue["queue"], *(queue[key] for key in QUEUE_KEYS), "paused" if queue["paused"] else ""],
            queue["queue"],
        )
        for queue in queues
    ]


def worker_rows(look: Look) -> list[Row]:
    """Return the workers, those first that have run a job for the longest time."""
    present, rows = Present(look.status), []
    for supervisor in look.status["supervisors"]:
        for worker in supervisor["workers"]:
            job = worker.get("current_job") or {}
            ran = present.ran(job) if job else None
            cells = [
                worker.get("pid"), worker.get("state"), None if ran is None else format_duration(ran), job.get("job_id"),
                job.get("handler"), job["retry_count"] + 1 if job else None,
                progress_line(job["progress"]) if job.get("progress") else None, supervisor["host"],
            ]  # fmt: skip
            key = f"{supervisor['owner']} {worker.get('pid')} {job.get('job_id')}"
            row = _row(key, cells, job.get("job_id"))
            rows.append(row._replace(order=[*row.order[:2], -1 if ran is None else ran, *row.order[3:]]))
    return sorted(rows, key=lambda row: -row.order[2])[:MAX_WORKERS]


def job_rows(look: Look, mask: Mask) -> list[Row]:
    now = datetime.fromisoformat(look.status["at"])
    rows = []
    for job in look.jobs:
        cells = [
            job["id"], job["handler"], job["queue"], job["state"], job["attempt"], _when(job, now), mask(last_error(job))
        ]  # fmt: skip
        row = _row(str(job["id"]), cells, job["id"])
        at = job["finished_at"] or job["due_at"] or ""
        rows.append(row._replace(order=[*row.order[:5], at, row.order[6]]))
    return rows


def problem_lines(look: Look, mask: Mask, limit: int = MAX_PROBLEMS) -> list[str]:
    """Return the first problems, and how many more there are."""
    found = look.problems
    if len(found) <= limit:
        return [clipped(mask(each.text), 1_000) for each in found]
    return [*problem_lines(look._replace(problems=found[: limit - 1]), mask), f"… and {len(found) - limit + 1} more"]


def head_line(look: Look, store: str) -> str:
    """Return the line that sums everything up."""
    present = Present(look.status)
    workers = [worker for each in present.live for worker in each["workers"]]
    busy = sum(bool(worker.get("current_job")) for worker in workers)
    ready = sum(queue["queue_size"] + queue["retry_queue_size"] for queue in look.status["queues"])
    found = f"{len(look.problems)} PROBLEMS" if len(look.problems) > 1 else "1 PROBLEM" if look.problems else "all well"
    parts = (
        found, counted(len(present.live), "supervisor"), f"{counted(len(workers), 'worker')}, {busy} busy", f"{ready:,} ready", store
    )  # fmt: skip
    return clipped(" · ".join(parts), 300)


def list_line(look: Look) -> str:
    """Return the title of the list of jobs: which are listed, and among how many they were found."""
    state, text, _ = look.wanted
    which = counted(len(look.jobs), f"{state} job" if state else "job")
    if not text:
        return which if look.searched is None else f"the newest {which}"
    among = "" if look.searched is None else f" among the newest {look.searched:,}"
    return clipped(f"{which} with {text!r}{among}", 200)


def unique(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without those that have the key of an earlier one."""
    return list({row.key: row for row in rows}.values())


def _row(key: str, values: Sequence[Any], of: Any) -> Row:
    return Row(key, ["" if value is None else clipped(str(value)) for value in values], [*map(_order, values)], of)


def _order(value: Any) -> Any:
    return value if isinstance(value, int | float) else str(value or "").lower()


def _when(job: dict[str, Any], now: datetime) -> str:
    if job["state"] in (JobState.SCHEDULED, JobState.READY):
        return due(job["due_at"], now)
    return ago(job["finished_at"] or job["started_at"], now)
