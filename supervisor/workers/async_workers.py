"""Keep the wanted number of async workers: fork and replace them, with a slot for each job that one may run at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from supervisor.events import Bus, Event, WorkerExited, WorkerStarted
from supervisor.jobs import Lease
from supervisor.text.os_errors import reason
from supervisor.workers.async_worker import AsyncWorker
from supervisor.workers.blame import ExitCause
from supervisor.workers.gathered_outcomes import GatheredOutcomes
from supervisor.workers.interface import ExitReport, PoolListener, State, Timer, WorkerBackend
from supervisor.workers.limits import Limits
from supervisor.workers.reforks import ReforkDelays
from supervisor.workers.run_times import RunTimes
from supervisor.workers.sent_ahead import SHARE
from supervisor.workers.slot import MEMORY_CHECK_INTERVAL, SlotContext, WorkerSlot
from supervisor.workers.task_slot import TaskSlot

RETRY_SECONDS = 1.0
"""After a worker for some jobs could not be started, until these may have the next one."""
GROUPS, MAX_APART = 10, 20
"""The jobs of a worker that has crashed are run in so many groups, each in a worker of its own, as long as there are no more such
workers than this."""


class AsyncOptions(NamedTuple):
    """`workers` is 0 if no plugin has an async handler. `cancel_grace` is seconds."""

    workers: int = 0
    concurrency: int = 100
    cancel_grace: float = 1.0


class AsyncWorkers:
    """The async workers of a pool. It is the owner of their slots. A change of the options applies to workers forked after it."""

    name = ""

    def __init__(self, bus: Bus, timer: Timer, numbers: Iterator[int]) -> None:
        self.options = AsyncOptions()
        self.limits = Limits(None, None)
        self.slots: set[TaskSlot] = set()
        self.stopping = False
        self._to_reclaim: list[Lease] = []  # that could not be run alone
        self._bus = bus
        self._timer = timer
        self.times = RunTimes()
        self._numbers = numbers
        self._backend: WorkerBackend | None = None
        self._listener: PoolListener | None = None
        self.workers: list[AsyncWorker] = []
        self.reforks = ReforkDelays(timer, self.fill)

    def open(self, backend: WorkerBackend, listener: PoolListener) -> None:
        self._backend, self._listener = backend, listener
        self.fill()

    def renew(self, backend: WorkerBackend) -> None:
        """Replace every worker of another backend, at once; the old ones exit after the jobs that they run."""
        self._backend = backend
        self.reforks.cancel()
        for worker in self.workers:
            if worker.backend is not backend:
                self._retire(worker)
        self.fill()

    def fill(self) -> None:
        if self.stopping or self._backend is None:
            return
        present = [worker for worker in self.workers if not worker.leaving]
        for _ in range(self.options.workers - len(present) - self.reforks.waiting):
            try:
                self._fork(self._backend, self.options.concurrency, self.options.concurrency // SHARE)
            except OSError as error:
                how = ExitReport(0, start_error=f"its channels can't be opened: {reason(error)}").how
                self._bus.emit(WorkerExited(0, 0, "crash", how, None))
                self.reforks.add()
        for worker in present[self.options.workers :]:
            self._retire(worker)

    def run_apart(self, leases: list[Lease]) -> list[Lease]:
        """Run these jobs in up to GROUPS workers of their own, which exit after them. Return those for which there is no room now.
        The jobs of one that crashes are run apart again, so a job that crashes each time is soon alone, and is blamed."""
        assert self._listener is not None
        if self.stopping or self._backend is None:
            self._listener.jobs_reclaimed(leases)
            return []
        size = -(-len(leases) // GROUPS)
        while leases and sum(worker.apart for worker in self.workers) < MAX_APART:
            group, leases = leases[:size], leases[size:]
            try:
                worker = self._fork(self._backend, len(group), 0).worker
            except OSError:
                self._reclaim_later(group)
                continue
            worker.leaving = worker.apart = True
            for slot, lease in zip(self._slots_of(worker), group, strict=True):
                slot.sole = lease
        return leases

    def give_up(self, leases: Sequence[Lease]) -> None:
        """Start none of these jobs that wait for a worker of their own."""
        lost = {lease[:2] for lease in leases}
        for slot in [slot for slot in self.slots if slot.sole is not None and slot.sole[:2] in lost]:
            slot.sole = None
            slot.retire()

    def stop(self) -> None:
        """Fork no more, and reclaim the jobs that wait for a worker of their own: they must not be left to their leases."""
        self.stopping = True
        self._reclaim()

    def _reclaim_later(self, leases: Sequence[Lease]) -> None:
        self._to_reclaim += leases
        if self.stopping:
            self._reclaim()
        else:
            self._timer.call_later(RETRY_SECONDS, self._reclaim)

    def _reclaim(self) -> None:
        leases, self._to_reclaim = self._to_reclaim, []
        if leases and self._listener is not None:
            self._listener.jobs_reclaimed(leases)

    def _fork(self, backend: WorkerBackend, concurrency: int, ahead: int) -> TaskSlot:
        """Fork a worker with slots for the jobs that it runs at once and so many ahead, and return the first slot. Raises OSError if
        there are no channels."""
        assert self._listener is not None
        outcomes = GatheredOutcomes(self._listener, self.times)
        worker = AsyncWorker(
            backend, next(self._numbers), concurrency, self.options.cancel_grace, self._timer, outcomes
        )
        worker.max_jobs = self.limits.max_jobs
        self.workers.append(worker)
        context = SlotContext(self, outcomes, self._bus, self.times, self._timer.time)
        quiet = context._replace(bus=_OneWorker(self._bus))  # one worker starts, not one for each slot
        first = TaskSlot(worker, context, self)
        others = concurrency + ahead - 1
        self.slots.update((first, *(TaskSlot(worker, quiet, self) for _ in range(others))))
        return first

    def replace_old(self, worker: AsyncWorker, reached: ExitCause) -> None:
        """Replace the worker, unless as many as are wanted still run their last jobs."""
        if sum(1 for each in self.workers if each.leaving) < self.options.workers:
            for slot in self._slots_of(worker):
                slot.reached = reached
            self._retire(worker)
            self.fill()

    def _retire(self, worker: AsyncWorker) -> None:
        worker.leaving = True
        for slot in self._slots_of(worker):
            if slot.state in (State.STARTING, State.READY):
                slot.retire()

    def _slots_of(self, worker: AsyncWorker) -> list[TaskSlot]:
        return [slot for slot in self.slots if slot.worker is worker]

    # counts

    def slots_with_room(self) -> list[TaskSlot]:
        """Return the slots that may get a job, those first that it may start at once."""
        found: list[TaskSlot] = []
        for worker in sorted(self.workers, key=lambda worker: -worker.room):
            found += islice([slot for slot in worker.free if slot.has_room()], max(0, worker.room))
        return found

    def room(self) -> int:
        return sum(min(worker.room, len(worker.free)) for worker in self.workers if worker.room > 0)

    @property
    def concurrency(self) -> int:
        """The number of jobs that all workers may run at once."""
        return sum(worker.concurrency for worker in self.workers)

    # events of the slots (SlotOwner)

    def slot_ready(self, slot: WorkerSlot) -> None:
        self.reforks.started(slot)
        assert isinstance(slot, TaskSlot)
        slot.note_free()
        if slot.sole is not None and slot.state is State.READY:
            slot.send([slot.sole])
            slot.sole = None

    def job_done(self, worker: AsyncWorker) -> None:
        """Replace the worker if it has reached a limit."""
        used_up = worker.max_jobs is not None and worker.done >= worker.max_jobs
        if not used_up and self.limits.max_memory is not None and self._timer.time() >= worker.memory_due:
            worker.memory_due = self._timer.time() + MEMORY_CHECK_INTERVAL
            used_up = self.limits.reached_by_memory(worker.process.memory(), worker.memory_at_start) is not None
        if used_up and not worker.leaving:
            self._retire(worker)
            self.fill()

    def may_replace(self) -> bool:
        """Return False: see `replace_old`."""
        return False

    def replace_used_up(self, slot: WorkerSlot) -> None:
        """Do nothing: the loop of the worker is blocked, and the job that blocks it may end."""

    def slot_ended(self, slot: WorkerSlot, *, with_job: bool) -> None:
        assert isinstance(slot, TaskSlot)
        if slot not in self.slots:  # it was stuck in the kernel
            return
        self.slots.remove(slot)
        slot.worker.free.pop(slot, None)
        if slot.sole is not None:
            self._reclaim_later([slot.sole])
        if self._slots_of(slot.worker):
            return
        self.workers.remove(slot.worker)
        if not with_job and self.reforks.was_useless(slot):
            if not self.stopping and slot.backend is self._backend:
                self.reforks.add()
        else:
            self.fill()


class _OneWorker(Bus):
    """The bus of all slots of a worker but one: events about the worker itself are emitted once."""

    def __init__(self, bus: Bus) -> None:
        super().__init__()
        self._bus = bus

    def emit(self, event: Event) -> None:
        if not isinstance(event, WorkerStarted):
            self._bus.emit(event)
