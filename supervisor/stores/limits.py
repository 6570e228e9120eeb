"""Limits of a row that is put in with plain SQL: past these a claim can't read it, or the sums of a store overflow."""

from __future__ import annotations

from supervisor.text.units import MAX_SECONDS

MAX_OPTION_SECONDS = int(MAX_SECONDS)
"""A timeout, or a delay of a backoff."""
MAX_FACTOR = 1000
"""The factor of a backoff."""
MAX_TIME = 2**60
"""Microseconds from the epoch, either way: 36,500 years."""
MAX_TOKEN = 2**62
MAX_EXPIRED_COUNT = 2**30
MAX_DEAD_LETTER_TOKEN = MAX_TOKEN + MAX_TOKEN // 2
MAX_TRIES = 2**30
"""Claims and recoveries count up from there, so these limits are checked when a row is put in, and not later."""
