"""All workers, by group: fork, retire, kill and replace them. Their jobs are handled by their slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from supervisor.config.settings import Size
from supervisor.events import Bus, ForkserverExited, ForkserverStarted
from supervisor.jobs import Cause, Lease
from supervisor.plugins.reports import SourceReport
from supervisor.workers.async_workers import AsyncWorkers
from supervisor.workers.blame import LINGERING, SHUTDOWN, KillReason
from supervisor.workers.interface import (
    PoolListener,
    State,
    Timer,
    WorkerBackend,
    WorkerProgress,
    Written,
    output_event,
)
from supervisor.workers.limits import Limits, limits_of
from supervisor.workers.slot import WorkerSlot
from supervisor.workers.worker_group import OTHERS, PRESENT, PoolState, WorkerGroup

FILL_AFTER = 0.050  # seconds: the kernel may take much longer to end a worker of many gigabytes
REPLACE_INTERVAL = 5.0  # seconds
HOOK_SECONDS = 1.0  # that are usual, at the end of the pool, for the start of a worker or for its stop hooks


def _kill_unready(slot: WorkerSlot) -> None:
    if slot.ready_at is None:
        slot.kill(SHUTDOWN)


class Pool(PoolState):
    """The workers of all groups: at first `count` of those for the queues that are in no group."""

    def __init__(
        self, count: int, bus: Bus, timer: Timer, *,
        max_jobs: int | None = None, max_memory: int | None = None, max_memory_hard: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(bus, timer, limits_of(max_jobs, max_memory, max_memory_hard))
        self.others = WorkerGroup(OTHERS, Size(count, count), self)
        self.groups: dict[str, WorkerGroup] = {OTHERS: self.others}
        self._replaced_at = float("-inf")
        self.async_workers = AsyncWorkers(bus, timer, self.numbers)

    @property
    def slots(self) -> Collection[WorkerSlot]:
        """The slots of all workers, of both kinds."""
        tasks = self.async_workers.slots
        return [*self.workers.values(), *tasks] if tasks else self.workers.values()

    @property
    def backend(self) -> WorkerBackend:
        """The backend from which new workers are forked, once the pool is open."""
        assert self.newest is not None
        return self.newest

    def open(self, backend: WorkerBackend, listener: PoolListener) -> None:
        """Fork the workers."""
        self.newest, self.listener = backend, listener
        self.fill()
        self.async_workers.open(backend, listener)

    # the number of workers

    def configure(self, sizes: Mapping[str, Size]) -> None:
        """Have these groups, of such sizes. A `renew` for another backend retires the workers of those that go."""
        for name in self.groups.keys() - sizes.keys():
            self.groups.pop(name).configure(Size(0, 0))
        for name, size in sizes.items():
            if name in self.groups:
                self.groups[name].configure(size)
            else:
                self.groups[name] = WorkerGroup(name, size, self)

    def resize(self, most: int) -> None:
        """Set the number of workers of the queues in no group, before or after the pool is opened."""
        self.others.resize(most)

    def fill(self) -> None:
        self.async_workers.limits = self.limits
        for group in self.groups.values():
            group.fill()

    def fork_first(self, backend: WorkerBackend, limits: Limits) -> WorkerSlot:
        """Fork a worker of a backend that `renew` may make the newest."""
        return next(group for group in self.groups.values() if group.count).fork(backend, limits)

    def replace(self, pid: int) -> bool:
        """Retire a worker that runs but can't do its work, and fork another. If that was done within the last seconds, keep the
        worker and return False: if no worker can work, forks must not follow each other without end."""
        slot = next((s for s in self.workers.values() if s.process.pid == pid and s.state is State.READY), None)
        if slot is None:
            return True
        if self.timer.time() - self._replaced_at < REPLACE_INTERVAL:
            return False
        self._replaced_at = self.timer.time()
        slot.pool.replace_used_up(slot)
        return True

    def renew(self, backend: WorkerBackend) -> None:
        """Replace every worker of another backend, at once: delays after useless workers end here. If the
        backend is the same and has a new forkserver, workers that have no process yet will be forked from that, and stay."""
        has_new_forkserver, self.newest = backend is self.newest, backend
        for group in self.groups.values():
            group.reforks.cancel()
        for slot in [slot for slot in self.workers.values() if slot.state in PRESENT]:
            went = slot.pool.name not in self.groups  # it may have the first worker of the new backend
            if went or slot.backend is not backend or (has_new_forkserver and slot.process.pid is not None):
                slot.retire()
        self.fill()
        self.async_workers.renew(backend)

    # jobs

    def idle_count(self) -> int:
        return sum(1 for slot in self.workers.values() if slot.state is State.READY and not slot.sent)

    def ready_count(self) -> int:
        return sum(1 for slot in self.workers.values() if slot.state is State.READY)

    def reclaim_unstarted(self) -> None:
        for slot in self.slots:
            slot.reclaim()

    def slot_of(self, job_id: int) -> WorkerSlot | None:
        for slot in self.slots:
            if any(lease.id == job_id for lease in slot.sent):
                return slot
        return None

    def running(self, seconds: float = 0.0) -> Iterable[tuple[WorkerSlot, Lease]]:
        """Yield the workers that have been running a job for so long, each with the job."""
        since = self.timer.time() - seconds
        for slot in self.slots:
            if slot.sent and slot.started <= since and slot.has_taken():
                yield slot, slot.sent[0]

    # the end of workers

    def kill(self, slot: WorkerSlot, reason: KillReason, *, with_stack: bool = False) -> None:
        """Reclaim the worker's unstarted jobs, read its replies, and kill it unless its running job has ended by then."""
        was_due = slot.current
        slot.reclaim()
        if reason.cause is Cause.TIMEOUT and slot.current is not was_due:  # that job had not started
            slot.pool.replace_used_up(slot)
            return
        was_running = slot.current
        slot.process.drain()
        if slot.current is not was_running:
            return
        slot.kill(reason, with_stack=with_stack)
        self.timer.call_later(FILL_AFTER, self.fill)

    def stop(self) -> None:
        """Stop forking, and retire all workers: idle ones exit now, others after the job that they run, and those that are not
        ready after their hooks. These run no job, so they are killed a second after their start."""
        self.stopping = True
        self.async_workers.stop()
        for slot in [slot for slot in self.slots if slot.state in PRESENT]:
            slot.retire()
        for slot in self.workers.values():
            if slot.ready_at is None:
                rest = max(0.0, slot.started + HOOK_SECONDS - self.timer.time())
                self.timer.call_later(rest, _kill_unready, slot)

    def kill_all(self, reason: KillReason) -> None:
        self.stopping = True
        self.async_workers.stop()
        for slot in self.slots:
            slot.reclaim()
            slot.process.drain()
            in_hook = slot.ready_at is not None and slot.process.doing and not slot.sent
            lingers = in_hook and self.timer.time() - slot.retired_at >= HOOK_SECONDS
            slot.kill(LINGERING if lingers else reason)

    # events of the backend (BackendListener)

    def forkserver_started(self, backend: WorkerBackend, pid: int, reports: Sequence[SourceReport]) -> None:
        """Report the plugins of the current backend only: another one is on trial for a reload, or ends with its last workers."""
        self.bus.emit(ForkserverStarted(pid))
        if self.listener is not None and backend is self.newest:
            self.listener.plugins_reported(reports)

    def forkserver_exited(self, pid: int, how: str) -> None:
        self.bus.emit(ForkserverExited(pid, how))

    def forkserver_output(self, written: Written) -> None:
        if not isinstance(written, WorkerProgress):  # a plugin has made it up
            self.bus.emit(output_event(0, 0, written, None))
