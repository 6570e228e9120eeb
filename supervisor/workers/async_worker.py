"""An async worker: one process that runs many jobs at once, each in a slot of its own.

Each slot has a WorkerTask in place of a process. This module passes the events of the process to the slots concerned, and the
orders of the slots to the process. There are more slots than jobs that may run at once: the others are for jobs sent ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from supervisor.jobs import LEASE_ID, Cause, Lease
from supervisor.workers.blame import BESIDE, SUSPECT, KillReason, blocked_loop, broken_channel, not_ready
from supervisor.workers.gathered_outcomes import GatheredOutcomes
from supervisor.workers.interface import ExitReport, Reply, Timer, WorkerBackend, Written
from supervisor.workers.overdue import LOOK_AGAIN, Blame, Overdue
from supervisor.workers.sent_ahead import SentAhead
from supervisor.workers.worker_task import WorkerTask

LOOK_SECONDS = 0.001
"""For so long, what was seen of the permits holds: to look takes all that are left from the worker, and writes them again."""


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
        self.apart = False  # it was forked for the jobs of one that has crashed
        self.ready_at: float | None = None
        self.cancel_grace = cancel_grace
        self._timer = timer
        self.free: dict[Any, None] = {}
        """The slots that wait for a job; some may not take one any more."""
        self.concurrency = concurrency
        self.ahead = SentAhead(concurrency)
        self._looked_at = float("-inf")  # which permits it has taken
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
    def room(self) -> int:
        """How many more jobs it takes now."""
        if self.leaving:
            return 0
        room = self.concurrency + self.ahead.limit - len(self._busy)
        return room if self.max_jobs is None else min(room, self.max_jobs - self._taken)

    # orders of the tasks

    def send(self, task: WorkerTask, lease: Lease) -> int:
        self._taken += 1
        frame = self.process.async_jobs.send_job(lease)
        self._busy[frame] = self._of_jobs[lease.id] = task
        self.ahead.sent(frame, task.listener, len(self._busy))
        if len(self._of_jobs) > 4 * len(self._tasks):
            self._of_jobs = {task.lease.id: task for task in self._busy.values() if task.lease is not None}
        return frame

    def reclaim(self, task: WorkerTask) -> bool:
        reclaimed = bool(self.process.async_jobs.reclaim_frames({task.frame}, self._busy))
        if reclaimed:
            self._taken -= 1
            del self._busy[task.frame]
        else:
            task.taken = True
        self.ahead.forget(task.frame)
        return reclaimed

    def is_untaken(self, task: WorkerTask) -> bool:
        if task.frame in self.ahead:
            return True
        now = self._timer.time()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            untaken = self.process.async_jobs.untaken_frames(self._busy)
            for frame, each in self._busy.items():
                each.taken = frame not in untaken
        return not task.taken

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
        if reason is None or reason.cause is None or task.lease is None:
            self._kill(task, with_stack)
            return
        untaken = self.process.async_jobs.untaken_frames(self._busy)
        running = [each for frame, each in self._busy.items() if frame not in untaken]
        now, state = self._timer.time(), self.process.loop_state
        waited, seconds, blocker = now - sent_at, 0.0, None
        if state.blocked is not None:
            seconds, job_id = now - state.blocked.since, state.blocked.job_id
            blocker = next((each for each in running if each.lease is not None and each.lease.id == job_id), None)
        read_at = state.read_at.get(task.frame)
        overdue = Overdue(
            waited, task.cancel_grace, late=reason.cause is Cause.TIMEOUT, read=None if read_at is None else now - read_at,
            blocked=None if state.blocked is None else seconds, blocks=blocker is task,
            blocker_known=blocker is not None, alone=running == [task],
        )  # fmt: skip
        match overdue.blame:
            case Blame.JOB:
                self._blame(task, blocked_loop(reason, seconds, "") if blocker is task else reason, with_stack)
            case Blame.BLOCKER if blocker is not None:
                about = f"job {task.lease.id} ({task.lease.handler})"
                self._blame(blocker, blocked_loop(reason, seconds, about), with_stack)
            case Blame.NOBODY_YET:
                state.ask()
                task.killing = self._timer.call_later(LOOK_AGAIN, self._judge, task, with_stack, sent_at)
            case _:
                how_long = f"{max(waited, seconds):.1f}s"
                self.warn(f"has not run its event loop for {how_long}, and no job is known to block it: killed")
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
            if (wrong := self._pass_on(replies)) is not None:
                self.channel_broken(f"a reply for job {wrong}, which it does not run")

    def _pass_on(self, replies: Sequence[Reply]) -> int | None:
        """Pass the replies to their slots, up to one for a job that the worker does not run; return the id of that one. Hot path."""
        now, wrong, leaving = self._timer.time(), None, self.leaving
        self._looked_at = float("-inf")
        succeeded: list[tuple[Lease, float, str | None]] = []
        for reply in replies:
            job_id, kind, took, result, _ = reply
            task = self._of_jobs.get(job_id)
            if task is None or (lease := task.lease) is None or lease[LEASE_ID] != job_id:
                wrong = job_id
                break
            del self._busy[task.frame]
            self.done += 1
            self.ahead.ended(task.frame, now)
            if kind == "ok" and not leaving and task.undisturbed:
                task.lease = None
                task.listener.succeeded(now)
                succeeded.append((lease, took, result))
                continue
            task.ended()
            task.listener.replied([reply])
            if task.retired:
                self.task_retired(task)
        if succeeded:
            self._outcomes.jobs_succeeded(*zip(*succeeded, strict=True))
            self._tasks[0].listener.others_succeeded()
        self.ahead.learn(self._outcomes.times.mean)
        return wrong

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
