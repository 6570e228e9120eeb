"""One worker of the pool: the jobs sent to it, its replies to them, and the state it is in.

Exactly the job that was running when a worker ended is blamed. Each job sent has a permit, and whoever takes the permit first,
worker or supervisor, has the job. So once the supervisor has taken every permit that is left and read every reply, `sent` holds
the running job alone, or nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Final, NamedTuple, Protocol

from supervisor.events import Bus, JobStarted, WorkerExited, WorkerStarted, WorkerWarning
from supervisor.jobs import (
    LEASE_HANDLER,
    LEASE_ID,
    LEASE_PAYLOAD,
    LEASE_QUEUE,
    LEASE_RETRIES,
    Cause,
    Failure,
    JobState,
    Kind,
    Lease,
    Outcome,
    SnoozeLimit,
)
from supervisor.text.units import counted
from supervisor.workers import blame
from supervisor.workers.interface import (
    ExitReport,
    PoolListener,
    Reply,
    State,
    WorkerBackend,
    WorkerProgress,
    Written,
    output_event,
    writer_of,
)
from supervisor.workers.limits import Limits
from supervisor.workers.reply_check import REPEATED, ReplyCheck
from supervisor.workers.run_times import FRAME_BYTES, FRAME_JOBS, FRAME_SECONDS, RunTimes

MEMORY_CHECK_INTERVAL = 0.020  # seconds: a check costs more than a quick job
REPLY_JOB_ID: Final = 0  # a field of replies that the hot path takes by index


class SlotOwner(Protocol):
    """The group of a slot. `name` is empty if it has no name."""

    name: str

    def slot_ready(self, slot: WorkerSlot) -> None: ...
    def replace_used_up(self, slot: WorkerSlot) -> None: ...
    def may_replace(self) -> bool: ...
    def fill(self) -> None: ...
    def slot_ended(self, slot: WorkerSlot, *, with_job: bool) -> None: ...


class SlotContext(NamedTuple):
    """The parts that all slots of a pool share. `now` is monotonic seconds."""

    pool: SlotOwner
    listener: PoolListener
    bus: Bus
    times: RunTimes
    now: Callable[[], float]


class WorkerSlot:
    """A worker process and the jobs sent to it. It is the listener of its process."""

    blocked_after = 0.020
    """After so many seconds a running job is reported, and holds up no other one in its worker any longer."""

    __slots__ = (
        "_bus", "_ended", "_frame", "_frames", "_limits", "_listener", "_memory_checked_at", "_now",
        "_replies", "_times", "backend", "done", "emit_exit", "heartbeat_at", "how", "kill_reason", "memory_at_start", "number", "pool", "process", "reached",
        "ready_at", "reported", "retired_at", "retries", "sent", "started", "state", "stuck",
    )  # fmt: skip

    def __init__(self, number: int, backend: WorkerBackend, limits: Limits, context: SlotContext) -> None:
        self.pool = context.pool
        self._listener = context.listener
        self._bus = context.bus
        self._times = context.times
        self._now = context.now
        self._limits = limits
        now = context.now()
        self.number = number
        self.backend = backend
        self.state = State.STARTING
        self.sent: deque[Lease] = deque()  # in order, without those replied to; the first runs if its permit is taken
        self._frame = 0  # the last one sent
        # In order: how many jobs of each frame are in `sent`; has_room limits their number.
        self._frames: dict[int, int] = {}
        self._replies = ReplyCheck()
        self._ended: deque[Sequence[Lease]] = deque(maxlen=4)  # jobs that ended: their output may be read later
        self.retries: Counter[str] = Counter()  # among the jobs in `sent`, by queue
        self.started = now  # since when the first job may be running
        self.ready_at: float | None = None
        self.heartbeat_at = now
        self.retired_at = now  # or the time of its last reply after that
        self.done = 0
        self.kill_reason: blame.KillReason | None = None
        self.stuck: str | None = None  # where in the kernel, once its job has an outcome though it has not exited
        self.reported: Lease | None = None
        self.how = ""  # it ended
        self.emit_exit: Callable[[WorkerExited], None] = context.bus.emit
        self.reached: blame.ExitCause | None = None  # the limit for which it is replaced
        self.memory_at_start = 0
        self._memory_checked_at = now
        self.process = backend.fork(number, self)

    @property
    def current(self) -> Lease | None:
        return self.sent[0] if self.sent else None

    def has_taken(self) -> bool:
        """Return whether the worker runs a job, or has run one whose outcome is not read yet."""
        return self.process.untaken() < len(self.sent)

    def deadline(self) -> float | None:
        """Return the monotonic time at which the running job's timeout ends."""
        if not self.sent or self.state is State.ENDING:
            return None
        timeout = self.sent[0].policy.timeout
        return None if timeout is None else self.started + timeout

    # jobs sent and reclaimed

    def has_room(self) -> bool:
        sent = self.sent
        if self.state is not State.READY or self.is_used_up():
            return False
        if not sent:
            return True
        known = self._times.of(sent[0].handler)
        return len(sent) <= FRAME_JOBS // 2 and known is not None and known * len(sent) < FRAME_SECONDS / 2

    def is_used_up(self) -> bool:
        """Return whether the worker has done, or been sent, as many jobs as it may."""
        max_jobs = self._limits.max_jobs
        return max_jobs is not None and self.done + len(self.sent) >= max_jobs

    def frame_for(self, in_turn: Iterator[Lease], limit: int) -> list[Lease]:
        """Take the next jobs for about ten milliseconds, by the run times of their handlers; one if that is unknown or longer.

        Hot path. It takes no job that it does not return.
        """
        if self._limits.max_jobs is not None:
            limit = min(limit, self._limits.max_jobs - self.done - len(self.sent))
        frame: list[Lease] = []
        seconds, size, handler, each = 0.0, 0, None, 0.0
        for lease in islice(in_turn, max(0, limit)):
            frame.append(lease)
            size += len(lease[LEASE_PAYLOAD])
            if lease[LEASE_HANDLER] is not handler:  # the leases of a claim share the text
                handler = lease[LEASE_HANDLER]
                each = self._times.of(handler) or FRAME_SECONDS
            seconds += each
            if seconds >= FRAME_SECONDS or size >= FRAME_BYTES:
                break
        return frame

    def send(self, leases: Sequence[Lease]) -> None:
        self._frame = (self._frame + 1) & 255
        if not self.sent:
            self.started = self._now()
        self.sent.extend(leases)
        self._frames[self._frame] = len(leases)
        if retries := _queues_of_retries(leases):
            self.retries.update(retries)
        self.process.send(self._frame, leases)

    def reclaim(self) -> None:
        """Reclaim the jobs that the worker has not started: it will never start them."""
        taken = self.process.reclaim() if self.sent else None
        if not taken:
            return
        reclaimed: list[Lease] = []
        kept: deque[Lease] = deque()
        frames: dict[int, int] = {}
        for frame, count in self._frames.items():
            started = max(0, count - taken.get(frame, 0))
            jobs = [self.sent.popleft() for _ in range(count)]
            kept.extend(jobs[:started])
            reclaimed.extend(jobs[started:])
            if started:
                frames[frame] = started
        self.sent, self._frames, self.retries = kept, frames, Counter(_queues_of_retries(kept))
        if reclaimed:
            self._listener.jobs_reclaimed(reclaimed)

    def reclaim_blocked(self) -> None:
        """Reclaim the jobs behind the running one, which turned out to be long."""
        if self.sent:
            self._times.at_least(self.sent[0].handler, self._now() - self.started)
        self.reclaim()

    def runs_a_job(self) -> bool:
        """Return whether the worker runs a job. This is certain only after the jobs that it has not started are reclaimed."""
        self.reclaim()
        return bool(self.sent)

    def report_started(self) -> None:
        """Emit JobStarted for the running job, once."""
        lease, pid = self.current, self.process.pid
        if lease is not None and lease is not self.reported and pid is not None and self.has_taken():
            self.reported = lease
            self._bus.emit(JobStarted(lease, pid))

    # the end of the worker, as the pool wants it

    def retire(self) -> None:
        """Make the worker exit after the job that it runs; reclaim the other jobs."""
        self.state, self.retired_at = State.RETIRING, self._now()
        self.reclaim()
        self.process.retire()

    def kill(self, reason: blame.KillReason, *, with_stack: bool = False) -> None:
        """Kill the worker; its running job gets an outcome after the exit. An earlier reason, or an earlier exit, is kept."""
        if self.state is not State.ENDING:
            self.kill_reason = reason
        self.state = State.ENDING
        self.process.kill(with_stack=with_stack)

    # events of the process (WorkerListener)

    def ready(self) -> None:
        if self.process.pid is None:
            return
        self.started = self.heartbeat_at = self.ready_at = self._now()
        if self._limits.max_memory is not None:
            self.memory_at_start = self.process.memory() or 0
        if self.state is State.STARTING:
            self.state = State.READY
        self.pool.slot_ready(self)
        self._bus.emit(WorkerStarted(self.number, self.process.pid))
        self._listener.workers_changed()

    def replied(self, replies: Sequence[Reply]) -> None:
        """Receive outcomes of the first jobs in `sent`, in order. Hot path."""
        now = self._now()
        sent = self.sent
        ids = [reply[REPLY_JOB_ID] for reply in replies]
        if ids != [lease[LEASE_ID] for lease in islice(sent, len(ids))]:
            replies, repeated, wrong = self._replies.check(sent, replies)
            ids = [reply[REPLY_JOB_ID] for reply in replies]
            self.process.correct(len(replies))
            if repeated is not None:
                self.warn(REPEATED.format(repeated))
            if wrong is not None:
                self.channel_broken(f"a reply for job {wrong}, which it does not run")
        leases = [sent.popleft() for _ in replies]
        self.started = self.heartbeat_at = self.retired_at = now
        if leases:
            self._ended.append(leases)
            self._replies.answered.extend(ids)
            self._count_done(leases)
            _, kinds, times, results, _ = zip(*replies, strict=True)
            self._times.learn_each([lease[LEASE_HANDLER] for lease in leases], times)
            outcomes = successes(leases, times, results)
            if kinds.count("ok") < len(kinds):
                outcomes = [
                    outcome if reply.kind == "ok" else outcome_of_failed(lease, reply, self.process.pid)
                    for outcome, lease, reply in zip(outcomes, leases, replies, strict=True)
                ]
            self._listener.jobs_ended(outcomes)
        if self.state is State.READY:
            self.reached = self._limit_reached(now)
            if self.reached is not None or self._replies.repeated:
                self.pool.replace_used_up(self)
        self._listener.workers_changed()

    def _count_done(self, leases: Sequence[Lease]) -> None:
        count = len(leases)
        if self.retries:
            self.retries -= Counter(_queues_of_retries(leases))
        self.done += count
        frames = self._frames
        while count > 0 and frames:
            frame, unanswered = next(iter(frames.items()))
            if unanswered > count:
                frames[frame] = unanswered - count
            else:
                del frames[frame]
            count -= unanswered

    def _limit_reached(self, now: float) -> blame.ExitCause | None:
        """Return the limit that the worker has reached. Its memory must have grown; if it has more jobs, check that at intervals."""
        max_jobs, max_memory, setting, _ = self._limits
        if max_jobs is not None and not self.sent and self.is_used_up():
            share = f"{counted(max_jobs, 'job', 'are')} its share after a start: " if max_jobs != setting else ""
            return blame.ExitCause("max_jobs", f"{share}workers.max_jobs is {setting}")
        if max_memory is None or (self.sent and now < self._memory_checked_at + MEMORY_CHECK_INTERVAL):
            return None
        self._memory_checked_at = now
        return self._limits.reached_by_memory(self.process.memory(), self.memory_at_start)

    def heartbeat(self) -> None:
        if self.kill_reason is None:  # the signal that requests the stack may wake a job that hung
            self.heartbeat_at = self._now()

    def output(self, written: Written) -> None:
        lease = writer_of(written, chain(self.sent, *reversed(self._ended)))
        if lease is not None:
            self._listener.job_wrote(lease, written)
        if not isinstance(written, WorkerProgress):
            self._bus.emit(output_event(self.number, self.process.pid or 0, written, lease))

    def warn(self, message: str) -> None:
        self._bus.emit(WorkerWarning(self.number, self.process.pid or 0, message))

    def channel_broken(self, why: str) -> None:
        self.kill(blame.broken_channel(why))

    def not_ready(self, why: str) -> None:
        self.kill(blame.not_ready(why))

    def exited(self) -> None:
        """Replace the worker before the forkserver reaps it, if it ran a job or was killed after it was ready."""
        if self.ready_at is None:
            return
        self.reclaim()
        if self.sent or self.kill_reason is not None:
            self.state = State.ENDING
            self.pool.fill()
        elif self.state is State.READY:
            self.state = State.EXITED

    def ended(self, report: ExitReport) -> None:
        """Blame the job that was running. The pool replaces the worker if it has not done so yet."""
        if self.stuck is not None:
            self.pool.slot_ended(self, with_job=False)
            self.warn("was stuck in the kernel, and has exited")
            self._listener.workers_changed()
            return
        self.stuck = report.stuck
        self.reclaim()
        ran, age = self._now() - self.started, self._now() - self.heartbeat_at
        culprit = self.sent.popleft() if self.sent else None
        retiring, idle = self.state is State.RETIRING, culprit is None
        ended_by = blame.exit_cause(report, self.kill_reason, self.reached, retiring=retiring, idle=idle)
        self.how = ended_by.how
        self.pool.slot_ended(self, with_job=culprit is not None)
        if self.sent:
            self._listener.jobs_reclaimed(list(self.sent))
        blamed = None if self.kill_reason is blame.SUSPECT else culprit
        if blamed is not None:
            outcome = blame.outcome_at_exit(blamed, self.kill_reason, report, ran=ran, heartbeat_age=age)
            self._listener.jobs_ended([outcome])
        elif culprit is not None:
            self._listener.jobs_reclaimed([blame.suspected(culprit)])
        job = (None, None, None) if blamed is None else (blamed.id, blamed.handler, ran)
        self.emit_exit(WorkerExited(self.number, report.pid, *ended_by, *job))
        for survivor in report.survivors:
            self.warn(blame.SURVIVES.format(survivor, f"job {culprit.id} ({culprit.handler})" if culprit else "no job"))
        if self.stuck is not None:
            self.warn(blame.STUCK.format(self.stuck))
        self._listener.workers_changed()


def _queues_of_retries(leases: Iterable[Lease]) -> list[str]:
    """Return the queue of each retry among these jobs. Hot path."""
    return [lease[LEASE_QUEUE] for lease in leases if lease[LEASE_RETRIES]]


def successes(leases: Sequence[Lease], times: Sequence[float], results: Sequence[str | None]) -> list[Outcome]:
    """Hot path: each is built from the fields of Outcome in their order, without Python code for each."""
    no, none = repeat(False), repeat(None)
    columns = (
        leases, repeat(Kind.SUCCEEDED), results, times, none, repeat(True), none, repeat(JobState.SUCCEEDED), repeat(0.0),
        no, no, none, none,
    )  # fmt: skip
    return [*map(tuple.__new__, repeat(Outcome), zip(*columns, strict=False))]


_CAUSES = {"rejected": Cause.REJECTED, "timeout": Cause.TIMEOUT, "unknown": Cause.UNKNOWN_HANDLER}


def outcome_of_failed(lease: Lease, reply: Reply, pid: int | None) -> Outcome:
    """Return the outcome of an attempt that failed by the report of its worker."""
    error = reply.error or {}
    failure = Failure(
        _CAUSES.get(reply.kind, Cause.EXCEPTION), type=str(error.get("type", "")), message=str(error.get("message", "")),
        traceback=str(error.get("traceback", "")), attempt=lease.attempt, stderr=error.get("stderr"),
        peak_memory=error.get("peak_memory"), host=blame.HOST, pid=pid,
    )  # fmt: skip
    after = error.get("after")
    retry_after = None if after is None else max(0.0, float(after))
    if reply.kind == "snoozed":
        limit = SnoozeLimit(error.get("most"), error.get("until"), failure)
        return Outcome(lease, Kind.SNOOZED, took=reply.took, retry_after=retry_after, snooze=limit)
    retryable = bool(error.get("retryable", True))
    return Outcome(lease, Kind.FAILED, None, reply.took, failure, retryable=retryable, retry_after=retry_after)
