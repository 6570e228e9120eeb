"""Limits of a row that is inserted by plain SQL: above them a claim can't read the row, or sums in the store overflow."""

from __future__ import annotations

from supervisor.text.units import MAX_SECONDS

MAX_OPTION_SECONDS = int(MAX_SECONDS)
"""The maximum of a timeout, or of a delay of a backoff."""
MAX_FACTOR = 1000
"""The maximum of the factor of a backoff."""
MAX_TIME = 2**60
"""Microseconds from the epoch, either way: 36,500 years."""
LAST_TIME = 2**63 - 1
"""In microseconds, behind every time that a store can keep."""
LAST_ID = 2**63 - 1
MAX_TOKEN = 2**62
MAX_EXPIRED_COUNT = 2**30
MAX_DEAD_LETTER_TOKEN = MAX_TOKEN + MAX_TOKEN // 2
MAX_TRIES = 2**30
"""Claims and recoveries count up from the inserted value, so these limits are checked for inserts only."""
