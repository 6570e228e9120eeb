"""Limits of a PostgreSQL store that its tests set lower."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PostgresLimits:
    """`call_seconds`: the limit of one exchange with the server, even if the server or the network has failed.
    `connect_seconds`: the limit for each address to which a connection is tried.
    `lock_milliseconds`, `statement_milliseconds`: limits that the server enforces, below `call_seconds`, so that its error comes
    before the connection is given up. The wait for a lock is also shorter than the last wait of a supervisor that stops: it
    skips locked rows only after it has met one.
    `idle_milliseconds`: the limit of a transaction in which this process sends or receives nothing (it was stopped, or cut off).
    The server then releases its locks, so that an extend that waits for them comes before the leases expire.
    `skip_locked_seconds`: how long after a lock was last met each batch skips locked rows, which costs one more statement.
    `sent_characters`: the size of one exchange, which a slow network transmits within `call_seconds`.
    `claim_bytes`: the size of the texts of one claim.
    `id_range`: the ids among which one statement of a transfer searches.
    `near`: whether a round trip to the server costs less than to save one; None: so it is on this
    machine, as long as a measured round trip is short."""

    call_seconds: float = 10.0
    connect_seconds: int = 5
    lock_milliseconds: int = 3_000
    statement_milliseconds: int = 9_000
    idle_milliseconds: int = 10_000
    skip_locked_seconds: float = 60.0
    sent_characters: int = 4_000_000
    claim_bytes: int = 16_000_000
    id_range: int = 100_000
    near: bool | None = None


DEFAULT_LIMITS = PostgresLimits()
