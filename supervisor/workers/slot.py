"""The books of one place in the pool: what was sent to the child that fills it, and what of that came back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from supervisor.jobs import Lease
from supervisor.workers.interface import WorkerBackend, WorkerProcess
from supervisor.workers.kill_reasons import KillReason


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    DYING = "dying"


class WorkerSlot:
    """One place in the pool, and the child that fills it now."""

    __slots__ = (
        "_frames",
        "backend",
        "came_up",
        "done",
        "frame",
        "gone",
        "heartbeat_at",
        "kill_reason",
        "memory_at_start",
        "memory_checked_at",
        "number",
        "permits",
        "process",
        "reported",
        "retired_at",
        "retries",
        "sent",
        "started",
        "state",
    )  # fmt: skip

    def __init__(self, number: int, process: WorkerProcess, backend: WorkerBackend, now: float) -> None:
        self.number = number
        self.process = process
        self.backend = backend
        self.state = State.STARTING
        self.sent: deque[Lease] = deque()  # in order; the first is running if its permit is taken
        self._frames: deque[list[int]] = deque()  # [frame, jobs of it without a reply]
        self.frame = 0
        self.permits = 0  # put, less taken back, less replies read
        self.retries = 0  # of the jobs sent
        self.started = now  # since when the first job may be running
        self.heartbeat_at = now
        self.retired_at = now  # or when it last answered after that
        self.done = 0
        self.kill_reason: KillReason | None = None
        self.came_up = False  # it has said that it is ready
        self.gone = False  # dead, and not yet reaped
        self.reported: Lease | None = None
        self.memory_at_start: int | None = None
        self.memory_checked_at = now

    @property
    def current(self) -> Lease | None:
        return self.sent[0] if self.sent else None

    def has_taken(self) -> bool:
        """Whether it runs a job, or has run one whose outcome is not read yet."""
        return self.process.untaken() < self.permits

    def deadline(self) -> float | None:
        """Monotonic time at which the running job's timeout ends."""
        if not self.sent or self.state is State.DYING:
            return None
        timeout = self.sent[0].policy.timeout
        return None if timeout is None else self.started + timeout

    def send(self, leases: Sequence[Lease], now: float) -> None:
        self.frame = (self.frame + 1) & 255
        if not self.sent:
            self.started = now
        self.sent.extend(leases)
        self._frames.append([self.frame, len(leases)])
        self.permits += len(leases)
        self.retries += _retries(leases)
        self.process.send(self.frame, leases)

    def settled(self, leases: Sequence[Lease]) -> None:
        """The first jobs, which were these, were replied to."""
        count = len(leases)
        if self.retries:
            self.retries -= _retries(leases)
        self.permits -= count
        self.done += count
        frames = self._frames
        while count and frames:
            head = frames[0]
            step = min(count, head[1])
            head[1] -= step
            count -= step
            if not head[1]:
                frames.popleft()

    def reclaim(self) -> list[Lease]:
        """The jobs that this worker has not started and now never will, in order."""
        taken = self.process.reclaim()
        if not taken:
            return []
        back: list[Lease] = []
        kept: deque[Lease] = deque()
        for frame, unsettled in [(frame, count) for frame, count in self._frames]:
            count = taken.get(frame, 0)
            jobs = [self.sent.popleft() for _ in range(unsettled)]
            kept.extend(jobs[: unsettled - count])
            back.extend(jobs[unsettled - count :])
        self.sent = kept
        self._frames = deque([f, n - taken.get(f, 0)] for f, n in self._frames if n > taken.get(f, 0))
        self.permits -= len(back)
        self.retries = _retries(kept)
        return back

    def kill(self, reason: KillReason, *, with_stack: bool = False) -> None:
        """What it is killed for is told when it is seen dead. The first reason stands, and so does a death of its own."""
        if self.state is not State.DYING:
            self.kill_reason = reason
        self.state = State.DYING
        self.process.kill(with_stack=with_stack)


def _retries(leases: Iterable[Lease]) -> int:
    return sum([lease[6] > 0 for lease in leases])
