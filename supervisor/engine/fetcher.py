"""Claim jobs when workers have room, and put them into the queue buffers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from supervisor.engine.claim_planner import ClaimPlanner, Demand
from supervisor.engine.claim_timers import ClaimTimers
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
from supervisor.retry import SUSPECT
from supervisor.stores.job_limits import RUNNING, JobLimits
from supervisor.stores.limited_claims import LimitedClaim
from supervisor.stores.protocol import Store
from supervisor.stores.records import Waiting, by_queue_and_tier

MAX_MADE_READY = 1000
"""The due jobs that one claim makes ready."""
MAX_IN_ADDITION = 1000
"""The jobs that are claimed in addition because many have an unknown handler."""
NO_CLAIM = LimitedClaim([], Counter())


class Claimed(NamedTuple):
    leases: list[Lease]
    waiting: dict[str, Waiting]  # before the claim
    due: float | None  # by the loop's time: when the next scheduled job is due
    missed: bool = False  # there were jobs to claim, and other supervisors had locked them all
    newly_ready: frozenset[tuple[str, int]] = frozenset()  # queues and tiers, by this claim
    behind: str | None = None  # if jobs wait in other queues too: `waiting` has those from behind this one to its last
    expired: Sequence[ExpiredJob] = ()  # cancelled by the look before this claim
    again: bool = False  # there may be jobs that this claim has not reached
    depths: Mapping[str, Waiting] | None = None  # if limits hold jobs back, all that are ready: `waiting` lacks those
    limits_reached: Mapping[str, str] = MappingProxyType({})
    limits_reached_until: Mapping[str, int] = MappingProxyType({})

    @property
    def left_by_limits(self) -> bool:
        """Whether it has left jobs although limits allowed them, since no worker could start them."""
        return self.depths is not None and sum(map(sum, self.waiting.values())) > len(self.leases)

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
    def to_start(self) -> int:
        """The maximum of jobs under limits that it claims."""
        return self._demand.to_start

    @property
    def by_group(self) -> dict[str, int]:
        return {name: part.capacity for name, part in self._demand.groups.items()}

    def __call__(self, store: Store) -> Claimed:
        self.begun = True
        if self.cancelled:
            return Claimed([], {}, None)
        settings = self._demand.settings
        waiting, due_in, newly_ready, more, behind, expired = store.look(
            settings.workers.queues, MAX_MADE_READY, stay=not self._demand.capacity
        )
        due = None if due_in is None else self._now() + due_in  # now, since a commit may take long
        seen = Claimed([], waiting, due, newly_ready=newly_ready, behind=behind if more else None, expired=expired)
        if self._demand.job_limits is not None:
            return self._claim_limited(store, seen, self._demand.job_limits)
        requests = self._demand.requests(waiting, more)
        leases = store.claim(requests, settings.lease.ttl, self._demand.resolve) if requests else []
        return seen._replace(leases=leases, missed=bool(requests) and not leases)

    def _claim_limited(self, store: Store, seen: Claimed, limits: JobLimits) -> Claimed:
        """Claim as far as the limits allow it. Jobs that they hold back do not count as waiting."""
        demand, settings = self._demand, self._demand.settings
        allowance = store.allowance(limits, settings.workers.queues)
        waiting = allowance.claimable(seen.waiting)
        startable = allowance.startable(waiting, demand.to_start)
        requests = allowance.asked(demand.requests(startable, seen.behind is not None), demand.to_start)
        claim, leases = NO_CLAIM, list[Lease]()
        if limited := [it for it in requests if limits.may_apply(it.queue)]:
            claim = store.claim_limited(limited, settings.lease.ttl, demand.resolve, allowance, demand.to_start)
            leases += claim.leases
        if others := [it for it in requests if not limits.may_apply(it.queue)]:
            leases += store.claim(others, settings.lease.ttl, demand.resolve)
        left = {
            queue: Waiting(it.fresh - claim.held[queue, Tier.FRESH], it.retries - claim.held[queue, Tier.RETRY])
            for queue, it in waiting.items()
        }
        in_vain = bool(requests) and not leases and not claim.held
        due = seen.due
        if (wait := allowance.next_claim) is not None:
            due = self._now() + wait if due is None else min(due, self._now() + wait)
        return seen._replace(
            leases=leases, waiting=left, due=due, missed=claim.busy or in_vain, again=claim.more, depths=seen.waiting,
            limits_reached=allowance.reached, limits_reached_until=allowance.reached_until,
        )  # fmt: skip


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
        known = self._config.handlers
        missing = {handler for handler in {lease[LEASE_HANDLER] for lease in leases} if handler not in known}
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
        self._not_dispatching_since: float | None = None
        self.limits_reached: dict[str, str] = {}
        """The limits that allowed no claim at the last one, and why."""
        self.limits_reached_until: dict[str, int] = {}
        """When the rates among them allow the next claim, if that takes a while: microseconds since the epoch."""
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
        return None if self.closed else self._not_dispatching_since

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
            if self._not_dispatching_since is None:
                self._not_dispatching_since = self._loop.time()
            return
        self._not_dispatching_since = None
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
        in_addition = min(MAX_IN_ADDITION, 2 * self._intake.only_unknown) if want else 0
        by_group, to_start = (self._claims[0].by_group, self._claims[0].to_start) if self._claims else ({}, 0)
        demand = self._planner.demand(want + in_addition, by_group, to_start)
        claim = Claim(demand, self._loop.time, want, want if in_addition else None, overtaking, self._loop.time())
        self._claims.append(claim)
        future = self._writer.submit(claim, Purpose.CLAIM, lambda claimed: claimed.asked)
        future.add_done_callback(lambda future: self._claimed(future, claim))

    def _claimed(self, future: asyncio.Future[Claimed], claim: Claim) -> None:
        self._claims.remove(claim)
        error = future.exception()
        if isinstance(error, NotDone):
            return
        if error is not None:
            raise error
        claimed, self.claimed_at = future.result(), self._loop.time()
        self.limits_reached.clear()
        self.limits_reached.update(claimed.limits_reached)
        self.limits_reached_until.clear()
        self.limits_reached_until.update(claimed.limits_reached_until)
        if claimed.again:
            self._view.notified()
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
        if claimed.left_by_limits and len(claimed.leases) >= claim.to_start:
            self._claim_for_idle_workers()

    def _claim_for_idle_workers(self) -> None:
        """Claim again if workers have become idle since the claim before, which has left jobs for them."""
        if not self._claims and not self.closed and self._planner.to_start() > 0:
            self.notify()

    def _note_left_in_store(self, claimed: Claimed) -> None:
        taken = by_queue_and_tier(claimed.leases)
        left = {
            queue: Waiting(
                ready.fresh - taken.get((queue, Tier.FRESH), 0), ready.retries - taken.get((queue, Tier.RETRY), 0)
            )
            for queue, ready in claimed.waiting.items()
        }
        emptied = self._buffers.note_left_in_store(left, claimed.behind)
        if any(queue not in left or left[queue][tier] > 0 for queue, tier in claimed.newly_ready):
            self._notify_others()  # of jobs that came due and may be theirs
        any_left = claimed.behind is not None or any(
            waiting.fresh > 0 or waiting.retries > 0 for waiting in left.values()
        )
        seen_all = claimed.behind is None and not self._view.change
        self._groups_left = self._buffers.groups_left() if seen_all else None
        self._view.claim_ended(brought=bool(claimed.leases), left=any_left)
        if RUNNING in claimed.limits_reached.values():
            self._view.released()  # the end of a job here may make room: then its settle and the claim share a commit
        depths = {queue: (ready.fresh, ready.retries) for queue, ready in (claimed.depths or claimed.waiting).items()}
        self._bus.emit(QueueDepths(depths | dict.fromkeys(emptied, (0, 0)), claimed.behind is not None))

    def _make_way_for(self, leases: Sequence[Lease]) -> None:
        fresh = any(lease[LEASE_TIER] == Tier.FRESH for lease in leases)
        self._dispatcher.make_way(for_fresh=fresh)
