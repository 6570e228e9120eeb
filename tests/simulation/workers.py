"""Scripted workers: they run jobs in virtual time, and do whatever a handler may do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from supervisor.jobs import Lease
from supervisor.workers.interface import USUAL_TIMEOUTS, ExitReport, WorkerListener, WorkerProgress
from tests.simulation.checks import MAX_SNOOZES, Run
from tests.unit.fakes import FakeWorker

if TYPE_CHECKING:
    from tests.simulation.owner import Owner

ERROR = {"type": "Oops", "message": "no", "traceback": "Traceback"}
HANG = float("inf")


class SimulatedWorker(FakeWorker):
    """A worker that runs one job after the other until it is killed or retired, or its owner is killed."""

    def __init__(self, number: int, listener: WorkerListener, owner: Owner) -> None:
        super().__init__(number, listener)
        self.owner = owner
        self.world = owner.world
        self.pid = owner.world.next_pid()
        self.alive = True
        self.up = False
        self.silent = False
        self.stuck = False  # in the kernel, and reported as ended
        self.started = 0
        self.reported: list[WorkerProgress] = []
        self.run: Run | None = None
        self._busy_since: float | None = None
        lot = self.world.random.random()
        if lot < self.world.odds.fails_to_start:
            self.owner.after(0.02, self.perish, "exit_code", 1)
        else:
            self.owner.after(self.world.random.uniform(0.002, 0.05), self.rise)

    def rise(self) -> None:
        if self.alive:
            self.up = True
            self.owner.soon(self.report_ready)
            self.look()

    def report_ready(self) -> None:
        if self.alive:
            self.come_up()

    # calls of the supervisor

    def send(self, frame: int, leases: Sequence[Lease]) -> None:
        super().send(frame, leases)
        self.world.checks.turns.dispatched(self.owner, leases)
        if self.world.stormy and self.world.random.random() < self.world.odds.exits_idle:
            self.owner.in_worker(0.0001, self.perish, "signal", "SIGKILL")
        self.owner.in_worker(self.world.hesitation(), self.look)

    def reclaim(self) -> Mapping[int, int]:
        taken = super().reclaim()
        if self.retired:
            self.owner.in_worker(0.0, self.look)
        return taken

    def kill(self, *, with_stack: bool = False) -> None:
        super().kill(with_stack=with_stack)
        if self.run is not None:
            self.world.checks.killed(self.owner, self.run, self.listener.kill_reason, self.silent)  # type: ignore[attr-defined]
        self.stop_running("cut")
        lot = self.world.random.random()
        late = self.world.random.uniform(0.5, 3.0) if lot < 0.02 else 0.003
        if lot < 0.005 and not self.stuck:
            self.owner.after(USUAL_TIMEOUTS.kill, self.report_stuck)
            late += USUAL_TIMEOUTS.kill
        self.owner.after(late, self.perish, "signal", "SIGKILL")

    def retire(self, *, cancelled: bool = False) -> None:
        super().retire()
        self.owner.in_worker(0.0, self.look)

    def cpu_seconds(self) -> float | None:
        if self._busy_since is not None:
            self.cpu = (self.cpu or 0.0) + self.world.clock.now - self._busy_since
            self._busy_since = self.world.clock.now
        return self.cpu

    # its own steps

    def look(self) -> None:
        """Start the next job, if there is one and it may."""
        if not self.alive or not self.up or self.killed or self.run is not None:
            return
        if self.permits:
            lease = self.start_next()
            self.started += 1
            self.reported.append(WorkerProgress(lease.id, lease.attempt, 2 * self.started, 0, None, str(lease.token)))
            self.run = self.world.checks.started(self.owner, self.number, lease)
            kind, seconds = self.world.script(lease)
            self.silent = kind in ("hang", "spin")
            self._busy_since = self.world.clock.now if kind == "spin" else None
            if seconds != HANG:
                self.owner.in_worker(seconds, self.end_run, self.run, kind, seconds)
                if lease.id % 2:
                    last = WorkerProgress(lease.id, lease.attempt, 2 * self.started + 1, 1, None, str(lease.token))
                    self.owner.in_worker(seconds / 2, lambda: self.reported.append(last))
        elif self.retired:
            self.perish("exit_code", 0)

    def end_run(self, run: Run, kind: str, seconds: float) -> None:
        if not self.alive or self.run is not run or self.killed:
            return
        if kind == "poison":
            self.world.kill(self.owner)
            return
        if kind in ("crash", "exit"):
            self.perish("signal" if kind == "crash" else "exit_code", "SIGSEGV" if kind == "crash" else 0)
            return
        self.run, run.end = None, kind
        extra = {"after": 5.0} if kind == "retry" else {}
        if kind == "snoozed":
            extra = {"after": 5.0, "most": MAX_SNOOZES, "until": None}
        self.finish(kind, seconds, None if kind == "ok" else {**ERROR, **extra})
        if self.world.random.random() < 0.9:
            self.owner.soon(self.read)
        else:
            self.owner.after(self.world.random.uniform(0.0, 0.2), self.read)
        self.owner.in_worker(self.world.hesitation(), self.look)

    def drain(self) -> None:
        reported, self.reported = self.reported, []
        for progress in reported:
            self.listener.output(progress)
        super().drain()

    def read(self) -> None:
        if self.owner.alive and self in self.owner.listened:
            self.drain()

    def perish(self, how: str, value: Any) -> None:
        """Exit. The supervisor notices a moment later."""
        if self.alive:
            self.alive = False
            self.stop_running("cut")
            self.owner.after(0.001, self.report_exit, how, value)

    def report_stuck(self) -> None:
        if self.alive:
            self.drain()
            self.stuck = True
            self.listener.ended(ExitReport(self.pid or 0, stuck="state D"))

    def report_exit(self, how: str, value: Any) -> None:
        if not self.stuck:
            self.drain()
            self.listener.exited()
        self.owner.after(self.world.random.choice((0.0, 0.001, 0.5)), self.report_end, how, value)

    def report_end(self, how: str, value: Any) -> None:
        self.owner.listened.discard(self)
        self.listener.ended(ExitReport(self.pid or 0, **{how: value}))

    def vanish(self) -> None:
        """Exit with its owner, unreported."""
        self.alive = False
        self.stop_running("vanished")

    def stop_running(self, how: str) -> None:
        self.silent, self._busy_since = False, None
        if self.run is not None:
            self.run.end, self.run = how, None


class SimulatedBackend:
    def __init__(self, owner: Owner) -> None:
        self.owner = owner

    def fork(self, number: int, listener: WorkerListener) -> SimulatedWorker:
        process = SimulatedWorker(number, listener, self.owner)
        self.owner.listened.add(process)
        self.owner.backend.append(process)
        return process
