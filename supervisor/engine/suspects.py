"""Suspects: jobs that ran, or may have run, when their supervisor was lost. One of them may have ended it.

None of them is blamed at first, since it is not known which it was. They run again one by one, each as soon as the one before has
ended, or has run for its trial. One that is lost a second time becomes a sole suspect: nothing else may start in its supervisor
during its trial. It is blamed only if it is lost while nothing else ran there, which recovery sees by the leases of the lost owner.
Each loss doubles the trial, so a job that ends its supervisor each time is lost alone at last, and no other job loses a retry.
Recovery adds 2 to the `expired_count` of a job that was lost with a start mark, and 1 to that of any other. Two stages are needed:
after one loss, as when a machine fails, many long jobs must neither keep fresh jobs waiting nor run for hours one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from supervisor.engine.committer import Committer
from supervisor.engine.fairness import JobBuffers
from supervisor.engine.lease_keeper import LeaseKeeper
from supervisor.engine.leases import Leases
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.jobs import Kind, Lease, Outcome
from supervisor.retry import MIN_RELEASE_SECONDS, SOLE_SUSPECT, Random
from supervisor.workers.pool import Pool

SPREAD_SECONDS = 0.02
"""Between the times at which suspects that have to wait are due again: thousands at once would keep fresh jobs from being claimed."""
TRIAL_SECONDS = 5.0
"""The trial of a job that was lost once: after that, the next suspect starts beside it. Otherwise long jobs would wait for each
other."""
HELD_SECONDS, MAX_HELD = 1.0, 100
"""A suspect that has waited for so long, or behind so many, is released, also to other supervisors."""
LOOK_EVERY = 0.25
MAX_DOUBLED = 20


def trial(lease: Lease) -> float:
    return TRIAL_SECONDS * 2.0 ** min(max(0, lease.expired_count // 2 - 1), MAX_DOUBLED)


@dataclass(eq=False)
class Suspects:
    """Starts the suspects of this supervisor. Each gets its start mark in the store before it runs.

    `alone` is the id of a sole suspect beside which nothing else may start: it is in its trial, or waits until nothing else runs, but
    for no longer than its trial takes. `start` is called with a suspect that may run, `go_on` when others may start again.
    """

    _writer: Writer
    _leases: Leases
    _buffers: JobBuffers
    _committer: Committer
    _lease_keeper: LeaseKeeper
    _pool: Pool
    _loop: asyncio.AbstractEventLoop
    _random: Random
    start: Callable[[Sequence[Lease]], None] = field(init=False)
    go_on: Callable[[], None] = field(init=False)
    alone: int | None = None
    marking: int = 0
    _started: list[tuple[Lease, float]] = field(default_factory=list)
    _waiting: list[tuple[Lease, float]] = field(default_factory=list)  # with the time of the claim
    _trial_ends: float = 0.0  # of a sole suspect that was started while nothing else ran
    _waits_until: float | None = None  # for the jobs beside it to end
    _last_due: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> bool:
        """Whether suspects are held that do not run yet."""
        return self.marking > 0 or bool(self._waiting)

    @property
    def busy(self) -> bool:
        return self.waiting or self.alone is not None

    def admit(self, suspects: Sequence[Lease]) -> None:
        """Start each of these suspects when it may run. Those that would wait for long are released."""
        self._waiting += [(lease, self._loop.time()) for lease in suspects]
        self.look()

    def take_waiting(self) -> list[Lease]:
        """Return the suspects that are not started, and hold them no longer."""
        waiting, self._waiting, self.alone = [lease for lease, _ in self._waiting], [], None
        return waiting

    def look(self) -> None:
        """Start the next suspect if it may run now. Call this when leases were dropped."""
        now = self._loop.time()
        self._started = [it for it in self._started if self._leases.holds(it[0])]
        self._waiting = [it for it in self._waiting if self._leases.holds(it[0])]
        first = next_one = None
        if self._waiting and not self.marking:
            first = max(self._waiting, key=lambda it: (it[0].expired_count, self._random()))[0]
            if self._may_start(first, now):
                self._begin(first, now)
                first, next_one = None, first
        elif not self._waiting and not self._started:
            self._waits_until = None
        self._release_late(first, now)
        self._keep_others(first, now)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.busy:
            self._timer = self._loop.call_later(LOOK_EVERY, self.look)
        if next_one is not None:
            self._mark(next_one)

    def _may_start(self, lease: Lease, now: float) -> bool:
        if self._started and now - self._started[-1][1] < trial(self._started[-1][0]):
            return False
        if lease.expired_count < SOLE_SUSPECT or self._nothing_runs():
            return True
        if self._waits_until is None:
            self._waits_until = now + trial(lease)
        return now >= self._waits_until

    def _nothing_runs(self) -> bool:
        """Whether this supervisor holds no lease but those of the suspects that wait."""
        return len(self._leases) == len(self._waiting)

    def _begin(self, lease: Lease, now: float) -> None:
        sole = lease.expired_count >= SOLE_SUSPECT and self._nothing_runs()
        self._trial_ends = now + trial(lease) if sole else now
        self._waiting = [it for it in self._waiting if it[0] is not lease]
        self._started.append((lease, now))

    def _release_late(self, first: Lease | None, now: float) -> None:
        """Release those that have waited for long, but the `first` only if it waits for another suspect."""
        keep = first if first is not None and first.expired_count >= SOLE_SUSPECT and not self._started else None
        late = [
            it[0]
            for place, it in enumerate(self._waiting)
            if it[0] is not keep and (place >= MAX_HELD or now - it[1] >= HELD_SECONDS)
        ]
        self._waiting = [it for it in self._waiting if it[0] not in late]
        outcomes = []
        for lease in late:
            self._last_due = max(now + MIN_RELEASE_SECONDS, self._last_due + SPREAD_SECONDS)
            outcomes.append(Outcome(lease, Kind.RELEASED, delay=self._last_due - now))
        if outcomes:
            self._committer.add(outcomes)

    def _keep_others(self, first: Lease | None, now: float) -> None:
        """Let others start, or not: release those that this supervisor has and has not started."""
        before, self.alone = self.alone, None
        if first is not None and self._waits_until is not None and now < self._waits_until:
            self.alone = first.id
        elif self._started and now < self._trial_ends:
            self.alone = self._started[-1][0].id
        if self.alone is not None and before is None:
            self._pool.reclaim_unstarted()
            started = {lease.id for lease, _ in self._started}
            others = [lease for lease in self._buffers.jobs() if lease.id not in started]
            self._committer.release(self._buffers.take_out(others), "a suspect runs alone")
        elif before is not None and self.alone is None:
            self.go_on()

    def _mark(self, lease: Lease) -> None:
        def marked(future: asyncio.Future[list[int]]) -> None:
            self.marking -= 1
            error = future.exception()
            if error is None and future.result():
                self._lease_keeper.give_up([lease], "extend")
            elif error is None:
                self.start([lease])
            elif not isinstance(error, NotDone):
                raise error

        self.marking += 1
        ttl = self._leases.ttl
        self._writer.submit(lambda store: store.extend([lease], ttl, [lease]), Purpose.EXTEND).add_done_callback(marked)
