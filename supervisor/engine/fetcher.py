"""Claim jobs when workers have room, and put them into the queue buffers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.engine.claim_planner import ClaimPlanner, Demand
from supervisor.engine.committer import Committer
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.dispatcher import Dispatcher
from supervisor.engine.fairness import JobBuffers
from supervisor.engine.lease_keeper import LeaseKeeper
from supervisor.engine.leases import Leases
from supervisor.engine.limits import Limits
from supervisor.engine.store_view import Change, Claimable, StoreView
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.engine.suspects import Suspects
from supervisor.engine.unknown_handlers import HEAD_START, UnknownHandlers
from supervisor.events import Bus, JobsClaimed, JobsExpired, QueueDepths
from supervisor.jobs import LEASE_EXPIRED_COUNT, LEASE_HANDLER, LEASE_TIER, ExpiredJob, Lease, Tier
from supervisor.retry import SUSPECT, GrowingDelay
from supervisor.stores.protocol import Store
from supervisor.stores.records import Waiting, by_queue_and_tier

MAX_PROMOTED = 1000
MAX_UNKNOWN = 1000
FIRST_LOOK = 0.1
"""Seconds until the next look for jobs that other supervisors were claiming; they double after each look in vain."""


class Claimed(NamedTuple):
    leases: list[Lease]
    waiting: dict[str, Waiting]  # before the claim
    due: float | None  # by the loop's time: when the next scheduled job is due
    missed: bool = False  # there were jobs to claim, and other supervisors had locked them all
    newly_ready: frozenset[tuple[str, int]] = frozenset()  # queues and tiers, by this claim
    behind: str | None = None  # if jobs wait in other queues too: `waiting` has those from behind this one to its last
    expired: Sequence[ExpiredJob] = ()  # cancelled by the look before this claim

    @property
    def asked(self) -> bool:
        """Whether the store was asked for jobs: not if none waited, or the claim was cancelled."""
        return self.missed or bool(self.leases)


@dataclass(eq=False)
class Claim:
    """One claim, which the writer calls. Once it has `begun`, only the next claim can bring further jobs."""

    _demand: Demand
    _now: Callable[[], float]
    want: int
    max_known: int | None
    """The maximum of jobs with a known handler to keep: more were claimed only because many have an unknown one."""
    overtaking: bool
    """Some of its jobs may go before those that workers have and have not started."""
    since: float  # by the loop's clock
    begun: bool = False
    cancelled: bool = False

    @property
    def by_group(self) -> dict[str, int]:
        return {name: part.capacity for name, part in self._demand.groups.items()}

    def __call__(self, store: Store) -> Claimed:
        self.begun = True
        if self.cancelled:
            return Claimed([], {}, None)
        settings = self._demand.settings
        waiting, due_in, newly_ready, more, behind, expired = store.look(
            settings.workers.queues, MAX_PROMOTED, stay=not self._demand.capacity
        )
        due = None if due_in is None else self._now() + due_in  # now, since a commit may take long
        requests = self._demand.requests(waiting, more)
        leases = store.claim(requests, settings.lease.ttl, self._demand.resolve) if requests else []
        missed = bool(requests) and not leases
        return Claimed(leases, waiting, due, missed, newly_ready, behind if more else None, expired)


@dataclass(eq=False)
class Intake:
    """Takes in the leases of a claim: all are held, and the jobs with a known handler are buffered."""

    _leases: Leases
    _buffers: JobBuffers
    _committer: Committer
    _unknown_handlers: UnknownHandlers
    suspects: Suspects
    _lease_keeper: LeaseKeeper
    _config: CurrentConfig
    only_unknown: int = 0
    """The number of jobs of the last claim, if this supervisor knows the handler of none, else 0."""

    def hold(self, leases: Sequence[Lease]) -> None:
        """Hold these leases. Jobs that still run here under an older token must not run twice: their leases are given up."""
        overtaken = self._leases.of_same_jobs(leases)
        if overtaken or self._lease_keeper.in_grace:
            self._lease_keeper.claimed_again(leases, overtaken)
        self._leases.add(leases)

    def buffer(self, leases: list[Lease], max_known: int | None) -> None:
        """Buffer the jobs that may run at once; suspects are started one by one."""
        served = self._config.handlers
        missing = {handler for handler in {lease[LEASE_HANDLER] for lease in leases} if handler not in served}
        unknown = [lease for lease in leases if lease.handler in missing] if missing else []
        self.only_unknown = len(unknown) if len(unknown) == len(leases) else 0
        if unknown:
            leases = [lease for lease in leases if lease.handler not in missing]
            self._committer.add(self._unknown_handlers.outcomes_of(unknown))
        if max_known is not None and len(leases) > max_known:
            self.release(leases[max_known:], "more than can be held")
            leases = leases[:max_known]
        suspects = [lease for lease in leases if lease[LEASE_EXPIRED_COUNT] >= SUSPECT]
        if suspects:
            leases = [lease for lease in leases if lease[LEASE_EXPIRED_COUNT] < SUSPECT]
            self.suspects.admit(suspects)
        if self.suspects.alone is not None:
            self.release(leases, "a suspect runs alone")
        else:
            self._buffers.add(leases)

    @property
    def pending(self) -> bool:
        """Whether jobs are held that are neither buffered nor released."""
        return self.suspects.waiting

    def release(self, leases: Sequence[Lease], reason: str) -> None:
        self._committer.release(leases, reason)

    def requeue(self, leases: Sequence[Lease]) -> None:
        self._buffers.requeue(self._leases.held_of(leases))


class ClaimTimers:
    """Calls `look` at regular intervals, since a notification may be lost, and again after a claim that missed the jobs; calls
    `look_for_due` when a scheduled job is due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poll: float,
        *,
        look: Callable[[], None],
        look_for_due: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._poll_interval = poll
        self._look = look
        self._look_for_due = look_for_due
        self._due: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._again_delay = GrowingDelay(FIRST_LOOK, poll)

    def start(self) -> None:
        self._loop.call_later(self._poll_interval, self._poll)

    def _poll(self) -> None:
        self.start()
        self._look()

    @property
    def next_due(self) -> float | None:
        """The time (of the loop) at which a scheduled job is known to be due, if any is."""
        return None if self._due is None else self._due.when()

    def due_at(self, when: float) -> None:
        """Look at this time (of the loop), if not before."""
        if self._due is None or when < self._due.when():
            if self._due is not None:
                self._due.cancel()
            self._due = self._loop.call_at(when, self._come_due)

    def _come_due(self) -> None:
        self._due = None
        self._look_for_due()

    def claim_missed(self) -> None:
        """Look again after a delay: there were jobs, and other supervisors had locked them all, but may not keep them."""
        if self._again is None:
            self._again = self._loop.call_later(self._again_delay.next(), self._look_again)

    def claim_did_not_miss(self) -> None:
        """Forget the looks in vain: after the next one, the first delay is the shortest again."""
        self._again_delay.reset()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _look_again(self) -> None:
        self._again = None
        self._look()


class Fetcher:
    """Decides when to claim. `pump` is called whenever something has changed, and never waits."""

    def __init__(
        self, writer: Writer, planner: ClaimPlanner, dispatcher: Dispatcher, buffers: JobBuffers, intake: Intake, bus: Bus,
        loop: asyncio.AbstractEventLoop, limits: Limits, notify_others: Callable[[], None],
    ) -> None:  # fmt: skip
        self.closed = True  # also before it is opened
        self.timers = ClaimTimers(loop, limits.poll, look=self.notify, look_for_due=self._notify_due)
        self._writer = writer
        self._planner = planner
        self._dispatcher = dispatcher
        self._buffers = buffers
        self._intake = intake
        intake.suspects.start, intake.suspects.go_on = self.jobs_reclaimed, self.notify
        self._bus = bus
        self._loop = loop
        self._limits = limits
        self._notify_others = notify_others
        self._view = StoreView()
        self._claims: list[Claim] = []  # under way
        # The groups of workers that may find jobs in the store; None for all of them.
        self._groups_left: frozenset[str] | None = None
        self._pump_scheduled = False
        self._held_back_since: float | None = None
        self.claimed_at: float | None = None
        """When the store last answered a claim, by the loop's clock."""

    def open(self) -> None:
        self.closed = False
        self.timers.start()
        self.notify()

    def close(self) -> list[Lease]:
        """Claim no more, and return the jobs that are buffered. A claim under way brings nothing, or its jobs are released."""
        self.closed = True
        for claim in self._claims:
            claim.cancelled = True
        return [*self._buffers.take_all(), *self._intake.suspects.take_waiting()]

    @property
    def claiming(self) -> bool:
        return bool(self._claims) or self._intake.pending

    @property
    def quiet(self) -> bool:
        """Whether nothing is buffered, and the last claim left nothing claimable in the store."""
        return not len(self._buffers) and not self._claims and self._view.claimable is not Claimable.POSSIBLE

    @property
    def stalled_since(self) -> float | None:
        """Since when, by the loop's clock, the answer to a claim is awaited, or no job may start because outcomes or leases wait for
        the store. None if claims go on, or none is needed."""
        if self._claims:
            return self._claims[0].since
        return None if self.closed else self._held_back_since

    # wake-ups

    def notify(self) -> None:
        """Note that the store may have claimable jobs, and claim them if there is room."""
        self._view.notified()
        self._groups_left = None
        self.pump()

    def _notify_due(self) -> None:
        self._view.notified(Change.CAME_DUE)
        self._groups_left = None
        self.pump()

    def jobs_released(self, *, worker_idle: bool) -> None:
        """Jobs are ready again: claim them at once if a worker is idle, else when one has changed."""
        if worker_idle:
            self.notify()
        else:
            self._view.released()
            self._groups_left = None

    def worker_changed(self) -> None:
        self._view.worker_changed()
        self.pump()

    def jobs_reclaimed(self, leases: Sequence[Lease]) -> None:
        """Requeue jobs that were reclaimed from a worker, or release them at the end."""
        if self.closed:
            self._intake.release(leases, "shutdown")
            return
        self._intake.requeue(leases)
        if not self._pump_scheduled:  # not now: the pool may be iterating over its workers
            self._pump_scheduled = True
            self._loop.call_soon(self._pump_soon)

    def _pump_soon(self) -> None:
        self._pump_scheduled = False
        self.pump()

    # claims

    def pump(self) -> None:
        """Dispatch buffered jobs, and claim more if there is room for them."""
        if not self._dispatcher.may_dispatch():
            if self._held_back_since is None:
                self._held_back_since = self._loop.time()
            return
        self._held_back_since = None
        self._dispatcher.dispatch()
        if self.closed or self._view.claimable is not Claimable.POSSIBLE or self._intake.suspects.alone is not None:
            return
        if not self._claims:
            room, change = self._planner.room(0, only=self._groups_left), self._view.change
            if room > 0 or change is Change.CAME_DUE or (change and self._buffers.only_retries_wait()):
                self._claim(room)
        elif len(self._claims) == 1 and self._claims[0].begun and not self._intake.only_unknown:
            # It takes as long to claim such quick jobs as to run them: while the loop hands out the jobs of one claim, the
            # writer works on the next one, and on outcomes, in one commit.
            room = self._planner.room(self._claims[0].want, self._claims[0].by_group)
            if room >= self._limits.claimed_at_once:
                self._claim(room)

    def _claim(self, want: int) -> None:
        """Claim `want` jobs. If the last claim brought only jobs with unknown handlers, claim twice as many in addition: otherwise
        the jobs behind many of these would wait for all of them."""
        overtaking = not want or self._view.change is Change.CAME_DUE
        self._view.claim_begins()
        unknown = min(MAX_UNKNOWN, 2 * self._intake.only_unknown) if want else 0
        demand = self._planner.demand(want + unknown, self._claims[0].by_group if self._claims else {})
        claim = Claim(demand, self._loop.time, want, want if unknown else None, overtaking, self._loop.time())
        self._claims.append(claim)
        claimed = self._writer.submit(claim, Purpose.CLAIM, lambda claimed: claimed.asked)
        claimed.add_done_callback(lambda future: self._claimed(future, claim))

    def _claimed(self, future: asyncio.Future[Claimed], claim: Claim) -> None:
        self._claims.remove(claim)
        error = future.exception()
        if isinstance(error, NotDone):
            return
        if error is not None:
            raise error
        claimed, self.claimed_at = future.result(), self._loop.time()
        self._note_left_in_store(claimed)
        if claimed.expired:
            self._bus.emit(JobsExpired(claimed.expired))
        if claimed.leases:
            self._intake.hold(claimed.leases)
            self._bus.emit(JobsClaimed(claimed.leases))
            if self.closed:
                self._intake.release(claimed.leases, "shutdown")
                return
            self._intake.buffer(claimed.leases, claim.max_known)
            if claim.overtaking:
                self._make_way_for(claimed.leases)
        if claimed.missed:
            self.timers.claim_missed()
        else:
            self.timers.claim_did_not_miss()
        if claimed.due is not None:
            self.timers.due_at(claimed.due + (HEAD_START if self._intake.only_unknown else 0.0))
        self.pump()

    def _note_left_in_store(self, claimed: Claimed) -> None:
        taken = by_queue_and_tier(claimed.leases)
        left = {
            queue: Waiting(
                ready.fresh - taken.get((queue, Tier.FRESH), 0), ready.retries - taken.get((queue, Tier.RETRY), 0)
            )
            for queue, ready in claimed.waiting.items()
        }
        gone = self._buffers.note_left_in_store(left, claimed.behind)
        if any(queue not in left or left[queue][tier] > 0 for queue, tier in claimed.newly_ready):
            self._notify_others()  # of jobs that came due and may be theirs
        any_left = claimed.behind is not None or any(
            waiting.fresh > 0 or waiting.retries > 0 for waiting in left.values()
        )
        seen_all = claimed.behind is None and not self._view.change
        self._groups_left = self._buffers.groups_left() if seen_all else None
        self._view.claim_ended(brought=bool(claimed.leases), left=any_left)
        depths = {queue: (ready.fresh, ready.retries) for queue, ready in claimed.waiting.items()}
        self._bus.emit(QueueDepths(depths | dict.fromkeys(gone, (0, 0)), claimed.behind is not None))

    def _make_way_for(self, leases: Sequence[Lease]) -> None:
        fresh = any(lease[LEASE_TIER] == Tier.FRESH for lease in leases)
        self._dispatcher.make_way(for_fresh=fresh)
