"""The write-ahead log of a SQLite store, kept short."""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from supervisor.stores.sqlite.database_file import beside
from supervisor.stores.sqlite.limits import SqliteLimits

BUSY_MILLISECONDS = 250
"""The time that SQLite itself waits for a lock."""
_WARN_AGAIN_SECONDS = 60.0

_log = logging.getLogger(__name__)


class WriteAheadLog:
    """SQLite's own checkpoints reuse the log, but can't while another program reads an old snapshot: the log grows, and is
    shortened here afterwards."""

    def __init__(self, path: Path, sqlite: sqlite3.Connection, limits: SqliteLimits) -> None:
        self._path, self._sqlite, self._limits = path, sqlite, limits
        self._looked_at = time.monotonic()
        self._warned_at = float("-inf")

    def keep_short(self) -> None:
        """Shorten the log if it is too long; call this after each transaction."""
        if time.monotonic() - self._looked_at < self._limits.wal_seconds:
            return
        self._looked_at = time.monotonic()
        with suppress(OSError, sqlite3.Error):
            if beside(self._path, "-wal").stat().st_size > self._limits.wal_bytes:
                self._shorten()

    def _shorten(self) -> None:
        self._sqlite.execute("pragma busy_timeout = 0")
        try:
            busy, _, _ = self._sqlite.execute("pragma wal_checkpoint(truncate)").fetchone()
        finally:
            self._sqlite.execute(f"pragma busy_timeout = {BUSY_MILLISECONDS}")
        if busy and time.monotonic() - self._warned_at > _WARN_AGAIN_SECONDS:
            self._warned_at = time.monotonic()
            megabytes = self._limits.wal_bytes >> 20
            _log.warning("%s-wal is over %d MB: another program keeps reading an old state", self._path, megabytes)
