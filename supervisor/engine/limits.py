"""The limits and intervals of the engine."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """The amounts that the engine holds and handles at once, and the intervals at which it looks for changes without a
    notification. Bytes are characters of payloads, of results and of failure texts; intervals are seconds."""

    claimed_at_once: int = 1000
    """Other clients that write to the store wait meanwhile."""
    buffered_per_worker: int = 3000
    """Jobs; the quickest take about 100 ms for so many."""
    held_bytes: int = 64_000_000
    """The payloads that are held. From this size on, a job is claimed only for a worker that is idle."""
    settled_at_once: int = 2000
    settled_bytes_at_once: int = 16_000_000
    unsettled_bytes: int = 64_000_000
    unsettled_jobs: int = 4000
    """Results and failures that the store has not taken yet. From this size or number on, no job is started: the jobs would run
    again if the supervisor were killed, and a claim waits behind their outcomes."""
    checked_leases: int = 200
    """While more are held, a notification does not start a check. If more are lost, only those that ran are looked up."""
    exit_held: float = 1.0
    """The time for the store to answer whether a killed job was cancelled; then the exit of its worker is reported anyway."""
    expired_seen_at_once: int = 5000
    recovered_at_once: int = 500
    missing_handlers: int = 100_000
    """The number of jobs for which the engine remembers since when their handler has been missing."""
    poll: float = 5.0
    """The time between two looks for claimable jobs, since a notification may be lost."""
    scaling: float = 0.1
    """The time between two looks at the workers whose number is not fixed; their number grows at every other look."""
    watch: float = 1.0
    """The maximum of time between two looks at the state of the workers."""


DEFAULT_LIMITS = Limits()
