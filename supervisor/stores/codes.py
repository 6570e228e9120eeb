"""Codes of job states and of dead letters in the rows of stores: their meaning never changes."""

from __future__ import annotations

from supervisor.jobs import JobState

SCHEDULED, READY, IN_FLIGHT, SUCCEEDED, FAILED, CANCELLED = range(6)
STATES = (
    JobState.SCHEDULED,
    JobState.READY,
    JobState.IN_FLIGHT,
    JobState.SUCCEEDED,
    JobState.FAILED,
    JobState.CANCELLED,
)
CODES = {state: code for code, state in enumerate(STATES)}

WITHDRAWN, PENDING, DELIVERED = range(3)
DEAD_LETTERS = (None, "pending", "delivered")
DEAD_LETTER_CODES = {"pending": (PENDING,), "delivered": (DELIVERED,), "any": (PENDING, DELIVERED)}

LEFT = "left"
"""The state of an owner that has left while it held leases that are still to be recovered."""
