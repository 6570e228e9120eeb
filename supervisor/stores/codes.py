"""Codes of job states and of dead letters in the rows of stores: their meaning never changes."""

from __future__ import annotations

from supervisor.jobs import JobState

BLOCKED, SCHEDULED, READY, IN_FLIGHT, SUCCEEDED, FAILED, CANCELLED = range(-1, 6)
STATES = {
    BLOCKED: JobState.BLOCKED,
    SCHEDULED: JobState.SCHEDULED,
    READY: JobState.READY,
    IN_FLIGHT: JobState.IN_FLIGHT,
    SUCCEEDED: JobState.SUCCEEDED,
    FAILED: JobState.FAILED,
    CANCELLED: JobState.CANCELLED,
}
CODES = {state: code for code, state in STATES.items()}

WITHDRAWN, PENDING, DELIVERED = range(3)
DEAD_LETTERS = (None, "pending", "delivered")
DEAD_LETTER_CODES = {"pending": (PENDING,), "delivered": (DELIVERED,), "any": (PENDING, DELIVERED)}

LEFT = "left"
"""The state of an owner that has left while it held leases that are still to be recovered."""
