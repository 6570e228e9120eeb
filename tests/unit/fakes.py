"""Scripted workers and a scripted loop, in place of the operating system."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.jobs import Lease, Policy
from supervisor.workers.interface import ExitReport, Reply, WorkerListener


class FakeTimer:
    """Virtual time, which passes only on `advance` and `stand_still`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._due: list[tuple[float, int, FakeHandle]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> FakeHandle:
        return self.call_at(self.now + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> FakeHandle:
        self._count += 1
        handle = FakeHandle(when, lambda: callback(*args))
        heapq.heappush(self._due, (when, self._count, handle))
        return handle

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, handle = heapq.heappop(self._due)
            self.now = max(self.now, when)
            if not handle.cancelled_:
                handle.callback()
        self.now = end

    def stand_still(self, seconds: float) -> None:
        """Time passes, but nothing that was due is run until the next advance."""
        self.now += seconds


class FakeHandle:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self._when = when
        self.callback = callback
        self.cancelled_ = False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_


class FakeWorker:
    """A worker that does what its test calls. Its permits work as the real ones: the worker or the supervisor takes each first."""

    def __init__(self, number: int, listener: WorkerListener) -> None:
        self.number = number
        self.pid: int | None = 10_000 + number
        self.doing = ""
        self.listener = listener
        self.permits: list[int] = []
        self.jobs: list[tuple[int, Lease]] = []
        self.unread: list[Reply] = []
        self.corrected: list[int] = []
        self.killed: list[bool] = []
        self.retired = False
        self.cpu: float | None = 0.0
        self.rss: int | None = 1_000_000

    def send(self, frame: int, leases: Sequence[Lease]) -> None:
        self.permits += [frame] * len(leases)
        self.jobs += [(frame, lease) for lease in leases]

    def reclaim(self) -> Mapping[int, int]:
        taken = {frame: self.permits.count(frame) for frame in set(self.permits)}
        self.permits = []
        return taken

    def untaken(self) -> int:
        return len(self.permits)

    def correct(self, right: int) -> None:
        self.corrected.append(right)

    def drain(self) -> None:
        replies, self.unread = self.unread, []
        if replies:
            self.listener.replied(replies)

    def kill(self, *, with_stack: bool = False) -> None:
        self.killed.append(with_stack)

    def retire(self, *, cancelled: bool = False) -> None:
        self.retired = True

    def cpu_seconds(self) -> float | None:
        return self.cpu

    def memory(self) -> int | None:
        return self.rss

    # the script

    def come_up(self) -> None:
        self.listener.ready()

    def send_heartbeat(self) -> None:
        self.listener.heartbeat()

    def start_next(self) -> Lease:
        """Take a permit, and with it the next job; skip the jobs that were reclaimed."""
        frame = self.permits.pop(0)
        while self.jobs[0][0] != frame:
            self.jobs.pop(0)
        return self.jobs[0][1]

    def finish(self, kind: str = "ok", took: float = 0.001, error: Mapping[str, Any] | None = None) -> None:
        _, lease = self.jobs.pop(0)
        self.unread.append(Reply(lease.id, kind, took, None, error))

    def run_next(self, **how: Any) -> None:
        self.start_next()
        self.finish(**how)
        self.drain()

    def exit(self) -> None:
        """Exit, without being reaped."""
        self.drain()
        self.listener.exited()

    def die(self, **how: Any) -> None:
        self.exit()
        self.listener.ended(ExitReport(self.pid or 0, **how))


class FakeBackend:
    def __init__(self) -> None:
        self.forked: list[FakeWorker] = []
        self.error: OSError | None = None  # what a fork raises

    def fork(self, number: int, listener: WorkerListener) -> FakeWorker:
        if self.error is not None:
            raise self.error
        self.forked.append(FakeWorker(number, listener))
        return self.forked[-1]


def make_lease(id: int, handler: str = "work", retries: int = 0, **policy: Any) -> Lease:
    return Lease(id, 1, handler, "default", "null", None, retries, 0, int(retries > 0), 0, 0, Policy(**policy))
