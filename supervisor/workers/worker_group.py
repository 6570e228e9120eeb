"""The workers of one group, which run the jobs of its queues only: fork and replace them, up to the number wanted now."""

from __future__ import annotations

import itertools

from supervisor.config.settings import Size
from supervisor.events import Bus, WorkerExited
from supervisor.text.os_errors import reason
from supervisor.workers.interface import ExitReport, PoolListener, State, Timer, WorkerBackend
from supervisor.workers.limits import Limits
from supervisor.workers.reforks import ReforkDelays
from supervisor.workers.run_times import RunTimes
from supervisor.workers.slot import SlotContext, WorkerSlot

OTHERS = ""
"""The name of the group of all queues that are in no group of the config."""
PRESENT = (State.STARTING, State.READY, State.EXITED)
"""Workers in these states count for the wanted number; the others have been, or are being, replaced."""


def share(max_jobs: int, number: int, count: int) -> int:
    """Return the share of a worker: those of `count` workers with successive numbers are 1/count, 2/count… of `max_jobs`."""
    return -(-max_jobs * (number % count + 1) // count)


class PoolState:
    """The state that all groups of a pool share. A change of `limits` applies to workers forked after it."""

    def __init__(self, bus: Bus, timer: Timer, limits: Limits) -> None:
        self.limits = limits
        self.workers: dict[int, WorkerSlot] = {}  # of all groups
        self.stuck: dict[int, WorkerSlot] = {}  # those that were killed, do no more, and have not exited
        self.stopping = False
        self.bus = bus
        self.timer = timer
        self.newest: WorkerBackend | None = None  # from which new workers are forked, once the pool is open
        self.listener: PoolListener | None = None
        self.numbers = itertools.count(1)


class WorkerGroup:
    """The slots of `count` workers, and of those that are still ending. It is the owner of these slots.

    `count` is within `size`. The group without a name has the workers of all queues that are in no group.
    """

    def __init__(self, name: str, size: Size, state: PoolState) -> None:
        self.name = name
        self.size = self.configured = size
        self.count = size.min
        self.times = RunTimes()
        self.workers: dict[int, WorkerSlot] = {}
        # The numbers of workers that were replaced and have not exited; not those of a reload.
        self.leaving: set[int] = set()
        self.reforks = ReforkDelays(state.timer, self.fill)
        self._state = state

    # the number of workers

    def configure(self, size: Size) -> None:
        """Use another size, if it is not the one that was set last: a change by resize holds until then. `fill` follows."""
        if size != self.configured:
            self.size = self.configured = size
            self.count = min(max(self.count, size.min), size.max)

    def resize(self, most: int) -> None:
        """Want so many workers; at most so many, if their number is not fixed."""
        least = most if self.size.is_fixed else min(self.size.min, most)
        self.size = Size(least, most, self.size.idle_after)
        self.set_count(min(max(self.count, self.size.min), most))
        if self._state.listener is not None:
            self._state.listener.workers_changed()  # there may be room to grow

    def set_count(self, count: int) -> None:
        self.count = count
        self.fill()

    def fill(self, *, after_used_up: bool = False) -> None:
        """Fork until there are as many workers as wanted; retire surplus ones, idle ones and the newest first.

        Each that leaves may take seconds for its exit functions: from `count` of those on, its successor waits for an exit.
        """
        state = self._state
        if state.stopping or state.newest is None or state.listener is None:
            return
        present = [slot for slot in self.workers.values() if slot.state in PRESENT and slot.backend is state.newest]
        missing = self.count - len(present) - self.reforks.waiting
        for _ in range(min(missing, 2 * self.count - len(present) - len(self.leaving))):
            try:
                self.fork(state.newest, state.limits, after_used_up=after_used_up)
            except OSError as error:
                how = ExitReport(0, start_error=f"its channels can't be opened: {reason(error)}").how
                state.bus.emit(WorkerExited(0, 0, "crash", how, None))
                self.reforks.add()
        present.sort(key=lambda slot: (bool(slot.sent), -slot.number))
        for slot in present[: max(0, len(present) - self.count)]:
            slot.retire()

    def fork(self, backend: WorkerBackend, limits: Limits, *, after_used_up: bool = False) -> WorkerSlot:
        """Fork a worker: ahead of the others, if `renew` is yet to make this the backend. Raises OSError if there are no channels.

        `max_jobs` is for one that follows a worker which has used that up. Workers that start together would all reach it at one
        moment, and none could take a job until the new ones have started: so each of them has another share of it.
        """
        state = self._state
        assert state.listener is not None
        number = next(state.numbers)
        limits = limits._replace(setting=limits.max_jobs)
        if not after_used_up and limits.max_jobs is not None:
            limits = limits._replace(max_jobs=share(limits.max_jobs, number, max(1, self.count)))
        context = SlotContext(self, state.listener, state.bus, self.times, state.timer.time)
        slot = WorkerSlot(number, backend, limits, context)
        self.workers[number] = state.workers[number] = slot
        return slot

    def shrink(self, least_idle: float) -> int:
        """Retire workers that have been idle for so many seconds, the newest first, down to the least number. Return how many."""
        since, newest = self._state.timer.time() - least_idle, self._state.newest  # others are on trial for a reload
        ready = [slot for slot in self.workers.values() if slot.state is State.READY and slot.backend is newest]
        idle = [slot for slot in ready if not slot.sent and slot.started <= since]
        surplus = idle[::-1][: max(0, self.count - self.size.min)]
        self.count -= len(surplus)
        for slot in surplus:
            slot.retire()
        return len(surplus)

    # jobs

    def to_come(self) -> int:
        """Return how many jobs workers may soon take that are not ready yet, if the number of workers is not fixed."""
        if self.size.is_fixed or self.reforks.waiting:
            return 0
        return self.count - self.ready_count() + self.step

    @property
    def step(self) -> int:
        """The number of workers by which the group may grow now: it doubles at most."""
        return min(max(1, self.count), self.size.max - self.count)

    def slots_with_room(self) -> list[WorkerSlot]:
        """Return the workers that can take another frame now, idle ones first."""
        slots = [slot for slot in self.workers.values() if slot.has_room()]
        slots.sort(key=lambda slot: len(slot.sent))
        return slots

    def idle_count(self) -> int:
        return sum(1 for slot in self.workers.values() if slot.state is State.READY and not slot.sent)

    def ready_count(self) -> int:
        return sum(1 for slot in self.workers.values() if slot.state is State.READY)

    # events of the slots (SlotOwner)

    def slot_ready(self, slot: WorkerSlot) -> None:
        self.reforks.started(slot)

    def may_replace(self) -> bool:
        """Return whether fewer workers than are wanted still run their last jobs."""
        return len(self.leaving) < self.count

    def replace_used_up(self, slot: WorkerSlot) -> None:
        """It has done its last job, or does not take the next one."""
        if slot.state is State.READY:
            used_up = slot.is_used_up()
            self.leaving.add(slot.number)
            slot.retire()
            self.fill(after_used_up=used_up)

    def slot_ended(self, slot: WorkerSlot, *, with_job: bool) -> None:
        state = self._state
        if state.stuck.pop(slot.number, None) is not None:
            return
        del self.workers[slot.number], state.workers[slot.number]
        self.leaving.discard(slot.number)
        if slot.stuck is not None:
            state.stuck[slot.number] = slot
        if not with_job and self.reforks.was_useless(slot):
            if not state.stopping and slot.backend is state.newest:  # not of one on trial for a reload
                self.reforks.add()
        else:
            self.fill(after_used_up=slot.is_used_up())
