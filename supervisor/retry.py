"""The one path that decides whether and when a failed attempt is retried: pure, so time and randomness are arguments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from math import inf

from supervisor.jobs import Backoff, Cause, Failure, JobState, Kind, Lease, Outcome
from supervisor.text.units import counted, iso

SUSPECT, SOLE_SUSPECT = 2, 4
"""From the first `expired_count` on, a job is a suspect: it may have ended its supervisor. From the second on, it is tried alone, and
is blamed if it is lost then. See `engine.suspects`."""

MIN_RELEASE_SECONDS = 1.0
"""The least number of seconds until a job that can't be run here is ready again."""

RESET, KEEP, ADD = range(3)
"""The changes of a job's expired_count: set it to 0, keep it, or add 2 if the job has a start mark, else 1; but a suspect without a
start mark did not run, so its count is kept."""

FINAL_CAUSES = frozenset({Cause.REJECTED, Cause.REFUSED, Cause.UNKNOWN_HANDLER})

Random = Callable[[], float]
"""A source of floats, uniform in [0, 1), such as `random.random`."""


def ceiling(backoff: Backoff, retry: int, ready: int = 0) -> float:
    """Return the delay before retry number `retry` (from 1) without jitter, in seconds: base × factor^(retry - 1), at most max.

    `ready` is the number of ready jobs in the queue if `retry.adaptive` is on, else 0: the delay is multiplied by
    1 + ready / 10, and is still at most max. The result never overflows, however large `retry` is.
    """
    try:
        raw = backoff.base * backoff.factor ** (retry - 1) * (1 + ready / 10)
    except OverflowError:
        return backoff.max
    return min(raw, backoff.max)


def jittered(backoff: Backoff, delay: float, random: Random) -> float:
    """Return `delay` with the jitter of `backoff`, in seconds.

    `full` gives uniform(0, delay), after AWS's "Exponential Backoff And Jitter"; `none` gives delay; a number of seconds gives
    delay + uniform(0, number).
    """
    if backoff.jitter == "full":
        return delay * random()
    if backoff.jitter == "none":
        return delay
    return delay + float(backoff.jitter) * random()


class GrowingDelay:
    """The delays of something that fails repeatedly: `first` seconds, then twice as long each time, at most `maximum` seconds."""

    def __init__(self, first: float, maximum: float) -> None:
        self._curve = Backoff(first, 2.0, maximum, "none")
        self._failures = 0

    @property
    def failing(self) -> bool:
        return self._failures > 0

    def next(self) -> float:
        """Return the seconds to wait after one more failure."""
        self._failures += 1
        return ceiling(self._curve, self._failures)

    def reset(self) -> None:
        """Forget the failures: the next one is the first."""
        self._failures = 0


class RetryBudget:
    """A limit (`retry.budget`) on the retries that keep their own delay: at most `limit` in any `per` seconds."""

    def __init__(self, limit: int, per: float) -> None:
        self.limit = limit
        self.per = per
        self._spent: deque[tuple[float, Hashable]] = deque()

    def spend(self, now: float, claim: Hashable = None) -> bool:
        """Count one retry at `now` (monotonic seconds), of the job under this claim. Return False if the budget is used up."""
        if self.spent(now) >= self.limit:
            return False
        self._spent.append((now, claim))
        return True

    def spent(self, now: float) -> int:
        """Return how many retries were counted in the last `per` seconds."""
        while self._spent and self._spent[0][0] <= now - self.per:
            self._spent.popleft()
        return len(self._spent)

    def refund(self, claims: Collection[Hashable]) -> None:
        """Count no retry for these claims: their outcomes were not accepted."""
        self._spent = deque(spent for spent in self._spent if spent[1] not in claims)


def decide(
    outcome: Outcome,
    random: Random,
    *,
    dead_letters: bool,
    ready: int = 0,
    within_budget: Callable[[], bool] | None = None,
) -> Outcome:
    """Return the outcome with its `state`, `delay`, `counted` and `dead_letter` filled in, whatever its cause and origin.

    `dead_letters` is whether a job that fails for good becomes a dead letter. `within_budget` is called only if a retry
    follows; if it returns False, the delay is the backoff's max or more. An outcome that is decided is returned unchanged.
    """
    if outcome.state is not None:
        return outcome
    if outcome.kind is Kind.SUCCEEDED:
        return outcome._replace(state=JobState.SUCCEEDED)
    if outcome.kind is Kind.RELEASED:
        return outcome._replace(state=JobState.SCHEDULED if outcome.delay > 0 else JobState.READY)
    if outcome.kind is Kind.SNOOZED:
        return outcome._replace(state=JobState.SCHEDULED, delay=outcome.retry_after or 0.0)
    lease, failure = outcome.lease, outcome.failure
    final = not outcome.retryable or (failure is not None and failure.cause in FINAL_CAUSES)
    if final or lease.retries >= lease.policy.max_retries:
        return outcome._replace(state=JobState.FAILED, dead_letter=dead_letters)
    delay = _delay(outcome, random, ready, within_budget)
    return outcome._replace(state=JobState.SCHEDULED, delay=delay, counted=True)


def _delay(outcome: Outcome, random: Random, ready: int, within_budget: Callable[[], bool] | None) -> float:
    backoff = outcome.lease.policy.backoff
    if within_budget is not None and not within_budget():
        return max(backoff.max, outcome.retry_after or 0.0)
    if outcome.retry_after is not None:
        return outcome.retry_after
    return jittered(backoff, ceiling(backoff, outcome.lease.retries + 1, ready), random)


def limited_snooze(outcome: Outcome, snoozes: int, now: float) -> Outcome:
    """Return the outcome of a snooze, or, if that is past its limit, the failed attempt in its place, which is still to be
    decided. The job has snoozed `snoozes` times before; `now` is seconds by the store's clock."""
    if outcome.snooze is None:
        return outcome
    most, until, failure = outcome.snooze
    if most is not None and snoozes >= most:
        why = f"it has snoozed {counted(snoozes, 'time')}, the most that max_snoozes={most} allows"
    elif until is not None and (now + (outcome.retry_after or 0.0)) * 1e6 > until:
        why = f"the snooze {failure.message} would end after until={iso(until)}"
    else:
        return outcome
    return Outcome(outcome.lease, Kind.FAILED, took=outcome.took, failure=replace(failure, message=why))


def refused_outcome(outcome: Outcome, error: BaseException) -> Outcome:
    """Return the outcome to settle in place of one that the store refused. It has no text of the job."""
    failure = Failure(
        Cause.REFUSED,
        type="Refused",
        message=f"the store refused the outcome ({outcome.kind.value}): {type(error).__name__}: {error}",
        attempt=outcome.lease.attempt,
    )
    if outcome.failure is not None:
        failure = replace(failure, host=outcome.failure.host, pid=outcome.failure.pid)
    return Outcome(outcome.lease, Kind.FAILED, took=outcome.took, failure=failure)


def expired_lease_outcome(lease: Lease, *, alone: bool, deadline: int, message: str) -> Outcome:
    """Return the outcome of a lease that expired: a failed attempt if the job was a sole suspect, and `alone` in its supervisor, else
    a release, which counts no retry."""
    if alone and lease.expired_count >= SOLE_SUSPECT:
        failure = Failure(Cause.LEASE_EXPIRED, type="LeaseExpired", message=message, attempt=lease.attempt)
        return Outcome(lease, Kind.FAILED, failure=failure, seen=deadline)
    return Outcome(lease, Kind.RELEASED, seen=deadline)


def expired_count_change(outcome: Outcome) -> int:
    """Return RESET if the outcome shows that the job can be run, ADD if it is released, which counts no retry, after its lease
    expired (`seen`), else KEEP."""
    if outcome.kind is Kind.RELEASED:
        return KEEP if outcome.seen is None else ADD
    expired = outcome.failure is not None and outcome.failure.cause is Cause.LEASE_EXPIRED
    return KEEP if expired else RESET


def unknown_handler(lease: Lease, *, unknown_for: float, grace: float) -> Outcome:
    """Return the outcome of a job whose handler no plugin serves here: a release for later, so that a bad deploy does not empty
    the queue, or a final failure once the handler has been missing for `grace` seconds (`unknown_for`: until now)."""
    if unknown_for < grace:
        return release_for_later(lease, at_most=grace - unknown_for)
    message = f"no plugin serves handler {lease.handler!r}; expected one within {grace:g}s"
    failure = Failure(Cause.UNKNOWN_HANDLER, type="UnknownHandler", message=message, attempt=lease.attempt)
    return Outcome(lease, Kind.FAILED, failure=failure)


def release_for_later(lease: Lease, at_most: float = inf) -> Outcome:
    """Return the release of a job that can't be run here now: it is ready again after the max of its backoff, or `at_most`."""
    return Outcome(lease, Kind.RELEASED, delay=max(MIN_RELEASE_SECONDS, min(lease.policy.backoff.max, at_most)))
