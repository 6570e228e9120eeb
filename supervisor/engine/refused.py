"""The outcome of a job whose own outcome the store refuses."""

from __future__ import annotations

from dataclasses import replace

from supervisor.jobs import Cause, Failure, Kind, Outcome


def refused(outcome: Outcome, error: BaseException) -> Outcome:
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
