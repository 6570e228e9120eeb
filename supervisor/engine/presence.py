"""What a supervisor tells of itself and its workers, in the shape that `status --json` prints."""

from __future__ import annotations

from typing import Any

from supervisor.stores.records import Presence
from supervisor.workers.pool import Pool
from supervisor.workers.slot import State, WorkerSlot


def presence(state: str, pool: Pool, now: float, ttl: float) -> Presence:
    """`now` is monotonic seconds."""
    return Presence(state, [_row(worker, now) for worker in pool.workers.values()], pool.idle_count(), ttl)


def _row(worker: WorkerSlot, now: float) -> dict[str, Any]:
    return {"pid": worker.process.pid, "state": _state(worker), "current_job": _current_job(worker, now)}


def _state(worker: WorkerSlot) -> str:
    if worker.state is State.READY:
        return "busy" if worker.sent else "idle"
    return str(worker.state.value)


def _current_job(worker: WorkerSlot, now: float) -> dict[str, Any] | None:
    lease = worker.current
    if lease is None:
        return None
    return {
        "job_id": lease.id,
        "handler": lease.handler,
        "retry_count": lease.retries,
        "is_retry": lease.retries > 0,
        "running_for": round(now - worker.started, 6),
    }
