"""Whether, and when, a failed attempt runs again: pure. Now, the attempt and randomness are arguments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from supervisor.jobs import Backoff, Cause, Failure, JobState, Kind, Lease, Outcome

FREE_EXPIRIES = 2
"""Leases in a row that may end without an outcome and without a start mark before one counts as a retry."""

UNKNOWN_FOR = 1.0
"""Seconds, at least, until a job is looked at again whose handler is not served here."""

RESET, KEEP, ADD = range(3)
"""The change of a job's expired_count: to 0, none, or one more."""

FINAL_CAUSES = frozenset({Cause.REJECTED, Cause.REFUSED, Cause.UNKNOWN_HANDLER})

Random = Callable[[], float]
"""Uniform in [0, 1), as `random.random`."""


def ceiling(backoff: Backoff, retry: int, ready: int = 0) -> float:
    """The delay before retry number `retry` (from 1) without jitter, in seconds: base × factor^(retry - 1), at most max.

    `ready` is the number of ready jobs in the queue where `retry.adaptive` is on: the curve is stretched by
    1 + ready / 10 below the same cap. Saturates for any retry number.
    """
    try:
        raw = backoff.base * backoff.factor ** (retry - 1) * (1 + ready / 10)
    except OverflowError:
        return backoff.max
    return min(raw, backoff.max)


def jittered(backoff: Backoff, delay: float, random: Random) -> float:
    """`full`: uniform(0, delay), after AWS's "Exponential Backoff And Jitter"; `none`: delay; a width: delay + uniform(0, it)."""
    if backoff.jitter == "full":
        return delay * random()
    if backoff.jitter == "none":
        return delay
    return delay + float(backoff.jitter) * random()


class GrowingDelay:
    """Delays of one thing that fails again and again: the first, then twice as long each time, at most `maximum` seconds."""

    def __init__(self, first: float, maximum: float) -> None:
        self._curve = Backoff(first, 2.0, maximum, "none")
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        self._failures += 1
        return ceiling(self._curve, self._failures)

    def reset(self) -> None:
        """It succeeded: the next failure is the first."""
        self._failures = 0


class RetryBudget:
    """At most `limit` retries in any `per` seconds go at their own delay; see `retry.budget`."""

    def __init__(self, limit: int, per: float) -> None:
        self.limit = limit
        self.per = per
        self._spent: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Count one retry at `now` (monotonic seconds); False if the window is already full."""
        while self._spent and self._spent[0] <= now - self.per:
            self._spent.popleft()
        if len(self._spent) >= self.limit:
            return False
        self._spent.append(now)
        return True


def decide(
    outcome: Outcome,
    random: Random,
    *,
    dead_letters: bool,
    ready: int = 0,
    within_budget: Callable[[], bool] | None = None,
) -> Outcome:
    """The outcome with what the store is to make of it. Every cause, from every source, goes through here.

    `letters` says whether dead-letter sinks are configured; `within_budget` is asked only when a retry follows. A
    success or an already decided outcome passes through untouched.
    """
    if outcome.state is not None:
        return outcome
    if outcome.kind is Kind.SUCCEEDED:
        return outcome._replace(state=JobState.SUCCEEDED)
    if outcome.kind is Kind.RELEASED:
        return outcome._replace(state=JobState.SCHEDULED if outcome.delay > 0 else JobState.READY)
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


def expired_lease_outcome(lease: Lease, *, started: bool, expired_count: int, deadline: int, message: str) -> Outcome:
    """The outcome of a lease that ended without one: a failed attempt if the job was marked as started, or if it is the third
    lease in a row to end so; else a release that counts nothing."""
    if started or expired_count >= FREE_EXPIRIES:
        failure = Failure(Cause.LEASE_EXPIRED, type="LeaseExpired", message=message, attempt=lease.attempt)
        return Outcome(lease, Kind.FAILED, failure=failure, seen=deadline)
    return Outcome(lease, Kind.RELEASED, seen=deadline)


def expired_count_change(outcome: Outcome) -> int:
    """RESET once an outcome shows that the job can be run. A release of a job that was not started shows nothing: KEEP; if its
    lease expired (`seen`), that is one more in the row: ADD."""
    if outcome.kind is Kind.RELEASED and outcome.took is None:
        return KEEP if outcome.seen is None else ADD
    expired = outcome.failure is not None and outcome.failure.cause is Cause.LEASE_EXPIRED
    return KEEP if expired else RESET


def unknown_handler(lease: Lease, *, unknown_for: float, grace: float) -> Outcome:
    """A job whose handler is not served here: released and looked at again after the cap of its backoff, so that a bad deploy
    empties no queue; a dead letter once it has missed its handler for `grace` seconds."""
    if unknown_for < grace:
        return put_off(lease)
    message = f"no plugin serves handler {lease.handler!r}; expected one within {grace:g}s"
    failure = Failure(Cause.UNKNOWN_HANDLER, type="UnknownHandler", message=message, attempt=lease.attempt)
    return Outcome(lease, Kind.FAILED, failure=failure)


def put_off(lease: Lease) -> Outcome:
    """A job that can't be run here now: released, and looked at again after the cap of its backoff."""
    return Outcome(lease, Kind.RELEASED, delay=max(UNKNOWN_FOR, lease.policy.backoff.max))
