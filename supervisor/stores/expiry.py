"""The expiry of jobs: one that has not been claimed by its time is cancelled at the next look, with the cause `expired`.

The first look after that time forgets the expiry of a job, whatever its state is then: so no look reads it again, and a job that was
claimed in time, or has run once, does not expire any more. A job is never claimed after a look that found it too late.
"""

from __future__ import annotations

from typing import Any

from supervisor.jobs import Cause, Failure
from supervisor.text.units import iso

MIN_WAIT = 1_000_000
"""Microseconds until the next look that is made only for an expiry: most jobs have run by then, and need none of their own."""


def next_look(due: int | None, expires: int | None) -> int | None:
    """Return when to look again, in microseconds from now: when the next job is due, or when the next one expires."""
    if expires is None:
        return due
    later = max(expires, MIN_WAIT)
    return later if due is None else min(due, later)


def expired_record(expires_at: int, now: int) -> dict[str, Any]:
    """Return the failure as stores keep it among the attempts of the job."""
    message = f"it had not started by {iso(expires_at)}"
    return Failure(Cause.EXPIRED, message=message, attempt=1, at=now).record()
