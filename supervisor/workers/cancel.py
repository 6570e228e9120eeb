"""End the running job of a slot that was cancelled: ask it first, and kill its worker after a grace."""

from __future__ import annotations

from supervisor.jobs import Lease
from supervisor.workers.blame import LEASE_LOST
from supervisor.workers.interface import State, Timer
from supervisor.workers.pool import Pool
from supervisor.workers.slot import WorkerSlot
from supervisor.workers.worker_task import WorkerTask


def cancel(pool: Pool, slot: WorkerSlot, grace: float | None, timer: Timer) -> None:
    """End the job within `grace` seconds, or at once if that is None. The worker gets no other job, so none can be meant but this
    one; an async worker, in which the task is cancelled, goes on."""
    task, lease = slot.process, slot.current
    if isinstance(task, WorkerTask):
        task.cancel_job(grace)
    elif grace is not None and lease is not None and slot.state is not State.ENDING:
        slot.pool.replace_used_up(slot)
        task.retire(cancelled=True)
        timer.call_later(grace, kill_if_running, pool, slot, lease)
        return
    pool.kill(slot, LEASE_LOST)


def kill_if_running(pool: Pool, slot: WorkerSlot, lease: Lease) -> None:
    if slot.current is lease and slot.state is not State.ENDING:
        pool.kill(slot, LEASE_LOST)
