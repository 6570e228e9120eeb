"""Kills what hangs: running jobs past their timeout, workers without a heartbeat; frees jobs held captive behind a long one.

All on the monotonic clock. One timer serves every worker; it is set to the earliest thing that could be due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from supervisor.engine.poll_intervals import USUAL, PollIntervals
from supervisor.events import Bus, LoopGap
from supervisor.workers.kill_reasons import LINGERING, heartbeat_lost, timed_out
from supervisor.workers.pool import Pool
from supervisor.workers.slot import State, WorkerSlot

BLOCKED_AFTER = 0.020
BEAT_CHECKS = 4
GAP = 1.0
RETIRE_SECONDS = 30.0  # for what a worker does after its last job


def seconds_suspended() -> float:
    """How long the machine has been suspended since its start: the monotonic clock leaves that out (Linux)."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boot is None else time.clock_gettime(boot) - time.monotonic()


class Watchdog:
    def __init__(
        self, pool: Pool, bus: Bus, loop: asyncio.AbstractEventLoop, idle_heartbeat_timeout: float | None, *,
        woke_from_gap: Callable[[], None], suspended: Callable[[], float] | None = None, intervals: PollIntervals = USUAL,
    ) -> None:  # fmt: skip
        self.idle_heartbeat_timeout = idle_heartbeat_timeout
        self._pool = pool
        self._bus = bus
        self._loop = loop
        self._woke_from_gap = woke_from_gap
        self._suspended = suspended or seconds_suspended
        self._longest_wait = intervals.watch
        self._slept = self._suspended()
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0.0
        self._cpu: dict[
            int, tuple[float, float]
        ] = {}  # worker number: CPU seconds, and when they were last seen to grow

    def start(self) -> None:
        self.sweep()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def work_sent(self, worker: WorkerSlot) -> None:
        """Something of this one may be due earlier than the timer is set to."""
        self._arm_by(self._due(worker, self._loop.time()))

    def work_ended(self) -> None:
        """The next jobs of their frames have begun."""
        self._arm_by(self._next_due(self._loop.time()))

    def _arm_by(self, when: float) -> None:
        if when < self._armed - 0.001:
            self._arm(when)

    def late(self) -> bool:
        """The loop stood still: nothing may be dispatched before a sweep."""
        return self._timer is not None and self._loop.time() - self._armed > GAP

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = when
        self._timer = self._loop.call_at(when, self.sweep)

    def sweep(self) -> None:
        now = self._loop.time()
        slept, self._slept = self._slept, self._suspended()
        if self.late() or self._slept - slept > GAP:
            gap = max(0.0, now - self._armed)
            self._arm(now)  # what is heard now must not find it late again
            self._bridge(gap, now)
        for number in self._cpu.keys() - self._pool.workers.keys():
            del self._cpu[number]
        for worker in list(self._pool.workers.values()):
            self._look_at(worker, now)
        self._arm(self._next_due(now))

    def _bridge(self, gap: float, now: float) -> None:
        """The supervisor stood still: what the children said meanwhile is heard first, and the gap counts for nothing."""
        self._bus.emit(LoopGap(gap))
        self._woke_from_gap()
        for worker in list(self._pool.workers.values()):
            worker.process.drain()
            worker.started = min(now, worker.started + gap)
            worker.heartbeat_at = worker.retired_at = now
        self._cpu.clear()

    def _look_at(self, worker: WorkerSlot, now: float) -> None:
        if worker.state in (State.ENDING, State.STARTING):
            return
        if worker.state is State.RETIRING and not worker.sent and now - worker.retired_at >= RETIRE_SECONDS:
            self._pool.kill(worker, LINGERING)
            return
        if worker.sent:
            if now >= worker.started + BLOCKED_AFTER:
                if len(worker.sent) > 1:
                    worker.reclaim_blocked()
                worker.report_started()
            self._check_deadline(worker, now)
        if not worker.kill_reason and worker.ready_at is not None:  # one retired at its start may be importing still
            self._check_heartbeat(worker, now)

    def _check_deadline(self, worker: WorkerSlot, now: float) -> None:
        deadline, current = worker.deadline(), worker.current
        if deadline is not None and now >= deadline and current is not None and current.policy.timeout is not None:
            self._pool.kill(worker, timed_out(current.policy.timeout), with_stack=True)

    def _check_heartbeat(self, worker: WorkerSlot, now: float) -> None:
        """Missing while its CPU time stands still, it is hung; while CPU time grows it is busy in C code, if with a job."""
        limit = self._heartbeat_limit(worker)
        silent_since = max(worker.heartbeat_at, worker.started)  # before its job it had the pace of another, or of none
        if limit is None or now - silent_since < limit / BEAT_CHECKS:
            self._cpu.pop(worker.number, None)
            return
        used = worker.process.cpu_seconds()
        known = self._cpu.get(worker.number)
        if used is None:
            return
        if known is None or used > known[0]:
            self._cpu[worker.number] = (used, now if known is not None else silent_since)
            if now - silent_since < limit or worker.runs_a_job():
                return
        seen = silent_since if known is None or used > known[0] else max(known[1], silent_since)
        if now - seen >= limit:
            self._cpu.pop(worker.number, None)
            self._pool.kill(worker, heartbeat_lost(now - worker.heartbeat_at), with_stack=True)

    def _heartbeat_limit(self, worker: WorkerSlot) -> float | None:
        current = worker.current
        return current.policy.heartbeat_timeout if current is not None else self.idle_heartbeat_timeout

    def _next_due(self, now: float) -> float:
        when = now + self._longest_wait
        for worker in self._pool.workers.values():
            if worker.state not in (State.ENDING, State.STARTING):
                when = min(when, self._due(worker, now))
        return max(when, now + 0.0005)

    def _due(self, worker: WorkerSlot, now: float) -> float:
        limit = self._heartbeat_limit(worker)
        look_at = now + (self._longest_wait if limit is None else max(0.01, limit / BEAT_CHECKS))
        return min(look_at, self._job_due(worker, now)) if worker.sent else look_at

    def _job_due(self, worker: WorkerSlot, now: float) -> float:
        look_at = worker.started + BLOCKED_AFTER
        if look_at <= now:  # again soon where its worker has not taken it yet
            told = worker.current is worker.reported
            look_at = now + (self._longest_wait if told else min(BLOCKED_AFTER, self._longest_wait))
        deadline = worker.deadline()
        return look_at if deadline is None else min(look_at, deadline)
