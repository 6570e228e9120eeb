"""The ready job that has waited longest, by queue and tier: limits that all stores share."""

from __future__ import annotations

from typing import NamedTuple

MAX_PRIORITIES = 20
"""Of a queue and tier, the lowest, since these wait longest."""
FIRST_JOBS = 10
"""Jobs of each priority, in the order of claims. The first is not always the oldest: it may have been enqueued with a delay."""


class OldestReady(NamedTuple):
    queue: str
    tier: int
    seconds: float
    """Since the job was due, by the store's clock."""
