"""An async worker: one process that runs many jobs at once, each in a slot of its own.

Each slot has a WorkerTask in place of a process. This module passes the events of the process to the slots concerned, and the
orders of the slots to the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from supervisor.jobs import Cause, Lease, Outcome
from supervisor.workers.blame import BESIDE, SUSPECT, KillReason, blocked_loop, broken_channel, not_ready
from supervisor.workers.interface import (
    AsyncJobs,
    ExitReport,
    PoolListener,
    Reply,
    Timer,
    WorkerBackend,
    WorkerListener,
    Written,
)

if TYPE_CHECKING:
    from supervisor.workers.loop_reports import LoopState


MAX_WAIT = 10.0  # seconds past its grace that a cancelled job gets because of other jobs
MIN_BLOCKED = 0.5  # seconds for which a job blocks the loop before it is blamed for the deadline of another one
LOOK_AGAIN = 0.1


class TaskListener(WorkerListener, Protocol):
    """The slot of a task."""

    kill_reason: KillReason | None

    def reclaim(self) -> None: ...
    def stop_emitting_exit(self) -> None:
        """Emit no event at the exit: another slot of the worker does."""


class WorkerTask:
    """Implements WorkerProcess: one of the jobs that an async worker may run at once."""

    def __init__(self, worker: AsyncWorker, listener: TaskListener) -> None:
        self.listener = listener
        self.lease: Lease | None = None
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
        self._slot_frame = frame
        self.frame = self._worker.send(self, self.lease)

    def reclaim(self) -> Mapping[int, int]:
        if self.lease is None or not self._worker.reclaim(self):
            return {}
        self.lease = None
        return {self._slot_frame: 1}

    def untaken(self) -> int:
        return int(self.lease is not None and self._worker.is_untaken(self))

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


class GatheredOutcomes:
    """The listener of the slots. What it gets while outcomes are gathered is passed on together: a change of each of a hundred slots
    would cost a look at all of them."""

    def __init__(self, listener: PoolListener) -> None:
        self.jobs_reclaimed = listener.jobs_reclaimed
        self.plugins_reported = listener.plugins_reported
        self._listener = listener
        self._outcomes: list[Outcome] | None = None

    @contextmanager
    def gathered(self) -> Iterator[None]:
        if self._outcomes is not None:  # the outer block passes them on
            yield
            return
        self._outcomes = []
        try:
            yield
        finally:
            outcomes, self._outcomes = self._outcomes, None
            if outcomes:
                self._listener.jobs_ended(outcomes)
            self._listener.workers_changed()

    def jobs_ended(self, outcomes: list[Outcome]) -> None:
        if self._outcomes is None:
            self._listener.jobs_ended(outcomes)
        else:
            self._outcomes += outcomes

    def workers_changed(self) -> None:
        if self._outcomes is None:
            self._listener.workers_changed()


class AsyncWorker:
    """The listener of an async worker's process. `cancel_grace` is seconds."""

    def __init__(
        self, backend: WorkerBackend, number: int, concurrency: int, cancel_grace: float, timer: Timer,
        outcomes: GatheredOutcomes,
    ) -> None:  # fmt: skip
        self._outcomes = outcomes
        self.number = number
        self.backend = backend
        self.done = 0
        self.max_jobs: int | None = None
        self.memory_at_start = 0
        self.memory_due = 0.0  # when to look at its memory again
        self._taken = 0
        self.leaving = False  # it gets no more jobs
        self.ready_at: float | None = None
        self.cancel_grace = cancel_grace
        self._timer = timer
        self._tasks: list[WorkerTask] = []
        self._busy: dict[int, WorkerTask] = {}  # by frame
        self._of_jobs: dict[int, WorkerTask] = {}  # the last that had each job; the newest
        self._culprit: WorkerTask | None = None
        self._killed = False
        self._ended = False
        self._emitter: WorkerTask  # the task whose slot emits the event of the exit
        self.process = backend.fork(number, self, concurrency)

    def fork(self, number: int, listener: Any, concurrency: int = 0) -> WorkerTask:
        """Return the next task, for this slot."""
        task = WorkerTask(self, listener)
        self._tasks.append(task)
        return task

    @property
    def idle(self) -> bool:
        return not self._busy

    @property
    def takes_jobs(self) -> bool:
        return not self.leaving and (self.max_jobs is None or self._taken < self.max_jobs)

    # orders of the tasks

    def send(self, task: WorkerTask, lease: Lease) -> int:
        self._taken += 1
        frame = self.process.async_jobs.send_job(lease)
        self._busy[frame] = self._of_jobs[lease.id] = task
        if len(self._of_jobs) > 4 * len(self._tasks):
            self._of_jobs = {task.lease.id: task for task in self._busy.values() if task.lease is not None}
        return frame

    def reclaim(self, task: WorkerTask) -> bool:
        reclaimed = bool(self.process.async_jobs.reclaim_frames({task.frame}, self._busy))
        if reclaimed:
            self._taken -= 1
            del self._busy[task.frame]
        return reclaimed

    def is_untaken(self, task: WorkerTask) -> bool:
        return task.frame in self.process.async_jobs.untaken_frames(self._busy)

    def stop(self, task: WorkerTask, *, with_stack: bool) -> None:
        """Cancel the job of the task; kill the process if that does not end it in time."""
        if self._killed or task.killing is not None:
            return
        if task.lease is None:
            if not self._busy:
                self._kill(None, with_stack)
            return
        number = self.process.async_jobs.cancel(task.frame, of_job=task.job_cancelled)
        self.process.loop_state.order_sent(task.frame, number)
        task.killing = self._timer.call_later(task.cancel_grace, self._judge, task, with_stack, self._timer.time())

    def _judge(self, task: WorkerTask, with_stack: bool, sent_at: float) -> None:
        """Kill the process, since a job was cancelled and has not ended, and blame a job: that one, or the one that blocks the loop. Wait
        on if the loop is slow, or has been blocked for less than the job was to get.
        """
        self.process.drain()
        reason = task.listener.kill_reason
        if task.killing is None or self._killed:
            return
        if reason is None or reason.cause is None:
            self._kill(task, with_stack)
            return
        untaken = self.process.async_jobs.untaken_frames(self._busy)
        running = [each for frame, each in self._busy.items() if frame not in untaken]
        now, state = self._timer.time(), self.process.loop_state
        waited, blocked = now - sent_at, state.blocked
        seconds = 0.0 if blocked is None else now - blocked.since
        blocker = next(
            (it for it in running if it.lease is not None and blocked and it.lease.id == blocked.job_id), None
        )
        read_at = state.read_at.get(task.frame)
        had_grace = read_at is not None and now - read_at >= task.cancel_grace - LOOK_AGAIN / 2
        is_long = seconds >= max(task.cancel_grace, MIN_BLOCKED)
        waits = waited < task.cancel_grace + MAX_WAIT and reason.cause is Cause.TIMEOUT
        if blocker is task:
            self._blame(task, blocked_loop(reason, seconds, ""), with_stack)
        elif running == [task] or (had_grace and (blocked is None or not (is_long or waits))):
            self._blame(task, reason, with_stack)
        elif waits and not is_long:
            state.ask()
            task.killing = self._timer.call_later(LOOK_AGAIN, self._judge, task, with_stack, sent_at)
        elif blocker is not None and is_long and task.lease is not None:
            about = f"job {task.lease.id} ({task.lease.handler})"
            self._blame(blocker, blocked_loop(reason, seconds, about), with_stack)
        else:
            self.warn(
                f"has not run its event loop for {max(waited, seconds):.1f}s, and no job is known to block it: killed"
            )
            self._kill_with(running, SUSPECT)

    def _blame(self, culprit: WorkerTask, reason: KillReason, with_stack: bool) -> None:
        """Kill the process for the job of the culprit. A job that was to end without an outcome of its own still does."""
        for task in self._busy.values():
            known = task.listener.kill_reason
            if known is None or known.cause is not None:
                task.listener.kill_reason = reason if task is culprit else BESIDE
        self._kill(culprit, with_stack)

    def _kill(self, culprit: WorkerTask | None, with_stack: bool) -> None:
        self._culprit = culprit
        self.leaving = self._killed = True
        self.process.kill(with_stack=with_stack)

    def kill_for_any(self, reason: KillReason) -> None:
        """Kill the process for what any of its jobs may have done: if there are several, each runs again alone."""
        self.leaving = True
        for task in list(self._tasks):
            task.listener.reclaim()
        self.process.drain()
        if self._killed:
            return
        busy = [*self._busy.values()]
        if len(busy) > 1:
            self.warn(reason.message)
        self._kill_with(busy or self._tasks, reason)

    def _kill_with(self, tasks: Sequence[WorkerTask], reason: KillReason) -> None:
        for task in tasks:
            known = task.listener.kill_reason
            if known is None or known.cause is not None:
                task.listener.kill_reason = SUSPECT if len(self._busy) > 1 else reason
        self._kill(None, with_stack=False)

    def task_retired(self, task: WorkerTask) -> None:
        """End the task once it has no job, and the process once no task is left."""
        if task.lease is None and not self._ended:
            self._timer.call_later(0, self._end_task, task)

    def _end_task(self, task: WorkerTask) -> None:
        if task not in self._tasks or self._killed:
            return
        first = self._tasks[0]  # it ends with the process
        if task is not first:
            self._tasks.remove(task)
            task.listener.stop_emitting_exit()
            task.listener.ended(ExitReport(self.process.pid or 0, exit_code=0))
        if len(self._tasks) == 1 and first.retired and first.lease is None:
            self.leaving = True
            self.process.retire()

    # events of the process (WorkerListener)

    def ready(self) -> None:
        self.ready_at, self.memory_at_start = self._timer.time(), self.process.memory() or 0
        with self._outcomes.gathered():
            for task in self._tasks:
                task.listener.ready()

    def replied(self, replies: Sequence[Reply]) -> None:
        with self._outcomes.gathered():
            self._pass_on(replies)

    def _pass_on(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            task = self._of_jobs.get(reply.job_id)
            if task is None or task.lease is None or task.lease.id != reply.job_id:
                self.channel_broken(f"a reply for job {reply.job_id}, which it does not run")
                return
            del self._busy[task.frame]
            task.ended()
            self.done += 1
            task.listener.replied([reply])
            if task.retired:
                self.task_retired(task)

    def heartbeat(self) -> None:
        for task in self._tasks:
            task.listener.heartbeat()

    def output(self, written: Written) -> None:
        task = self._of_jobs.get(written.job_id or 0, self._tasks[0])
        task.listener.output(written)

    def warn(self, message: str) -> None:
        self._tasks[0].listener.warn(message)

    def channel_broken(self, why: str) -> None:
        self._kill_with([*self._busy.values()], broken_channel(why))

    def not_ready(self, why: str) -> None:
        for task in self._tasks:
            task.listener.kill_reason = not_ready(why)
        self._kill(None, with_stack=False)

    def exited(self) -> None:
        self.leaving = True
        for task in list(self._tasks):
            task.listener.exited()

    def ended(self, report: ExitReport) -> None:
        """Blame the job for which the process was killed, or the only one that ran; the others lose no retry."""
        self.leaving = True
        if self._ended:  # it was stuck in the kernel, and has exited
            self._emitter.listener.ended(report)
            return
        self._ended = True
        for task in self._tasks:
            task.listener.reclaim()
        busy = [task for task in self._tasks if task.lease is not None]
        alone = len(busy) == 1 and not self._killed
        for task in busy:
            if task is not self._culprit and not alone and task.listener.kill_reason is None:
                task.listener.kill_reason = BESIDE if self._killed else SUSPECT
        self._emitter = self._culprit or (busy or self._tasks)[0]
        with self._outcomes.gathered():
            for task in list(self._tasks):
                task.ended()
                if task is not self._emitter:
                    task.listener.stop_emitting_exit()
                    task.listener.ended(replace(report, stuck=None, survivors=()))
            self._emitter.listener.ended(report)
