"""Queues, supervisors and workers, in the order and with the figures that a page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from supervisor.events import MAX_COUNTED
from supervisor.http.pages.rendering import parsed
from supervisor.stores.problems import Present
from supervisor.text.units import format_duration

MAX_WORKERS = 200
MAX_PARTITIONS = 50
Row = Mapping[str, Any]


class Queues(NamedTuple):
    rows: list[Row]
    """By name."""
    total: int

    @property
    def left_out(self) -> int:
        return self.total - len(self.rows)


def queue_table(status: Row, most: int) -> Queues:
    """Return the queues by name; the busiest ones if there are more than `most`."""
    rows = status["queues"]
    if len(rows) > most:
        busy = ("queue_size", "retry_queue_size", "in_flight", "scheduled", "blocked")
        rows = sorted(rows, key=lambda row: (row["paused"], sum(row[name] for name in busy)), reverse=True)[:most]
    return Queues(sorted(rows, key=lambda row: row["queue"]), len(status["queues"]))


def totals(status: Row) -> dict[str, Any]:
    queues = status["queues"]
    workers = [worker for each in status["supervisors"] for worker in each["workers"]]
    found = {
        name: sum(row[name] for row in queues)
        for name in ("queue_size", "retry_queue_size", "blocked", "scheduled", "in_flight", "failed")
    }
    pending = max((row["pending"] for row in status["sinks"]), default=0)
    return {
        **found,
        "workers": len(workers),
        "busy": sum(1 for worker in workers if worker.get("current_job")),
        "pending": pending,
        "is_pending_cut": pending >= MAX_COUNTED,
    }


def supervisor_table(status: Row, now: datetime) -> list[dict[str, Any]]:
    present = Present(status)
    found = []
    for each in status["supervisors"]:
        workers = sorted((_worker(it, now) for it in each["workers"]), key=_longest_first)
        shown = workers[:MAX_WORKERS]
        partitions = partition_table(each["partitions"])
        found.append(
            {
                **each,
                "state": f"not seen for {format_duration(abs(present.age(each)))}"
                if each in present.silent
                else each["state"],
                "is_well": each in present.live and each["state"] == "running",
                "busy": sum(1 for it in workers if it["job"]),
                "worker_count": len(workers),
                "rows": [it for it in shown if it["job"] or it["state"] != "idle"],
                "idle": [it for it in shown if not it["job"] and it["state"] == "idle"],
                "left_out": len(workers) - len(shown),
                "partitions": partitions,
                "partitions_left_out": len(each["partitions"]) - len(partitions),
            }
        )
    return found


def partition_table(partitions: Sequence[Row]) -> list[Row]:
    """Return the partitions of a Kafka store by name; those with the most to do if there are too many."""
    first = sorted(partitions, key=lambda it: (it["held_for"] or 0.0, it["lag"] or 0), reverse=True)[:MAX_PARTITIONS]
    return sorted(first, key=lambda it: (it["topic"], it["partition"]))


def _worker(worker: Row, now: datetime) -> dict[str, Any]:
    job = worker.get("current_job")
    return {
        "pid": worker.get("pid"),
        "state": worker.get("state", "unknown"),
        "kind": "async" if worker.get("async") else worker.get("group"),
        "job": job,
        "running": None if job is None else running_for(job, now),
    }


def running_for(job: Row, now: datetime) -> float | None:
    """Return for how many seconds a worker has run its job at this moment, not when its supervisor has written that."""
    started = parsed(job.get("running_since"))
    return None if started is None else max(0.0, (now - started).total_seconds())


def _longest_first(worker: Row) -> tuple[bool, float]:
    return worker["job"] is None, -(worker["running"] or 0.0)
