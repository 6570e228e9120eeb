"""Keep the wanted number of workers: fork, retire, kill and replace them. Their jobs are handled by their slots."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

from supervisor.events import Bus, ForkserverExited, ForkserverStarted, WorkerExited
from supervisor.jobs import Cause, Lease
from supervisor.plugins.reports import SourceReport
from supervisor.text.os_errors import reason
from supervisor.workers.async_workers import AsyncWorkers
from supervisor.workers.blame import LINGERING, SHUTDOWN, KillReason
from supervisor.workers.interface import ExitReport, PoolListener, Timer, WorkerBackend, Written, output_event
from supervisor.workers.limits import Limits, limits_of
from supervisor.workers.reforks import ReforkDelays
from supervisor.workers.run_times import RunTimes
from supervisor.workers.slot import SlotContext, State, WorkerSlot

FILL_AFTER = 0.050  # seconds: the kernel may take much longer to end a worker of many gigabytes
REPLACE_INTERVAL = 5.0  # seconds
HOOK_SECONDS = 1.0  # that are usual, at the end of the pool, for the start of a worker or for its stop hooks

_PRESENT = (State.STARTING, State.READY, State.EXITED)
"""Workers in these states count for the wanted number; the others have been, or are being, replaced."""


def _kill_unready(slot: WorkerSlot) -> None:
    if slot.ready_at is None:
        slot.kill(SHUTDOWN)


def share(max_jobs: int, number: int, count: int) -> int:
    """Return the share of a worker: those of `count` workers with successive numbers are 1/count, 2/count… of `max_jobs`."""
    return -(-max_jobs * (number % count + 1) // count)


class Pool:
    """The slots of `count` workers, and of those that are still ending.

    A change of `limits` applies to workers forked after it.
    """

    def __init__(
        self, count: int, bus: Bus, timer: Timer, *,
        max_jobs: int | None = None, max_memory: int | None = None, max_memory_hard: int | None = None,
    ) -> None:  # fmt: skip
        self.count = count
        self.limits = limits_of(max_jobs, max_memory, max_memory_hard)
        self.times = RunTimes()
        self.workers: dict[int, WorkerSlot] = {}
        self.stuck: dict[int, WorkerSlot] = {}  # those that were killed, do no more, and have not exited
        self.stopping = False
        self.leaving: set[int] = (
            set()
        )  # the numbers of workers that were replaced and have not exited; not those of a reload
        self._bus = bus
        self._timer = timer
        self._backend: WorkerBackend | None = None
        self._context: SlotContext | None = None
        self._numbers = itertools.count(1)
        self._replaced_at = float("-inf")
        self.reforks = ReforkDelays(timer, self.fill)
        self.async_workers = AsyncWorkers(bus, timer, self._numbers)

    @property
    def slots(self) -> Collection[WorkerSlot]:
        """The slots of all workers, of both kinds."""
        tasks = self.async_workers.slots
        return [*self.workers.values(), *tasks] if tasks else self.workers.values()

    @property
    def backend(self) -> WorkerBackend:
        """The backend from which new workers are forked, once the pool is open."""
        assert self._backend is not None
        return self._backend

    def open(self, backend: WorkerBackend, listener: PoolListener) -> None:
        """Fork the workers."""
        self._backend = backend
        self._context = SlotContext(self, listener, self._bus, self.times, self._timer.time)
        self.fill()
        self.async_workers.open(backend, listener)

    # the number of workers

    def resize(self, count: int) -> None:
        """Set the number of workers, before or after the pool is opened."""
        self.count = count
        self.fill()

    def fill(self, *, after_used_up: bool = False) -> None:
        """Fork until there are as many workers as wanted; retire surplus ones, idle ones and the newest first.

        Each that leaves may take seconds for its exit functions: from `count` of those on, its successor waits for an exit.
        """
        if self.stopping or self._context is None:
            return
        self.async_workers.limits = self.limits
        present = [slot for slot in self._present() if slot.backend is self._backend]
        missing = self.count - len(present) - self.reforks.waiting
        for _ in range(min(missing, 2 * self.count - len(present) - len(self.leaving))):
            try:
                self.fork(self.backend, self.limits, after_used_up=after_used_up)
            except OSError as error:
                how = ExitReport(0, start_error=f"its channels can't be opened: {reason(error)}").how
                self._bus.emit(WorkerExited(0, 0, "crash", how, None))
                self.reforks.add()
        present.sort(key=lambda slot: (bool(slot.sent), -slot.number))
        for slot in present[: max(0, len(present) - self.count)]:
            slot.retire()

    def fork(self, backend: WorkerBackend, limits: Limits, *, after_used_up: bool = False) -> WorkerSlot:
        """Fork a worker: ahead of the others, if `renew` is yet to make this the backend. Raises OSError if there are no channels.

        `max_jobs` is for one that follows a worker which has used that up. Workers that start together would all reach it at one
        moment, and none could take a job until the new ones have started: so each of them has another share of it.
        """
        assert self._context is not None
        number = next(self._numbers)
        limits = limits._replace(setting=limits.max_jobs)
        if not after_used_up and limits.max_jobs is not None:
            limits = limits._replace(max_jobs=share(limits.max_jobs, number, self.count))
        slot = WorkerSlot(number, backend, limits, self._context)
        self.workers[slot.number] = slot
        return slot

    def _present(self) -> list[WorkerSlot]:
        return [slot for slot in self.workers.values() if slot.state in _PRESENT]

    def replace(self, pid: int) -> bool:
        """Retire a worker that runs but can't do its work, and fork another. If that was done within the last seconds, keep the
        worker and return False: if no worker can work, forks must not follow each other without end."""
        slot = next((s for s in self.workers.values() if s.process.pid == pid and s.state is State.READY), None)
        if slot is None:
            return True
        if self._timer.time() - self._replaced_at < REPLACE_INTERVAL:
            return False
        self._replaced_at = self._timer.time()
        self.replace_used_up(slot)
        return True

    def renew(self, backend: WorkerBackend) -> None:
        """Replace every worker of another backend, at once: delays after useless workers end here. If the
        backend is the same and has a new forkserver, workers that have no process yet will be forked from that, and stay."""
        has_new_forkserver, self._backend = backend is self._backend, backend
        self.reforks.cancel()
        for slot in self._present():
            if slot.backend is not backend or (has_new_forkserver and slot.process.pid is not None):
                slot.retire()
        self.fill()
        self.async_workers.renew(backend)

    # jobs

    def slots_with_room(self) -> list[WorkerSlot]:
        """Return the workers that can take another frame now, idle ones first."""
        slots = [slot for slot in self.workers.values() if slot.has_room()]
        slots.sort(key=lambda slot: len(slot.sent))
        return slots

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
        since = self._timer.time() - seconds
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
        self._timer.call_later(FILL_AFTER, self.fill)

    def stop(self) -> None:
        """Stop forking, and retire all workers: idle ones exit now, others after the job that they run, and those that are not
        ready after their hooks. These run no job, so they are killed a second after their start."""
        self.stopping = True
        self.async_workers.stop()
        for slot in [slot for slot in self.slots if slot.state in _PRESENT]:
            slot.retire()
        for slot in self.workers.values():
            if slot.ready_at is None:
                rest = max(0.0, slot.started + HOOK_SECONDS - self._timer.time())
                self._timer.call_later(rest, _kill_unready, slot)

    def kill_all(self, reason: KillReason) -> None:
        self.stopping = True
        self.async_workers.stop()
        for slot in self.slots:
            slot.reclaim()
            slot.process.drain()
            in_hook = slot.ready_at is not None and slot.process.doing and not slot.sent
            lingers = in_hook and self._timer.time() - slot.retired_at >= HOOK_SECONDS
            slot.kill(LINGERING if lingers else reason)

    # events of the slots (SlotOwner)

    def slot_ready(self, slot: WorkerSlot) -> None:
        self.reforks.started(slot)

    def replace_used_up(self, slot: WorkerSlot) -> None:
        """It has done its last job, or does not take the next one."""
        if slot.state is State.READY:
            used_up = slot.is_used_up()
            self.leaving.add(slot.number)
            slot.retire()
            self.fill(after_used_up=used_up)

    def slot_ended(self, slot: WorkerSlot, *, with_job: bool) -> None:
        if self.stuck.pop(slot.number, None) is not None:
            return
        del self.workers[slot.number]
        self.leaving.discard(slot.number)
        if slot.stuck is not None:
            self.stuck[slot.number] = slot
        if not with_job and self.reforks.was_useless(slot):
            if not self.stopping and slot.backend is self._backend:  # not of one on trial for a reload
                self.reforks.add()
        else:
            self.fill(after_used_up=slot.is_used_up())

    # events of the backend (BackendListener)

    def forkserver_started(self, backend: WorkerBackend, pid: int, reports: Sequence[SourceReport]) -> None:
        """Report the plugins of the current backend only: another one is on trial for a reload, or ends with its last workers."""
        self._bus.emit(ForkserverStarted(pid))
        if self._context is not None and backend is self._backend:
            self._context.listener.plugins_reported(reports)

    def forkserver_exited(self, pid: int, how: str) -> None:
        self._bus.emit(ForkserverExited(pid, how))

    def forkserver_output(self, written: Written) -> None:
        self._bus.emit(output_event(0, 0, written, ()))
