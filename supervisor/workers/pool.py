"""The books of the worker pool: which job is where, since when, and who is to blame. It touches no process itself.

The permit rule makes blame exact: permits put, less permits taken back, less replies read, is 1 if the child was running a
job and 0 if it was not; the running job is the first one without a reply.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Protocol

from supervisor.events import (
    Bus,
    ForkserverExited,
    ForkserverStarted,
    JobStarted,
    WorkerExited,
    WorkerOutput,
    WorkerStarted,
)
from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome
from supervisor.plugins.reports import SourceReport
from supervisor.workers.interface import ExitReport, Reply, WorkerBackend, WorkerProcess
from supervisor.workers.kill_reasons import KillReason, broken_channel
from supervisor.workers.run_times import RunTimes
from supervisor.workers.slot import State, WorkerSlot

FRAME_SECONDS = 0.010
FRAME_JOBS = 256
FRAME_BYTES = 256 * 1024
REFORK_DELAYS = (0.1, 30.0)
FILL_AFTER = 0.050
USEFUL_AFTER = 1.0
REPLACE_EVERY = 5.0  # seconds
MEMORY_CHECK_INTERVAL = 0.020
HOST = socket.gethostname()


class PoolListener(Protocol):
    """What the engine hears from the pool."""

    def jobs_ended(self, outcomes: list[Outcome]) -> None: ...
    def jobs_reclaimed(self, leases: list[Lease]) -> None:
        """Dispatched and never started: to be dispatched again."""

    def workers_changed(self) -> None:
        """A worker may have room, or has gone."""

    def plugins_reported(self, reports: Sequence[SourceReport]) -> None: ...


class Timer(Protocol):
    """The loop, as far as the pool needs it."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any: ...


class Pool:
    """Keeps `count` workers, each with at most about ten milliseconds of work, and replaces those that end."""

    backend: WorkerBackend
    listener: PoolListener

    def __init__(
        self, count: int, bus: Bus, timer: Timer, *, max_jobs: int | None = None, max_memory: int | None = None
    ) -> None:
        self.count = count
        self.max_jobs = max_jobs
        self.max_memory = max_memory
        self.times = RunTimes()
        self.workers: dict[int, WorkerSlot] = {}
        self.stopping = False
        self._opened = False
        self._bus = bus
        self._timer = timer
        self._last_number = 0
        self._refork_delay = 0.0
        self._delay_stands_until = 0.0
        self._forgiven = False
        self._replaced_at = float("-inf")
        self._reforks: set[object] = set()  # a token for each place that waits for its delay
        self._by_child: dict[int, WorkerSlot] = {}

    def open(self, backend: WorkerBackend, listener: PoolListener) -> None:
        """Fill the places with these children; the listener hears from now on."""
        self.backend, self.listener = backend, listener
        self._opened = True
        self.fill()

    # filling places

    def resize(self, count: int) -> None:
        """Before it is opened, it is opened with so many."""
        self.count = count
        self.fill()

    def fill(self) -> None:
        """Fork until there are as many workers as wanted; retire those too many."""
        if self.stopping or not self._opened:
            return
        living = [w for w in self.workers.values() if w.state in (State.STARTING, State.READY)]
        for _ in range(self.count - len(living) - len(self._reforks)):
            self._fork()
        idle_first = sorted(living, key=lambda w: (bool(w.sent), -w.number))
        for worker in idle_first[: max(0, len(living) - self.count)]:
            self.retire(worker)

    def _fork(self) -> None:
        self._last_number += 1
        process = self.backend.fork(self._last_number)
        worker = WorkerSlot(self._last_number, process, self.backend, self._timer.time())
        self.workers[worker.number] = self._by_child[id(process)] = worker

    def _fork_after_delay(self) -> None:
        """Children that die before they have been of any use are replaced with growing delays; the delay grows once for
        all that die in the course of it, or many places would soon wait for the longest."""
        if self.stopping:
            return
        now = self._timer.time()
        if now >= self._delay_stands_until:
            first, most = REFORK_DELAYS
            self._refork_delay = min(most, max(first, 2 * self._refork_delay))
            self._delay_stands_until = now + self._refork_delay
        place = object()
        self._reforks.add(place)
        self._timer.call_later(self._refork_delay, self._refork_now, place)

    def _refork_now(self, place: object) -> None:
        if place in self._reforks:
            self._reforks.remove(place)
            self.fill()

    def _forget_delays(self) -> None:
        self._refork_delay, self._delay_stands_until, self._forgiven = 0.0, 0.0, False

    def retire(self, worker: WorkerSlot) -> None:
        """Let it finish the job it runs, give back the rest, and end it in good order; its place is filled at once."""
        worker.state, worker.retired_at = State.RETIRING, self._timer.time()
        self._reclaim(worker)
        worker.process.retire()

    def replace(self, pid: int) -> bool:
        """Retire this worker, which lives but can't do its work, for one that may; False if that was done with another just
        now: where none can, they must not be started again and again, and those there are serve what they can."""
        worker = next((w for w in self.workers.values() if w.process.pid == pid and w.state is State.READY), None)
        if worker is None:
            return True
        if self._timer.time() - self._replaced_at < REPLACE_EVERY:
            return False
        self._replaced_at = self._timer.time()
        self.retire(worker)
        self.fill()
        return True

    def renew(self, backend: WorkerBackend) -> WorkerBackend:
        """Replace every worker by one of these `children`; gives the old ones, to be stopped once their workers are gone. If
        they are the same, with a new nursery, those not born yet are its own, and stay.

        What made workers of the old ones die says nothing of these: no place waits for a delay any longer.
        """
        old, self.backend = self.backend, backend
        self._reforks.clear()
        self._forget_delays()
        for worker in list(self.workers.values()):
            newest = worker.backend is backend and worker.process.pid is None
            if worker.state in (State.STARTING, State.READY) and not newest:
                self.retire(worker)
        self.fill()
        return old

    # work

    def slots_with_room(self) -> list[WorkerSlot]:
        """Ready workers that can take another frame now, idle ones first."""
        ready = [w for w in self.workers.values() if w.state is State.READY and not w.gone and self._has_room(w)]
        ready.sort(key=_load)
        return ready

    def idle_count(self) -> int:
        return sum(1 for w in self.workers.values() if w.state is State.READY and not w.gone and not w.sent)

    def ready_count(self) -> int:
        return sum(1 for w in self.workers.values() if w.state is State.READY)

    def _has_room(self, worker: WorkerSlot) -> bool:
        sent = worker.sent
        if not sent:
            return not self._spent(worker)
        if len(sent) > FRAME_JOBS // 2 or self._spent(worker):
            return False
        known = self.times.of(sent[0].handler)
        return known is not None and known * len(sent) < FRAME_SECONDS / 2

    def _spent(self, worker: WorkerSlot) -> bool:
        return self.max_jobs is not None and worker.done + len(worker.sent) >= self.max_jobs

    def frame_for(self, worker: WorkerSlot, in_turn: Iterator[Lease], most: int) -> list[Lease]:
        """About ten milliseconds of work by what each handler has been taking; one job where that is unknown or long.

        Hot path: takes no job more than it gives.
        """
        if self.max_jobs is not None:
            most = min(most, self.max_jobs - worker.done - len(worker.sent))
        frame: list[Lease] = []
        seconds, size, handler, each = 0.0, 0, None, 0.0
        for lease in islice(in_turn, max(0, most)):
            frame.append(lease)
            size += len(lease[4])
            if lease[2] != handler:
                handler = lease[2]
                each = self.times.of(handler) or FRAME_SECONDS
            seconds += each
            if seconds >= FRAME_SECONDS or size >= FRAME_BYTES:
                break
        return frame

    def send(self, worker: WorkerSlot, leases: Sequence[Lease]) -> None:
        worker.send(leases, self._timer.time())

    def reclaim_unstarted(self) -> None:
        """Take every unstarted job back from every worker."""
        for worker in self.workers.values():
            self._reclaim(worker)

    def _reclaim(self, worker: WorkerSlot) -> None:
        back = worker.reclaim() if worker.sent else []
        if back:
            self.listener.jobs_reclaimed(back)

    def has_begun(self, worker: WorkerSlot) -> bool:
        """Whether it runs a job; what it has not started goes elsewhere, since only then this can be told."""
        self._reclaim(worker)
        return bool(worker.sent)

    def reclaim_blocked(self, worker: WorkerSlot) -> None:
        """Its running job turned out long: the jobs behind it go elsewhere."""
        current = worker.current
        if current is not None:
            self.times.at_least(current.handler, self._timer.time() - worker.started)
        self._reclaim(worker)

    def kill(self, worker: WorkerSlot, reason: KillReason, *, with_stack: bool = False) -> None:
        """Kill for cause: unstarted jobs are taken back and replies read first; if that settles the running job, it lives."""
        was_due = worker.current
        self._reclaim(worker)
        if reason.cause is Cause.TIMEOUT and worker.current is not was_due:  # it had not begun
            return
        was_running = worker.current
        worker.process.drain()
        if worker.current is not was_running:
            return
        worker.kill(reason, with_stack=with_stack)
        # A child of many gigabytes takes the kernel long to tear down; its place must not wait for that.
        self._timer.call_later(FILL_AFTER, self.fill)

    def slot_of(self, job_id: int) -> WorkerSlot | None:
        for worker in self.workers.values():
            if any(lease.id == job_id for lease in worker.sent):
                return worker
        return None

    def running(self, seconds: float = 0.0) -> Iterable[tuple[WorkerSlot, Lease]]:
        """The job that each worker runs, if it has for so long."""
        since = self._timer.time() - seconds
        for worker in self.workers.values():
            if worker.sent and worker.started <= since and worker.has_taken():
                yield worker, worker.sent[0]

    def stop(self) -> None:
        """No new child from now on; idle ones end in good order, the others when their job ends. Those that have just been born
        do so too: their hooks have begun."""
        self.stopping = True
        for worker in self.workers.values():
            if worker.state in (State.STARTING, State.READY):
                self.retire(worker)

    def kill_all(self, reason: KillReason) -> None:
        self.stopping = True
        for worker in self.workers.values():
            self._reclaim(worker)
            worker.process.drain()
            worker.kill(reason)

    # what the children tell (port.Listener)

    def ready(self, process: WorkerProcess) -> None:
        worker = self._by_child.get(id(process))
        if worker is None or process.pid is None:
            return
        worker.started = worker.heartbeat_at = self._timer.time()
        self._timer.call_later(USEFUL_AFTER, self._was_useful, worker)
        if self.max_memory is not None:
            worker.memory_at_start = process.memory()
        worker.came_up = True
        if worker.state is State.STARTING:
            worker.state = State.READY
        self._bus.emit(WorkerStarted(worker.number, process.pid))
        self.listener.workers_changed()

    def _was_useful(self, worker: WorkerSlot) -> None:
        if worker.number in self.workers:
            self._forget_delays()

    def replied(self, process: WorkerProcess, replies: Sequence[Reply]) -> None:
        """Hot path: plain on purpose."""
        worker = self._by_child.get(id(process))
        if worker is None:
            return
        now = self._timer.time()
        sent, permits = worker.sent, worker.permits
        good = 0
        for lease, reply in zip(sent, replies, strict=False):
            if lease[0] != reply[0] or good >= permits:
                break
            good += 1
        leases = [sent.popleft() for _ in range(good)]
        if good < len(replies):
            self.channel_broken(process, f"a reply for job {replies[good].job_id}, which it does not run")
        worker.settled(leases)
        worker.started = worker.heartbeat_at = worker.retired_at = now
        if leases:
            replies = replies[:good]
            self._learn(leases, replies)
            self.listener.jobs_ended(_outcomes(leases, replies, process.pid))
        self._recycle(worker)
        self.listener.workers_changed()

    def _learn(self, leases: Sequence[Lease], replies: Sequence[Reply]) -> None:
        start = 0
        for handler, run in groupby([lease[2] for lease in leases]):
            end = start + len([*run])
            self.times.learn(handler, [reply[2] for reply in replies[start:end]])
            start = end

    def _recycle(self, worker: WorkerSlot) -> None:
        if worker.state is not State.READY:
            return
        if (not worker.sent and self._spent(worker)) or self._too_big(worker):
            self.retire(worker)
            self.fill()

    def _too_big(self, worker: WorkerSlot) -> bool:
        """Past the limit, and grown: a worker that was born past it would only be replaced by one of the same size. One that
        is kept busy with quick jobs is never seen empty, and is weighed now and then: that costs more than such a job."""
        if self.max_memory is None or (
            worker.sent and self._timer.time() < worker.memory_checked_at + MEMORY_CHECK_INTERVAL
        ):
            return False
        worker.memory_checked_at = self._timer.time()
        size = worker.process.memory()
        return size is not None and size > self.max_memory and size > (worker.memory_at_start or 0) * 1.1

    def heartbeat(self, process: WorkerProcess) -> None:
        worker = self._by_child.get(id(process))
        if worker is not None and worker.kill_reason is None:  # asking for its stack may wake one that hung
            worker.heartbeat_at = self._timer.time()

    def output(self, process: WorkerProcess | None, stream: str, job_id: int | None, lines: Sequence[str]) -> None:
        worker = self._by_child.get(id(process)) if process is not None else None
        if worker is None or process is None or process.pid is None:
            self._bus.emit(WorkerOutput(0, 0, stream, job_id, lines))
        else:
            current = worker.current
            handler = current.handler if current is not None and current.id == job_id else None
            self._bus.emit(WorkerOutput(worker.number, process.pid, stream, job_id, lines, handler))

    def channel_broken(self, process: WorkerProcess, why: str) -> None:
        worker = self._by_child.get(id(process))
        if worker is not None:
            worker.kill(broken_channel(why))

    def exited(self, process: WorkerProcess) -> None:
        """The place of one that died at a job, or for a reason once it was up, is filled at once: neither waits for the nursery
        to reap it."""
        worker = self._by_child.get(id(process))
        if worker is None:
            return
        worker.gone = True
        if not worker.came_up:
            return
        self._reclaim(worker)
        if worker.kill_reason is not None or (worker.sent and worker.permits > 0):
            worker.state = State.DYING
            self.fill()

    def ended(self, process: WorkerProcess, death: ExitReport) -> None:
        """Exactly the job that was running is blamed; those sent and not started are dispatched again, unharmed."""
        worker = self._by_child.pop(id(process), None)
        if worker is None:
            return
        del self.workers[worker.number]
        self._reclaim(worker)
        culprit = worker.sent.popleft() if worker.sent and worker.permits > 0 else None
        reason = worker.kill_reason
        if culprit is None and self._was_useless(worker):
            self._fork_after_delay()
        else:
            self.fill()
        if worker.sent:
            self.listener.jobs_reclaimed(list(worker.sent))
        if culprit is not None:
            self.listener.jobs_ended(
                [self._blamed(culprit, reason, death, self._timer.time() - worker.started, worker)]
            )
        in_order = worker.state is State.RETIRING and (death.exit_code == 0 or death.start_error is not None)
        name = reason.name if reason else ("stopped" if in_order else "crash")
        self._emit_exit(worker, death, name, culprit)
        self.listener.workers_changed()

    def _was_useless(self, worker: WorkerSlot) -> bool:
        """It never got ready, whatever it was killed for; or it died right after that with nothing done, and was not the first."""
        if not worker.came_up:
            return worker.state is not State.RETIRING
        if worker.state is not State.READY:
            return False
        short = not worker.done and self._timer.time() - worker.started < USEFUL_AFTER
        forgiven, self._forgiven = self._forgiven, self._forgiven or short
        return short and forgiven

    def _emit_exit(self, worker: WorkerSlot, death: ExitReport, cause: str, culprit: Lease | None) -> None:
        job = (culprit.id, culprit.handler, self._timer.time() - worker.started) if culprit else (None, None, None)
        self._bus.emit(WorkerExited(worker.number, death.pid, cause, death.how, *job))

    def _blamed(
        self, lease: Lease, reason: KillReason | None, death: ExitReport, ran: float, worker: WorkerSlot
    ) -> Outcome:
        if reason is not None and reason.cause is None:
            return Outcome(lease, Kind.RELEASED, took=ran)
        cause = reason.cause if reason is not None and reason.cause is not None else Cause.CRASH
        failure = Failure(
            cause,
            type={Cause.TIMEOUT: "Timeout", Cause.HEARTBEAT_LOST: "HeartbeatLost"}.get(cause, "WorkerCrashed"),
            message=reason.message if reason is not None else f"its worker {'was ' if death.signal else ''}{death.how}",
            attempt=lease.attempt,
            exit_code=death.exit_code,
            signal=death.signal,
            peak_memory=death.peak_memory,
            oom_suspected=death.oom_suspected,
            heartbeat_age=max(0.0, self._timer.time() - worker.heartbeat_at),
            stack=death.stack,
            stderr=death.stderr,
            host=HOST,
            pid=death.pid,
        )
        return Outcome(lease, Kind.FAILED, took=ran, failure=failure)

    def forkserver_exited(self, pid: int, how: str) -> None:
        self._bus.emit(ForkserverExited(pid, how))

    def forkserver_started(self, backend: WorkerBackend, pid: int, reports: Sequence[SourceReport]) -> None:
        """Only what the serving one found counts; another may be tried by a reload, or end with its last workers."""
        self._bus.emit(ForkserverStarted(pid))
        if self._opened and backend is self.backend:
            self.listener.plugins_reported(reports)

    def report_started(self, worker: WorkerSlot) -> None:
        """Say once of a running job that it has started."""
        lease = worker.current
        if lease is None or lease is worker.reported or worker.process.pid is None:
            return
        if worker.has_taken():
            worker.reported = lease
            self._bus.emit(JobStarted(lease, worker.process.pid))


def _load(worker: WorkerSlot) -> int:
    return len(worker.sent)


_CAUSES = {"rejected": Cause.REJECTED, "unknown": Cause.UNKNOWN_HANDLER}


def _outcomes(leases: Sequence[Lease], replies: Sequence[Reply], pid: int | None) -> list[Outcome]:
    """Hot path: a success is made by the fields of Outcome in their order."""
    new, success, succeeded = tuple.__new__, Kind.SUCCEEDED, JobState.SUCCEEDED
    return [
        new(Outcome, (lease, success, reply[3], reply[2], None, True, None, succeeded, 0.0, False, False, None))
        if reply[1] == "ok"
        else _told(lease, reply, pid)
        for lease, reply in zip(leases, replies, strict=True)
    ]


def _told(lease: Lease, reply: Reply, pid: int | None) -> Outcome:
    """A failed attempt as the worker told it."""
    error = reply.error or {}
    failure = Failure(
        _CAUSES.get(reply.kind, Cause.EXCEPTION),
        type=str(error.get("type", "")),
        message=str(error.get("message", "")),
        traceback=str(error.get("traceback", "")),
        attempt=lease.attempt,
        stderr=error.get("stderr"),
        peak_memory=error.get("peak_memory"),
        host=HOST,
        pid=pid,
    )
    after = error.get("after")
    return Outcome(
        lease,
        Kind.FAILED,
        took=reply.took,
        failure=failure,
        retryable=bool(error.get("retryable", True)),
        retry_after=None if after is None else max(0.0, float(after)),
    )
