"""The retry arithmetic, to the second."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.jobs import Backoff, Cause, Failure, JobState, Kind, Lease, Outcome, Policy, SnoozeLimit
from supervisor.retry import (
    KEEP,
    RESET,
    RetryBudget,
    ceiling,
    decide,
    expired_count_change,
    expired_lease_outcome,
    jittered,
    limited_snooze,
    unknown_handler,
)

BACKOFFS = st.builds(
    Backoff,
    base=st.floats(0.001, 100),
    factor=st.floats(1, 1000),
    max=st.floats(100, 10_000),
    jitter=st.sampled_from(["full", "none", 0.2]),
)


def lease(retries: int = 0, policy: Policy | None = None) -> Lease:
    return Lease(1, 1, "mail", "default", "null", None, retries, 0, int(retries > 0), 0, 0, policy or Policy())


def failed(cause: Cause = Cause.EXCEPTION, retries: int = 0, policy: Policy | None = None, **extra: object) -> Outcome:
    return Outcome(lease(retries, policy), Kind.FAILED, failure=Failure(cause), **extra)  # type: ignore[arg-type]


def half() -> float:
    return 0.5


def never() -> float:
    raise AssertionError("no randomness here")


def test_delays_of_base_one_and_factor_four_are_powers_of_four() -> None:
    backoff = Backoff(base=1, factor=4, max=1000, jitter="none")
    assert [jittered(backoff, ceiling(backoff, retry), never) for retry in (1, 2, 3, 4)] == [1, 4, 16, 64]


def test_default_delays_double_from_half_a_second_to_thirty() -> None:
    assert [ceiling(Backoff(), retry) for retry in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_delays_of_factor_one_are_constant() -> None:
    assert {ceiling(Backoff(base=3, factor=1), retry) for retry in range(1, 1000)} == {3}


@given(BACKOFFS, st.integers(1, 1_000_000))
def test_the_ceiling_grows_to_the_cap_and_never_overflows(backoff: Backoff, retry: int) -> None:
    here, further = ceiling(backoff, retry), ceiling(backoff, retry + 1)
    assert 0 < here <= further <= backoff.max
    assert math.isfinite(further)


@given(BACKOFFS, st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_jitter_stays_in_its_interval(backoff: Backoff, retry: int, random: float) -> None:
    top = ceiling(backoff, retry)
    delay = jittered(backoff, top, lambda: random)
    expected = {"full": top * random, "none": top, 0.2: top + 0.2 * random}[backoff.jitter]
    assert delay == expected


def test_an_adaptive_delay_grows_with_the_ready_jobs_up_to_the_same_cap() -> None:
    backoff = Backoff(base=1, factor=2, max=30)
    assert ceiling(backoff, 1, ready=10) == 2
    assert ceiling(backoff, 2, ready=50) == 12
    assert ceiling(backoff, 2, ready=1000) == 30


def test_a_failure_is_retried_after_its_delay() -> None:
    decided = decide(failed(), half, dead_letters=True)
    assert (decided.state, decided.delay, decided.counted, decided.dead_letter) == (
        JobState.SCHEDULED,
        0.25,
        True,
        False,
    )


def test_a_failure_is_retried_the_later_the_more_jobs_are_ready() -> None:
    delays = [decide(failed(retries=1), half, dead_letters=True, ready=ready).delay for ready in (0, 10, 10_000)]
    assert delays == [0.5, 1.0, 15.0]


@pytest.mark.parametrize(
    "cause", [Cause.EXCEPTION, Cause.TIMEOUT, Cause.CRASH, Cause.HEARTBEAT_LOST, Cause.LEASE_EXPIRED]
)
def test_every_cause_ends_after_max_retries(cause: Cause) -> None:
    assert decide(failed(cause, retries=2), half, dead_letters=True).state is JobState.SCHEDULED
    exhausted = decide(failed(cause, retries=3), half, dead_letters=True)
    assert (exhausted.state, exhausted.dead_letter, exhausted.counted) == (JobState.FAILED, True, False)


def test_a_job_without_retries_fails_at_its_first_attempt() -> None:
    assert decide(failed(policy=Policy(max_retries=0)), half, dead_letters=False).state is JobState.FAILED


@pytest.mark.parametrize("outcome", [failed(Cause.REJECTED), failed(Cause.REFUSED), failed(retryable=False)])
def test_an_outcome_that_no_retry_can_change_is_a_dead_letter_at_once(outcome: Outcome) -> None:
    decided = decide(outcome, never, dead_letters=True)
    assert (decided.state, decided.dead_letter) == (JobState.FAILED, True)


def test_without_dead_letters_a_failed_job_is_none() -> None:
    assert not decide(failed(Cause.REJECTED), never, dead_letters=False).dead_letter


def test_a_handler_may_name_its_own_delay() -> None:
    assert decide(failed(retry_after=90.0), never, dead_letters=True).delay == 90.0


def test_past_the_budget_the_delay_is_the_cap() -> None:
    assert decide(failed(), never, dead_letters=True, within_budget=lambda: False).delay == 30.0
    assert decide(failed(retry_after=90.0), never, dead_letters=True, within_budget=lambda: False).delay == 90.0


def test_the_budget_is_available_again_as_its_window_passes() -> None:
    budget = RetryBudget(limit=2, per=60)
    assert [budget.spend(now) for now in (0, 10, 20, 59.9, 60, 61, 70)] == [True, True, False, False, True, False, True]


def test_a_budget_does_not_count_a_retry_that_did_not_come_about() -> None:
    budget = RetryBudget(limit=2, per=60)
    assert [budget.spend(0, claim) for claim in "abc"] == [True, True, False]
    budget.refund("bc")
    assert [budget.spend(1, claim) for claim in "de"] == [True, False]


def test_a_decided_outcome_passes_through_untouched() -> None:
    decided = decide(failed(), half, dead_letters=True)
    assert decide(decided, never, dead_letters=False) is decided


def test_a_release_counts_nothing() -> None:
    now = decide(Outcome(lease(), Kind.RELEASED), never, dead_letters=True)
    later = decide(Outcome(lease(), Kind.RELEASED, delay=5), never, dead_letters=True)
    assert (now.state, now.counted) == (JobState.READY, False)
    assert (later.state, later.counted) == (JobState.SCHEDULED, False)


@given(st.integers(0, 10), st.booleans())
def test_an_expired_lease_is_a_failed_attempt_only_of_a_sole_suspect_that_was_alone(
    expired_count: int, alone: bool
) -> None:
    suspect = lease()._replace(expired_count=expired_count)
    outcome = expired_lease_outcome(suspect, alone=alone, deadline=7, message="gone")
    assert outcome.kind is (Kind.FAILED if alone and expired_count >= 4 else Kind.RELEASED)
    assert outcome.seen == 7


def test_a_release_does_not_clear_a_job_of_suspicion_even_if_it_ran() -> None:
    """Otherwise a job that ends its supervisor were never blamed where drains come in between."""
    assert expired_count_change(Outcome(lease(), Kind.RELEASED, took=3.0)) is KEEP
    assert expired_count_change(Outcome(lease(), Kind.SUCCEEDED, took=3.0)) is RESET


def test_a_job_with_an_unknown_handler_is_claimed_once_a_second_at_most() -> None:
    hasty = lease(policy=Policy(backoff=Backoff(base=0.001, max=0.001)))
    assert unknown_handler(hasty, unknown_for=0, grace=3600).delay == 1.0


def test_an_unknown_handler_is_released_until_its_grace_is_over() -> None:
    released = decide(unknown_handler(lease(), unknown_for=3000, grace=3600), never, dead_letters=True)
    assert (released.state, released.delay, released.counted) == (JobState.SCHEDULED, 30, False)
    assert unknown_handler(lease(), unknown_for=3590, grace=3600).delay == 10
    dead = decide(unknown_handler(lease(), unknown_for=3600, grace=3600), never, dead_letters=True)
    assert (dead.state, dead.dead_letter) == (JobState.FAILED, True)
    assert dead.failure is not None and dead.failure.cause is Cause.UNKNOWN_HANDLER


def snoozed(most: int | None = 2, until: float | None = None, retries: int = 0) -> Outcome:
    limit = SnoozeLimit(
        most, None if until is None else int(until * 1e6), Failure(Cause.EXCEPTION, "Snooze", "for 30s")
    )
    return Outcome(lease(retries), Kind.SNOOZED, took=0.5, retry_after=30.0, snooze=limit)


def test_a_snooze_is_scheduled_without_a_retry_even_if_none_is_left() -> None:
    decided = decide(snoozed(retries=3), never, dead_letters=True, within_budget=None)
    assert (decided.state, decided.delay, decided.counted, decided.dead_letter) == (
        JobState.SCHEDULED,
        30,
        False,
        False,
    )
    assert expired_count_change(decided) is RESET


def test_the_snooze_past_max_snoozes_is_a_failed_attempt() -> None:
    assert limited_snooze(snoozed(2), 1, 0.0) == snoozed(2)
    failed = limited_snooze(snoozed(2), 2, 0.0)
    assert failed.failure is not None
    assert failed.failure.message == "it has snoozed 2 times, the most that max_snoozes=2 allows"
    assert (failed.kind, failed.snooze, failed.took) == (Kind.FAILED, None, 0.5)
    decided = decide(failed, half, dead_letters=True)
    assert (decided.state, decided.counted) == (JobState.SCHEDULED, True)


def test_a_snooze_may_end_at_until_and_not_later() -> None:
    assert limited_snooze(snoozed(None, until=130.0), 10**6, 100.0).kind is Kind.SNOOZED
    failed = limited_snooze(snoozed(None, until=130.0), 0, 100.001)
    assert failed.failure is not None
    assert failed.failure.message == "the snooze for 30s would end after until=1970-01-01T00:02:10.000000Z"


def test_other_outcomes_have_no_such_limit() -> None:
    assert limited_snooze(failed(), 10**6, 1e12) == failed()
