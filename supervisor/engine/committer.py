"""Settle outcomes: each goes through the one retry path and then into the store. None is dropped while the store is
unavailable."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from supervisor.config.retries import BudgetSettings
from supervisor.engine.current_config import CurrentConfig, freed_queues
from supervisor.engine.fairness import JobBuffers
from supervisor.engine.leases import LeaseKey, Leases
from supervisor.engine.limits import Limits
from supervisor.engine.snoozes import past_limit
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.engine.unknown_handlers import HEAD_START, UnknownHandlers
from supervisor.errors import RowsLocked
from supervisor.events import Bus, JobsLocked, JobsReleased, JobsSettled, JobsStale
from supervisor.jobs import (
    OUTCOME_FAILURE,
    OUTCOME_KIND,
    OUTCOME_LEASE,
    OUTCOME_RESULT,
    OUTCOME_STATE,
    Cause,
    Failure,
    JobState,
    Kind,
    Lease,
    Outcome,
)
from supervisor.retry import Random, RetryBudget, decide, refused_outcome
from supervisor.stores.protocol import Store

BATCHES_AT_ONCE = 2  # while one is written, the next is with the writer already
MARK_AFTER = 0.001  # seconds that a job must have run to be marked as started along with a settle
MAX_BUDGETS = 1000  # queues, which may come and go
TRIES_AT_THE_END, SECONDS_BETWEEN_TRIES = 5, 0.3  # of outcomes whose rows are still locked then


class Summary(NamedTuple):
    """The meaning of accepted outcomes for the rest of the engine: whether there are new dead letters, the queues with jobs that are
    ready for any supervisor, and the seconds until the first job is due (None if none is scheduled)."""

    dead_letters: bool = False
    ready: frozenset[str] = frozenset()
    due_in: float | None = None


@dataclass(eq=False)
class RetryDecider:
    """Applies the settings to `retry.decide`."""

    _config: CurrentConfig
    _buffers: JobBuffers
    _random: Random
    _now: Callable[[], float]
    _budgets: dict[str, RetryBudget] = field(default_factory=dict)

    def decide(self, outcome: Outcome) -> Outcome:
        settings, lease = self._config.settings, outcome.lease
        queue, retry = lease.queue, settings.retry_for(lease.queue)
        return decide(
            outcome,
            self._random,
            dead_letters=settings.dlq.enabled,
            ready=self._buffers.left_in_store.ready(queue) if retry.adaptive else 0,
            within_budget=partial(self._spend, retry.budget, lease) if retry.budget else None,
        )

    def refund(self, leases: Sequence[Lease]) -> None:
        """Count no retries of these jobs: their outcomes were not accepted."""
        claims = {lease[:2] for lease in leases}
        for queue in {lease.queue for lease in leases} & self._budgets.keys():
            self._budgets[queue].refund(claims)

    def freed(self, outcomes: Sequence[Outcome]) -> frozenset[str]:
        """Return the queues in which jobs that a limit holds back may go on after these outcomes."""
        limits = self._config.job_limits
        return frozenset() if limits is None else freed_queues(limits, outcomes)

    def spent_budgets(self) -> list[str]:
        """Return the queues whose retries wait for the max of their backoff now."""
        now = self._now()
        return sorted(queue for queue, budget in self._budgets.items() if budget.spent(now) >= budget.limit)

    def _spend(self, settings: BudgetSettings, lease: Lease) -> bool:
        """Count a retry of the job. Return False if the budget of its queue is used up."""
        now, budget = self._now(), self._budgets.get(lease.queue)
        if budget is None:
            if len(self._budgets) >= MAX_BUDGETS:
                self._budgets = {queue: it for queue, it in self._budgets.items() if it.spent(now)}
            if len(self._budgets) >= MAX_BUDGETS:
                self._budgets.clear()
            budget = self._budgets[lease.queue] = RetryBudget(settings.limit, settings.per)
        budget.limit, budget.per = settings.limit, settings.per  # they may have been reloaded
        return budget.spend(now, lease[:2])


class _Settled(NamedTuple):
    stale: frozenset[int]
    locked: frozenset[int]  # left out, since other clients of the database have locked their rows
    past_limit: Mapping[int, Outcome]  # the failures in place of snoozes that were left out
    at: float  # before the commit, which may take much longer
    ready: frozenset[str]  # the queues of jobs that waited for these


class Committer:
    """Writes at most two batches at a time. The outcomes that arrive meanwhile make the next one, so batches grow with the load.

    `on_settled` is called when the store has accepted outcomes, and `on_relieved` when the committer is no longer overfull.
    """

    def __init__(
        self, writer: Writer, leases: Leases, decider: RetryDecider, unknown_handlers: UnknownHandlers, bus: Bus, *,
        now: Callable[[], float], limits: Limits, on_settled: Callable[[Summary], None],
        on_relieved: Callable[[], None],
    ) -> None:  # fmt: skip
        self.batches_settled = 0
        self._writer = writer
        self._leases = leases
        self._decider = decider
        self._unknown_handlers = unknown_handlers
        self._bus = bus
        self._now = now
        self._limits = limits
        self._on_settled = on_settled
        self._on_relieved = on_relieved
        self._waiting: list[Outcome] = []
        self._under_way = 0  # batches
        self._count = self._bytes = 0  # of all outcomes that are not settled yet
        self._refused: dict[LeaseKey, Outcome] = {}  # kept, since the store takes them in no form
        self._locked: dict[LeaseKey, Outcome] = {}  # kept, also while they are tried again
        self._reported_locked: set[LeaseKey] = set()
        self._trying_locked: asyncio.Future[_Settled] | None = None
        self._idle_again = asyncio.Event()

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._under_way

    @property
    def overfull(self) -> bool:
        """Whether results come faster than the store takes them. As long as this is so, no job is started."""
        return self._count >= self._limits.unsettled_jobs or self._bytes >= self._limits.unsettled_bytes

    @property
    def unsettled(self) -> int:
        """The number of outcomes that the store has not taken although it was available."""
        return sum(self._leases.holds(it.lease) for it in (*self._refused.values(), *self._locked.values()))

    async def finish(self, tries: int = TRIES_AT_THE_END) -> None:
        """Settle everything. Locked outcomes are tried `tries` times; then their jobs are left to recovery."""
        while not self.idle or (self._locked and tries):
            if self.idle:
                tries -= 1
                await asyncio.sleep(SECONDS_BETWEEN_TRIES)
                self.retry_locked()
            else:
                self._idle_again.clear()
                await self._idle_again.wait()

    # outcomes come in

    def jobs_ended(self, outcomes: Sequence[Outcome]) -> None:
        """Take the outcomes that the pool reports. Those of leases that are not held any more are dropped."""
        held = self._leases.outcomes_of_held(outcomes)
        unknown = [
            outcome for outcome in held if outcome[OUTCOME_FAILURE] is not None and _has_unknown_handler(outcome)
        ]
        if unknown:
            self.add(self._unknown_handlers.instead_of(unknown))
            held = [outcome for outcome in held if not _has_unknown_handler(outcome)]
        self.add(held)

    def release(self, leases: Iterable[Lease], reason: str) -> None:
        held = self._leases.held_of(leases)
        if held:
            self._bus.emit(JobsReleased(held, reason))
            self.add([Outcome(lease, Kind.RELEASED, state=JobState.READY) for lease in held])

    def add(self, outcomes: Sequence[Outcome]) -> None:
        decide = self._decider.decide
        decided = [outcome if outcome[OUTCOME_STATE] is not None else decide(outcome) for outcome in outcomes]
        self._waiting += decided
        self._count += len(decided)
        self._bytes += _bytes(decided)
        if self._under_way < BATCHES_AT_ONCE:
            self._settle_next()

    # and go to the store in batches

    def _settle_next(self) -> None:
        limits = self._limits
        count = limits.settled_at_once if self._bytes <= limits.settled_bytes_at_once else self._fitting(self._waiting)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if batch:
            self._settle(batch)
        elif not self._under_way:
            self._idle_again.set()

    def _fitting(self, outcomes: Sequence[Outcome]) -> int:
        """Return how many of the first outcomes make a batch."""
        sizes = [_length(it.result, it.failure) for it in outcomes[: self._limits.settled_at_once]]
        return bisect_right([*accumulate(sizes)], self._limits.settled_bytes_at_once) + 1

    def _settle(self, batch: list[Outcome]) -> asyncio.Future[_Settled]:
        """Write the batch and, in the same commit, start marks of running jobs, except of very short ones, which end before it."""
        self._under_way += 1
        running, ttl = self._leases.to_mark(MARK_AFTER), self._leases.ttl
        snoozed = [outcome for outcome in batch if outcome[OUTCOME_KIND] is Kind.SNOOZED]

        def settle(store: Store) -> _Settled:
            failed = past_limit(store, snoozed) if snoozed else {}
            kept = [outcome for outcome in batch if outcome.lease.id not in failed] if failed else batch
            stale, locked = _settle_unlocked(store, kept)
            at = self._now()
            if running:
                store.extend((), ttl, running)
            return _Settled(frozenset(stale), locked, failed, at, store.newly_ready())

        if self._leases.reports.held and (reports := self._leases.reports.of(batch)):
            self._leases.write_reports(reports)
        future = self._writer.submit(settle, Purpose.SETTLE, lambda settled: len(settled.locked) < len(batch))
        future.add_done_callback(lambda future: self._settled(batch, future))
        return future

    def _settle_again(self, batch: list[Outcome]) -> asyncio.Future[_Settled]:
        self._count += len(batch)
        self._bytes += _bytes(batch)
        return self._settle(batch)

    def _settled(self, batch: list[Outcome], future: asyncio.Future[_Settled]) -> None:
        self._under_way -= 1
        was_overfull = self.overfull
        self._count -= len(batch)
        if self._bytes:  # else no outcome has any
            self._bytes -= _bytes(batch)
        error = future.exception()
        if error is None:
            stale, locked, failed, at, ready = future.result()
            if failed:
                batch = [outcome for outcome in batch if outcome.lease.id not in failed]
                self.add([*failed.values()])
            if locked:
                self._keep_locked([outcome for outcome in batch if outcome.lease.id in locked])
                batch = [outcome for outcome in batch if outcome.lease.id not in locked]
            self._accepted(batch, stale, at, ready)
        else:
            self._leases.marks_lost()
        if error is not None and not isinstance(error, NotDone):
            self._forget_locked([outcome.lease for outcome in batch])
            self._refuse(batch, error)
        self.batches_settled += bool(batch)
        if self._under_way < BATCHES_AT_ONCE:
            self._settle_next()
        if was_overfull and not self.overfull:
            self._on_relieved()

    def _accepted(self, batch: list[Outcome], stale: frozenset[int], at: float, ready: frozenset[str]) -> None:
        if self._locked:
            self._leases.reports.not_written(self._locked.keys() & {outcome.lease[:2] for outcome in batch})
            self._forget_locked([outcome.lease for outcome in batch])
        if self._leases.reports.held:
            self._leases.reports.ended([outcome.lease for outcome in batch])
        if stale:
            leases = [outcome.lease for outcome in batch if outcome.lease.id in stale]
            self._decider.refund(leases)
            self._report_stale(leases)
            batch = [outcome for outcome in batch if outcome.lease.id not in stale]
        self._leases.drop([outcome[OUTCOME_LEASE] for outcome in batch])
        if batch:
            age = self._now() - at
            self._bus.emit(JobsSettled(batch, age))
            self._on_settled(summary(batch, age, ready | self._decider.freed(batch)))

    def _report_stale(self, leases: Sequence[Lease]) -> None:
        """Report each lease once: an extend or a check may have found it stale before."""
        held = self._leases.held_of(leases)
        self._leases.drop(held)
        if held:
            self._bus.emit(JobsStale(held, "settle"))

    # outcomes that the store refuses

    def _refuse(self, batch: list[Outcome], error: BaseException) -> None:
        """Halve a batch that the store refused, until the bad row is alone. Its job fails, if need be without a record of the
        reason, and the other outcomes are settled. A released job does not fail: nothing has happened to it."""
        if len(batch) > 1:
            middle = len(batch) // 2
            self._settle_again(batch[:middle])
            self._settle_again(batch[middle:])
            return
        (outcome,) = batch
        if outcome.kind is Kind.RELEASED or (outcome.failure is None and outcome.state is JobState.FAILED):
            self._keep_refused(outcome, error)
        elif outcome.failure is not None and outcome.failure.cause is Cause.REFUSED:
            self._settle_again([outcome._replace(failure=None)])
        else:
            self._decider.refund([outcome.lease])
            self._settle_again([self._decider.decide(refused_outcome(outcome, error))])

    def _keep_refused(self, outcome: Outcome, error: BaseException) -> None:
        """Keep an outcome that the store refuses in every form, to try it again: somebody may remove the cause."""
        key = outcome.lease[:2]
        if key not in self._refused:
            self._bus.emit(JobsStale([outcome.lease], f"settle refused by the store: {error}"))
        self._refused[key] = outcome

    def retry_refused(self) -> None:
        self._refused = {key: outcome for key, outcome in self._refused.items() if self._leases.holds(outcome.lease)}
        for outcome in self._refused.values():
            self._settle_again([outcome])

    # outcomes of jobs whose rows other clients of the database have locked

    def _keep_locked(self, outcomes: Sequence[Outcome]) -> None:
        """Keep the outcomes. Report a lock once, and only if the row is still locked at the second try: most locks are short."""
        to_report = []
        for outcome in outcomes:
            key = outcome.lease[:2]
            if key not in self._locked:
                self._bytes += _bytes((outcome,))
            elif key not in self._reported_locked:
                self._reported_locked.add(key)
                to_report.append(outcome.lease)
            self._locked.pop(key, None)
            self._locked[key] = outcome  # behind the others
        if to_report:
            self._bus.emit(JobsLocked(to_report))

    def _forget_locked(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            key = lease[:2]
            if (outcome := self._locked.pop(key, None)) is not None:
                self._reported_locked.discard(key)
                self._bytes -= _bytes((outcome,))

    def retry_locked(self) -> None:
        """Try a batch of the locked outcomes, unless one is under way. Drop those of lost leases: they were reported as stale."""
        if self._trying_locked is not None and not self._trying_locked.done():
            return
        was_overfull = self.overfull
        self._forget_locked([it.lease for it in self._locked.values() if not self._leases.holds(it.lease)])
        if was_overfull and not self.overfull:
            self._on_relieved()
        if outcomes := list(self._locked.values()):
            self._trying_locked = self._settle_again(outcomes[: self._fitting(outcomes)])


def summary(outcomes: Sequence[Outcome], age: float = 0.0, unblocked: Collection[str] = ()) -> Summary:
    """Summarize outcomes that were accepted `age` seconds ago. Jobs in the queues `unblocked` have waited for these."""
    dead_letters, ready = False, {*unblocked}
    due_in: float | None = None
    succeeded = JobState.SUCCEEDED
    for outcome in [outcome for outcome in outcomes if outcome[OUTCOME_STATE] is not succeeded]:
        if outcome.dead_letter:
            dead_letters = True
        elif outcome.state is JobState.READY:
            ready.add(outcome.lease.queue)
        elif outcome.state is JobState.SCHEDULED:
            delay = outcome.delay
            if outcome.kind is Kind.RELEASED:  # its handler is unknown here: another supervisor may have it
                ready.add(outcome.lease.queue)
                delay += HEAD_START
            due_in = delay if due_in is None else min(due_in, delay)
    return Summary(dead_letters, frozenset(ready), None if due_in is None else due_in - age)


def _settle_unlocked(store: Store, batch: Sequence[Outcome]) -> tuple[Collection[int], frozenset[int]]:
    """Settle the outcomes whose rows are not locked. Return the ids of the stale ones, and of those left out."""
    try:
        return store.settle(batch), frozenset()
    except RowsLocked as error:
        free = [outcome for outcome in batch if outcome.lease.id not in error.ids]
        return store.settle(free) if free else (), error.ids


def _has_unknown_handler(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.cause is Cause.UNKNOWN_HANDLER


def _bytes(outcomes: Sequence[Outcome]) -> int:
    """Return the characters of their results and of the texts of their failures. Hot path."""
    return sum([
        _length(outcome[OUTCOME_RESULT], outcome[OUTCOME_FAILURE])
        for outcome in outcomes
        if outcome[OUTCOME_RESULT] or outcome[OUTCOME_FAILURE] is not None
    ])  # fmt: skip


def _length(result: str | None, failure: Failure | None) -> int:
    if failure is None:
        return len(result or "")
    return sum(len(text) for text in (failure.message, failure.traceback, failure.stack, failure.stderr) if text)
