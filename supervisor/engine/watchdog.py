"""Kill workers whose job is past its timeout and workers without a heartbeat, and reclaim jobs that wait behind a long one.

All times are of the monotonic clock. One timer serves all workers, and is set to the earliest time at which something is due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from supervisor.engine.limits import DEFAULT_LIMITS, Limits
from supervisor.events import Bus, LoopGap, WorkerStarted
from supervisor.jobs import LEASE_POLICY
from supervisor.workers.blame import LINGERING, heartbeat_lost, timed_out
from supervisor.workers.interface import State
from supervisor.workers.pool import Pool
from supervisor.workers.slot import WorkerSlot
from supervisor.workers.task_slot import TaskSlot

CHECKS_PER_TIMEOUT = 4  # of the heartbeat timeout
LONG_HEARTBEAT = TaskSlot.blocked_after * CHECKS_PER_TIMEOUT
GAP = 1.0
RETIRE_SECONDS = 30.0  # until a worker must have exited after its last job, or taken the next one


def seconds_suspended() -> float:
    """Return for how many seconds the machine has been suspended since it started: the monotonic clock leaves them out (Linux)."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boot is None else time.clock_gettime(boot) - time.monotonic()


class Watchdog:
    def __init__(
        self, pool: Pool, bus: Bus, loop: asyncio.AbstractEventLoop, idle_heartbeat_timeout: float | None,
        woke_from_gap: Callable[[], None], suspended: Callable[[], float] = seconds_suspended,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:  # fmt: skip
        self.idle_heartbeat_timeout = idle_heartbeat_timeout
        self._pool = pool
        self._bus = bus
        self._loop = loop
        self._woke_from_gap = woke_from_gap
        self._suspended = suspended
        self._longest_wait = limits.watch
        self._suspended_before = self._suspended()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._cpu: dict[int, tuple[float, float]] = {}  # by worker: CPU seconds, and when they were last seen to grow

        bus.subscribe(self._worker_started, WorkerStarted)

    def start(self) -> None:
        self.sweep()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def work_sent(self, slot: WorkerSlot) -> None:
        """Note that this worker has new jobs: something may be due before the timer is."""
        self._arm_by(self._due(slot, self._loop.time()))

    def _worker_started(self, _event: WorkerStarted) -> None:
        """Look soon: an async worker may have been started for jobs that it has got now."""
        if self._timer is not None:
            self._arm_by(self._loop.time() + WorkerSlot.blocked_after)

    def work_ended(self) -> None:
        """Note that workers have ended jobs and begun the next ones of their frames. Slots of async workers have no next ones."""
        self._arm_by(self._next_due(self._loop.time(), self._pool.workers.values()))

    def _arm_by(self, when: float) -> None:
        if when < self._armed_for - 0.001:
            self._arm(when)

    def late(self) -> bool:
        """Return whether the loop did not run for a time: nothing may be dispatched before a sweep."""
        return self._timer is not None and self._loop.time() - self._armed_for > GAP

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = when
        self._timer = self._loop.call_at(when, self.sweep)

    def sweep(self) -> None:
        now = self._loop.time()
        before, self._suspended_before = self._suspended_before, self._suspended()
        if self.late() or self._suspended_before - before > GAP:
            gap = max(0.0, now - self._armed_for)
            self._arm(now)  # the replies that are read now must not find the watchdog late again
            self._skip_gap(gap, now)
        if self._cpu:
            for number in self._cpu.keys() - {slot.number for slot in self._pool.slots}:
                del self._cpu[number]
        for slot in list(self._pool.slots):
            self._look_at(slot, now)
        self._arm(self._next_due(now, self._pool.slots))

    def _skip_gap(self, gap: float, now: float) -> None:
        """Read first what the workers have written while the supervisor did not run. The gap counts neither for timeouts nor for
        heartbeats."""
        self._bus.emit(LoopGap(gap))
        self._woke_from_gap()
        for slot in list(self._pool.slots):
            slot.process.drain()
            slot.started = min(now, slot.started + gap)
            slot.heartbeat_at = slot.retired_at = now
        self._cpu.clear()

    def _look_at(self, slot: WorkerSlot, now: float) -> None:
        if slot.state in (State.ENDING, State.STARTING) or self._is_young(slot, now):
            return
        if slot.state is State.RETIRING and not slot.sent and now - slot.retired_at >= RETIRE_SECONDS:
            self._pool.kill(slot, LINGERING)
            return
        if slot.sent:
            if now >= slot.started + slot.blocked_after:
                if len(slot.sent) > 1:
                    slot.reclaim_blocked()
                slot.report_started()
            if slot.current is not slot.reported and now - slot.started >= RETIRE_SECONDS:
                slot.pool.replace_used_up(slot)
            self._check_deadline(slot, now)
        # A worker that was retired at its start may still be importing.
        if not slot.kill_reason and slot.ready_at is not None:
            self._check_heartbeat(slot, now)

    def _is_young(self, slot: WorkerSlot, now: float) -> bool:
        """Return whether the first job of the worker was sent so recently that nothing can be due."""
        if not slot.sent or now >= slot.started + slot.blocked_after:
            return False
        _, _, timeout, heartbeat = slot.sent[0][LEASE_POLICY]
        return (timeout is None or timeout > slot.blocked_after) and (heartbeat is None or heartbeat > LONG_HEARTBEAT)

    def _check_deadline(self, slot: WorkerSlot, now: float) -> None:
        deadline, current = slot.deadline(), slot.current
        if deadline is not None and now >= deadline and current is not None and current.policy.timeout is not None:
            self._pool.kill(slot, timed_out(current.policy.timeout), with_stack=True)

    def _check_heartbeat(self, slot: WorkerSlot, now: float) -> None:
        """Kill a worker without a heartbeat if its CPU time does not grow: it hangs. If its CPU time grows and it has a job, it is
        busy in C code."""
        limit = self._heartbeat_limit(slot)
        silent_since = max(slot.heartbeat_at, slot.started)  # before its job, another limit or none applied
        if limit is None or now - silent_since < limit / CHECKS_PER_TIMEOUT:
            self._cpu.pop(slot.number, None)
            return
        used = slot.process.cpu_seconds()
        known = self._cpu.get(slot.number)
        if used is None:
            return
        if known is None or used > known[0]:
            self._cpu[slot.number] = (used, now if known is not None else silent_since)
            if now - silent_since < limit or slot.runs_a_job():
                return
        seen = silent_since if known is None or used > known[0] else max(known[1], silent_since)
        if now - seen >= limit:
            self._cpu.pop(slot.number, None)
            self._pool.kill(slot, heartbeat_lost(now - slot.heartbeat_at), with_stack=True)

    def _heartbeat_limit(self, slot: WorkerSlot) -> float | None:
        return slot.sent[0][LEASE_POLICY].heartbeat_timeout if slot.sent else self.idle_heartbeat_timeout

    def _next_due(self, now: float, slots: Collection[WorkerSlot]) -> float:
        when = now + self._longest_wait
        for slot in slots:
            if slot.state not in (State.ENDING, State.STARTING):
                when = min(when, self._due(slot, now))
        return max(when, now + 0.0005)

    def _due(self, slot: WorkerSlot, now: float) -> float:
        limit = self._heartbeat_limit(slot)
        look_at = now + (self._longest_wait if limit is None else max(0.01, limit / CHECKS_PER_TIMEOUT))
        return min(look_at, self._job_due(slot, now)) if slot.sent else look_at

    def _job_due(self, slot: WorkerSlot, now: float) -> float:
        look_at = slot.started + slot.blocked_after
        if look_at <= now:  # soon again, if the worker has not taken the job yet
            reported = slot.current is slot.reported
            look_at = now + (self._longest_wait if reported else min(slot.blocked_after, self._longest_wait))
        deadline = slot.deadline()
        return look_at if deadline is None else min(look_at, deadline)
