"""Routes every outcome through the one retry path into the store. No outcome is dropped while the store is away."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from supervisor.config.settings import Settings
from supervisor.engine.leases import Leases
from supervisor.engine.store_writer import Abandoned, Writer
from supervisor.errors import RowsLocked
from supervisor.events import Bus, JobsLocked, JobsSettled, JobsStale
from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome
from supervisor.retry import Random, RetryBudget, decide
from supervisor.stores.protocol import Store

BATCH = 2000
AT_ONCE = 2  # batches: while one is written, the writer's next is there already
MARK_AFTER = 0.001  # seconds that a job has run
MAX_BATCH_BYTES = 16_000_000  # see _weight
MAX_UNSETTLED_BYTES = 64_000_000
LAST_TRIES = 5
LAST_TRIES_EVERY = 0.3  # seconds

Claim = tuple[int, int]
"""(id, token)"""


class Settled(NamedTuple):
    stale: frozenset[int]
    locked: frozenset[int]  # left out: somebody else has their rows
    at: float  # before the commit, which may take much longer


class Committer:
    """Two batches are under way at most; what ends meanwhile is the next one, so the busier, the larger."""

    def __init__(
        self, writer: Writer, leases: Leases, settings: Settings, bus: Bus, *, random: Random, now: Callable[[], float],
        ready: Callable[[str], int], running: Callable[[float], list[Lease]], relieved: Callable[[], None],
    ) -> None:  # fmt: skip
        self._writer = writer
        self._leases = leases
        self._bus = bus
        self._random = random
        self._now = now
        self._ready = ready
        self._running = running
        self._relieved = relieved
        self._weight = 0  # of all that is not settled yet
        self.batches_settled = 0
        self._waiting: list[Outcome] = []
        self._under_way = 0
        self._kept: dict[Claim, Outcome] = {}  # what the store refuses
        self._locked: dict[Claim, Outcome] = {}  # others have the rows; also while it is tried again
        self._reported_locked: set[Claim] = set()
        self._trying_locked: asyncio.Future[Settled] | None = None
        self._budgets: dict[str, RetryBudget] = {}
        self._ended = asyncio.Event()
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        self._settings = settings
        self._budgets = {}

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._under_way

    @property
    def overfull(self) -> bool:
        """Results come faster than the store takes them: what more is run has to wait, or they would heap up here."""
        return self._weight >= MAX_UNSETTLED_BYTES

    @property
    def unsettled(self) -> int:
        """How many outcomes are kept that the store has not taken, though it was there."""
        return sum(self._leases.holds(it.lease) for it in (*self._kept.values(), *self._locked.values()))

    async def finish(self, tries: int = LAST_TRIES) -> None:
        """Until nothing waits to be settled. What is locked is tried a few times more, and then left to whoever recovers it."""
        while not self.idle or (self._locked and tries):
            if self.idle:
                tries -= 1
                await asyncio.sleep(LAST_TRIES_EVERY)
                self.retry_locked()
            else:
                self._ended.clear()
                await self._ended.wait()

    def add(self, outcomes: Sequence[Outcome]) -> None:
        decided = [o if o[7] is not None else self.decide(o) for o in outcomes]
        self._waiting += decided
        self._weight += _weight(decided)
        if self._under_way < AT_ONCE:
            self._settle_next()

    def decide(self, outcome: Outcome) -> Outcome:
        queue = outcome.lease.queue
        retry = self._settings.retry_for(queue)
        return decide(
            outcome,
            self._random,
            dead_letters=self._settings.dlq.active,
            ready=self._ready(queue) if retry.adaptive else 0,
            within_budget=self._budget(queue) if retry.budget else None,
        )

    def _budget(self, queue: str) -> Callable[[], bool]:
        budget = self._budgets.get(queue)
        if budget is None:
            limits = self._settings.retry_for(queue).budget
            assert limits is not None
            budget = self._budgets[queue] = RetryBudget(limits.limit, limits.per)
        return lambda: budget.spend(self._now())

    def _settle_next(self) -> None:
        count = BATCH if self._weight <= MAX_BATCH_BYTES else _as_fit(self._waiting)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if batch:
            self._settle(batch)
        elif not self._under_way:
            self._ended.set()

    def _settle(self, batch: list[Outcome]) -> asyncio.Future[Settled]:
        """Start marks of what runs meanwhile go along in the same commit; not of what will have ended before it."""
        self._under_way += 1
        running, ttl = self._running(MARK_AFTER), self._settings.lease.ttl

        def settle(store: Store) -> Settled:
            stale, locked = _settle_free(store, batch)
            at = self._now()
            if running:
                store.extend((), ttl, running)
            return Settled(frozenset(stale), locked, at)

        future = self._writer.submit(settle)
        future.add_done_callback(lambda future: self._settled(batch, future))
        return future

    def _settled(self, batch: list[Outcome], future: asyncio.Future[Settled]) -> None:
        self._under_way -= 1
        was_overfull = self.overfull
        self._weight -= _weight(batch)
        error = future.exception()
        if error is None:
            stale, locked, at = future.result()
            if locked:
                self._keep_locked([outcome for outcome in batch if outcome.lease.id in locked])
                batch = [outcome for outcome in batch if outcome.lease.id not in locked]
            self._taken(batch, stale, at)
        elif not isinstance(error, Abandoned):
            self._forget_locked([outcome.lease for outcome in batch])
            self._refused(batch, error)
        self.batches_settled += bool(batch)
        if self._under_way < AT_ONCE:
            self._settle_next()
        if was_overfull and not self.overfull:
            self._relieved()

    def _taken(self, batch: list[Outcome], stale: frozenset[int], at: float) -> None:
        if self._locked:
            self._forget_locked([outcome.lease for outcome in batch])
        if stale:
            self._report_stale([o.lease for o in batch if o.lease.id in stale])
            batch = [o for o in batch if o.lease.id not in stale]
        self._leases.drop([outcome[0] for outcome in batch])
        if batch:
            self._bus.emit(JobsSettled(batch, self._now() - at))

    def _report_stale(self, leases: Sequence[Lease]) -> None:
        """Once: an extend or a check may have found it out before."""
        news = self._leases.of_ours(leases)
        self._leases.drop(news)
        if news:
            self._bus.emit(JobsStale(news, "settle"))

    def _refused(self, batch: list[Outcome], error: BaseException) -> None:
        """The store would not take the batch: halve it until the bad row stands alone; that job fails, if need be without
        a record of why, and the rest go on."""
        if len(batch) > 1:
            middle = len(batch) // 2
            self._settle_again(batch[:middle])
            self._settle_again(batch[middle:])
            return
        (outcome,) = batch
        if outcome.failure is None and outcome.state is JobState.FAILED:
            self._keep(outcome, error)
        elif outcome.failure is not None and outcome.failure.cause is Cause.REFUSED:
            self._settle_again([outcome._replace(failure=None)])
        else:
            self._settle_again([self.decide(refused(outcome, error))])

    def _keep(self, outcome: Outcome, error: BaseException) -> None:
        """Not even that can be stored: tried again now and then, for somebody may mend what stands in its way."""
        claim = outcome.lease[:2]
        if claim not in self._kept:
            self._bus.emit(JobsStale([outcome.lease], f"settle refused by the store: {error}"))
        self._kept[claim] = outcome

    def retry_refused(self) -> None:
        self._kept = {claim: outcome for claim, outcome in self._kept.items() if self._leases.holds(outcome.lease)}
        for outcome in self._kept.values():
            self._settle_again([outcome])

    def _keep_locked(self, outcomes: Sequence[Outcome]) -> None:
        """Told once, when it is met again: most locks are gone in a moment."""
        news = []
        for outcome in outcomes:
            claim = outcome.lease[:2]
            if claim not in self._locked:
                self._weight += _weight((outcome,))
            elif claim not in self._reported_locked:
                self._reported_locked.add(claim)
                news.append(outcome.lease)
            self._locked.pop(claim, None)
            self._locked[claim] = outcome  # behind the others
        if news:
            self._bus.emit(JobsLocked(news))

    def _forget_locked(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            claim = lease[:2]
            if (outcome := self._locked.pop(claim, None)) is not None:
                self._reported_locked.discard(claim)
                self._weight -= _weight((outcome,))

    def retry_locked(self) -> None:
        """As many as make a batch, unless that is under way. Those that are not ours any more have been told as stale."""
        if self._trying_locked is not None and not self._trying_locked.done():
            return
        was_overfull = self.overfull
        self._forget_locked([it.lease for it in self._locked.values() if not self._leases.holds(it.lease)])
        if was_overfull and not self.overfull:
            self._relieved()
        if outcomes := list(self._locked.values()):
            self._trying_locked = self._settle_again(outcomes[: _as_fit(outcomes)])

    def _settle_again(self, batch: list[Outcome]) -> asyncio.Future[Settled]:
        self._weight += _weight(batch)
        return self._settle(batch)


def _settle_free(store: Store, batch: Sequence[Outcome]) -> tuple[Collection[int], frozenset[int]]:
    """Those that are stale, and those that are left out since their rows are locked."""
    try:
        return store.settle(batch), frozenset()
    except RowsLocked as error:
        free = [outcome for outcome in batch if outcome.lease.id not in error.ids]
        return store.settle(free) if free else (), error.ids


def _weight(outcomes: Sequence[Outcome]) -> int:
    """Characters of results, or of what failures tell."""
    return sum([_length(outcome[2], outcome[4]) for outcome in outcomes if outcome[2] or outcome[4] is not None])


def _length(result: str | None, failure: Failure | None) -> int:
    if failure is None:
        return len(result or "")
    texts = (failure.message, failure.traceback, failure.stack, failure.stderr)
    return sum(len(text) for text in texts if text)


def _as_fit(outcomes: Sequence[Outcome]) -> int:
    """How many of the first make a batch."""
    weights = accumulate([_length(outcome[2], outcome[4]) for outcome in outcomes[:BATCH]])
    return bisect_right([*weights], MAX_BATCH_BYTES) + 1


def refused(outcome: Outcome, error: BaseException) -> Outcome:
    """The outcome in whose place the store refused another, with nothing of the job's own text in it."""
    failure = Failure(
        Cause.REFUSED,
        type="Refused",
        message=f"the store would not take the outcome ({outcome.kind.value}): {type(error).__name__}: {error}",
        attempt=outcome.lease.attempt,
    )
    if outcome.failure is not None:
        failure = replace(failure, host=outcome.failure.host, pid=outcome.failure.pid)
    return Outcome(outcome.lease, Kind.FAILED, took=outcome.took, failure=failure)


def release(leases: Sequence[Lease], delay: float = 0.0) -> list[Outcome]:
    """Give claimed jobs back unharmed: no retry is counted."""
    state = JobState.SCHEDULED if delay > 0 else JobState.READY
    return [Outcome(lease, Kind.RELEASED, delay=delay, state=state) for lease in leases]
