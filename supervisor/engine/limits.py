"""The sizes that bound the engine."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """How much the engine holds and handles at once. Bytes are characters of payloads, of results and of failure texts."""

    claimed_at_once: int = 1000
    """Other clients that write to the store wait meanwhile."""
    buffered_per_worker: int = 3000
    """Jobs; the quickest take about 100 ms for so many."""
    held_bytes: int = 64_000_000
    """Payloads. From there on a job is claimed only for a worker that is idle."""
    settled_at_once: int = 2000
    settled_bytes_at_once: int = 16_000_000
    unsettled_bytes: int = 64_000_000
    """Results and failures that the store has not taken yet. From there on no job is started."""
    checked_leases: int = 200
    """While more are held, a notification does not start a check; of more that are lost, only those that ran are looked up."""
    expired_seen_at_once: int = 5000
    recovered_at_once: int = 500
    missing_handlers: int = 100_000
    """Jobs for which it is remembered since when their handler has been missing."""


DEFAULT_LIMITS = Limits()
