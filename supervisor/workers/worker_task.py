"""One of the jobs that an async worker may run at once, in place of a process: it passes the orders of its slot to the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from supervisor.jobs import Lease
from supervisor.workers.blame import KillReason
from supervisor.workers.interface import AsyncJobs, WorkerListener, WorkerProcess

if TYPE_CHECKING:
    from supervisor.workers.loop_reports import LoopState


class TaskOwner(Protocol):
    """The async worker of a task: what the task asks of it."""

    cancel_grace: float
    process: WorkerProcess

    def send(self, task: WorkerTask, lease: Lease) -> int:
        """Send the job, and return the number of its frame."""

    def reclaim(self, task: WorkerTask) -> bool:
        """Return whether the job has not started, and never will."""

    def is_untaken(self, task: WorkerTask) -> bool:
        """Return whether the job has not started, as far as known."""

    def stop(self, task: WorkerTask, *, with_stack: bool) -> None: ...
    def task_retired(self, task: WorkerTask) -> None: ...


class TaskListener(WorkerListener, Protocol):
    """The slot of a task."""

    kill_reason: KillReason | None
    started: float

    def reclaim(self) -> None: ...
    def succeeded(self, now: float) -> None:
        """Note that the job has succeeded; its outcome is passed on together with others."""

    def others_succeeded(self) -> None:
        """Note that jobs of any slots of the worker have succeeded."""

    def stop_emitting_exit(self) -> None:
        """Emit no event at the exit: another slot of the worker does."""


class WorkerTask:
    """Implements WorkerProcess: one of the jobs that an async worker may run at once."""

    def __init__(self, worker: TaskOwner, listener: TaskListener) -> None:
        self.listener = listener
        self.lease: Lease | None = None
        self.taken = False  # its permit, as far as known
        self.frame = 0  # of the worker
        self.retired = False
        self.killing: asyncio.TimerHandle | None = None
        self.job_cancelled = False
        self.cancel_grace = worker.cancel_grace
        self._slot_frame = 0
        self._worker = worker

    @property
    def pid(self) -> int | None:
        return self._worker.process.pid

    @property
    def doing(self) -> str:
        return self._worker.process.doing

    @property
    def async_jobs(self) -> AsyncJobs:
        return self._worker.process.async_jobs

    @property
    def loop_state(self) -> LoopState:
        return self._worker.process.loop_state

    def send(self, frame: int, leases: Sequence[Lease]) -> None:
        (self.lease,) = leases
        self.taken = False
        self._slot_frame = frame
        self.frame = self._worker.send(self, self.lease)

    def reclaim(self) -> Mapping[int, int]:
        if self.lease is None or self.taken or not self._worker.reclaim(self):
            return {}
        self.lease = None
        return {self._slot_frame: 1}

    def untaken(self) -> int:
        return int(self.lease is not None and not self.taken and self._worker.is_untaken(self))

    def drain(self) -> None:
        self._worker.process.drain()

    def correct(self, right: int) -> None:
        pass

    def kill(self, *, with_stack: bool = False) -> None:
        self._worker.stop(self, with_stack=with_stack)

    def cancel_job(self, grace: float | None) -> None:
        """Note that the job was cancelled, and its grace: the kill of the slot, which follows, cancels the task."""
        self.job_cancelled = self.lease is not None
        self.cancel_grace = self._worker.cancel_grace if grace is None else grace

    @property
    def undisturbed(self) -> bool:
        """Whether nobody wants the end of the job."""
        return not (self.retired or self.killing or self.job_cancelled or self.listener.kill_reason)

    def retire(self, *, cancelled: bool = False) -> None:
        self.retired = True
        self._worker.task_retired(self)

    def cpu_seconds(self) -> float | None:
        return self._worker.process.cpu_seconds()

    def memory(self) -> int | None:
        return self._worker.process.memory()

    def ended(self) -> Lease | None:
        """Note that the job has an outcome, and return it."""
        lease, self.lease = self.lease, None
        self.job_cancelled, self.cancel_grace = False, self._worker.cancel_grace
        if self.killing is not None:
            self.killing.cancel()
            self.killing = None
            self.loop_state.task_ended(self.frame)
        return lease
