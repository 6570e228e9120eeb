"""The slot of one task of an async worker: it runs one job at a time, and shares the process with other slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from supervisor.events import WorkerExited
from supervisor.jobs import Lease
from supervisor.workers.async_worker import AsyncWorker
from supervisor.workers.blame import outcome_of_cancelled
from supervisor.workers.interface import Reply, State
from supervisor.workers.limits import Limits
from supervisor.workers.sent_ahead import QUICK_SECONDS
from supervisor.workers.slot import SlotContext, SlotOwner, WorkerSlot
from supervisor.workers.worker_task import WorkerTask

NO_LIMITS = Limits(None, None)
"""The limits of a worker are checked for all its slots together."""


class TaskOwner(SlotOwner, Protocol):
    """The pool of async workers, as the slots use it."""

    def job_done(self, worker: AsyncWorker) -> None: ...


class TaskSlot(WorkerSlot):
    __slots__ = ("_owner", "sole", "worker")

    blocked_after = QUICK_SECONDS
    """A job that was sent ahead and still waits by then is reclaimed."""

    def __init__(self, worker: AsyncWorker, context: SlotContext, owner: TaskOwner) -> None:
        self.worker = worker
        self._owner = owner
        self.sole: Lease | None = None
        """The only job that it will get, while that is not sent yet."""
        super().__init__(worker.number, worker, NO_LIMITS, context)
        self.backend = worker.backend

    def has_room(self) -> bool:
        return not self.sent and self.state is State.READY and self.worker.room > 0

    def frame_for(self, in_turn: Iterator[Lease], limit: int) -> list[Lease]:
        return super().frame_for(in_turn, int(self.worker.room > 0))

    def send(self, leases: Sequence[Lease]) -> None:
        self.worker.free.pop(self, None)
        super().send(leases)

    def reclaim(self) -> None:
        super().reclaim()
        self.note_free()

    def note_free(self) -> None:
        """Note that the slot waits for a job, if it does."""
        if not self.sent and self.state is State.READY:
            self.worker.free[self] = None

    def report_started(self) -> None:
        """Do so, or reclaim the job if it was sent ahead, and still waits for the end of another one."""
        assert isinstance(self.process, WorkerTask)
        if self.process.frame in self.worker.ahead:
            self.worker.ahead.limit = 0
            self.reclaim()
            self.worker.ahead.forget(self.process.frame)  # if it was seen to run, nothing was reclaimed
        else:
            super().report_started()

    def retire(self) -> None:
        super().retire()
        self.worker.free.pop(self, None)

    def replied(self, replies: Sequence[Reply]) -> None:
        """Receive the outcome. If the job was to be killed, it has ended in time after it was cancelled, and its worker goes on."""
        self._receive(replies)
        self.note_free()
        if self.worker.leaving and self.state is not State.ENDING:
            self.retire()
        else:
            self._owner.job_done(self.worker)

    def succeeded(self, now: float) -> None:
        """Do what `replied` does, but for what the worker does for all its slots together. Hot path."""
        lease = self.sent.popleft()
        self.started = self.heartbeat_at = self.retired_at = now
        self._ended.append((lease,))
        self._frames.clear()
        self.done += 1
        if self.retries:
            self.retries.clear()
        self.worker.free[self] = None

    def others_succeeded(self) -> None:
        self._owner.job_done(self.worker)

    def _receive(self, replies: Sequence[Reply]) -> None:
        reason, self.kill_reason = self.kill_reason, None
        if self.state is State.ENDING:
            self.state = State.RETIRING if self.worker.leaving else State.READY
        (reply,) = replies
        error = reply.error
        # A handler may raise anything when it is cancelled. Without a cause the job runs again, whatever it returns now.
        if reason is None or (error is None and reason.cause is not None):
            super().replied(replies)
            return
        lease = self.sent.popleft()
        self.heartbeat_at = self.retired_at = self._now()
        self._ended.append([lease])
        self._count_done([lease])
        self._listener.jobs_ended([outcome_of_cancelled(lease, reason, reply, self.process.pid or 0)])
        self._listener.workers_changed()

    def stop_emitting_exit(self) -> None:
        """Another slot of the worker emits the event of its exit."""
        self.emit_exit = _ignore


def _ignore(_event: WorkerExited) -> None:
    pass
