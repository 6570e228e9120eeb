"""What a row may hold that somebody puts in with plain SQL: past this a claim can't read it, or the sums of a store overflow."""

from __future__ import annotations

from supervisor.text.units import MAX_SECONDS

CENTURY = int(MAX_SECONDS)
"""Seconds, of a timeout or in a backoff."""
MAX_FACTOR = 1000
"""Of a backoff."""
FURTHEST = 2**60
"""Microseconds from the epoch, either way: 36,500 years."""
MAX_TOKEN = 2**62
MAX_EXPIRED_COUNT = 2**30
"""Claims and recoveries count up from there, so these are asked of a row that comes, not of one that is there."""
