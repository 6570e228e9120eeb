"""Limits of a PostgreSQL store that its tests set lower."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PostgresLimits:
    """`call_seconds`: for one exchange with the server, whatever has become of the server or of the way to it.
    `connect_seconds`: for each address that a connection is tried at.
    `lock_milliseconds`, `statement_milliseconds`: kept by the server, below `call_seconds`, so that its error comes before the
    connection is given up. The wait for a lock is also shorter than the wait of a supervisor at its end: it skips a locked row
    only after it has met one.
    `idle_milliseconds`: for a transaction in which this process sends nothing, or receives nothing (it was stopped, or cut off):
    then its locks are released, before leases expire whose extension waits for them.
    `skip_locked_seconds`: how long after a lock was last met each batch skips locked rows, which costs one more statement.
    `sent_characters`: of one exchange; a slow line takes them within `call_seconds`.
    `claim_bytes`: of the texts of one claim.
    `id_range`: ids that one statement of a transfer looks through.
    `near`: whether the server is on this machine, where a round trip costs less than to save one; None: by its address."""

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
