"""Limits of a SQLite store that its tests set lower."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SqliteLimits:
    """`claim_characters`: of the texts in one claim; to read them takes several times as much memory for a moment.
    `wal_bytes`: of the write-ahead log, whose length is looked at every `wal_seconds`.
    `write_seconds`: the longest wait for other writers."""

    claim_characters: int = 16_000_000
    wal_bytes: int = 64 * 1024 * 1024
    wal_seconds: float = 1.0
    write_seconds: float = 1.0
