"""One session on a PostgreSQL server, which is connected when it is first used, and again after it was lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from supervisor.errors import StoreContended, StoreError
from supervisor.stores.postgres.driver import STATEMENT_CANCELLED, Address, DriverConnection

_IDLE_SECONDS = 0.5
"""A connection that was not used for so long may have been closed by the server, and is checked first."""
_FAILURES = (psycopg.Error, UnicodeError, OverflowError)


class Session:
    """A session for one thread at a time, in the process that opened it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.lock_met_at: float | None = None
        """When, by the monotonic clock, a statement last met a lock of another session, or may have."""
        self._process = os.getpid()
        self._driver: DriverConnection | None = None
        self._used_at = 0.0

    @property
    def is_connected(self) -> bool:
        return self._driver is not None

    @property
    def in_transaction(self) -> bool:
        return self._driver is not None and self._driver.pgconn.transaction_status != TransactionStatus.IDLE

    def server_process(self) -> int | None:
        return None if self._driver is None else self._driver.pgconn.backend_pid

    def disconnect(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    @contextmanager
    def connected(self, *, may_reconnect: bool) -> Iterator[DriverConnection]:
        """Yield the connection: made if there is none, and closed if it turns out to be lost. Errors of the driver are raised as
        those of `supervisor.errors`. `may_reconnect`: nothing has been sent on it that the server must remember."""
        self.check_process()
        self._used_at, before = time.monotonic(), self._used_at
        if may_reconnect and self._used_at - before > _IDLE_SECONDS and not self._is_open():
            self.disconnect()
        if self._driver is None:
            self._driver = self.address.connect()
        driver = self._driver
        try:
            yield driver
        except _FAILURES as error:
            if isinstance(error, psycopg.Error) and driver.is_lost(error):
                self.disconnect()
            raised = self.address.translated(error)
            if isinstance(raised, StoreContended) or getattr(error, "sqlstate", None) == STATEMENT_CANCELLED:
                self.lock_met_at = time.monotonic()
            raise raised from error

    def check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.address.shown}: opened by process {self._process}, used in its child {os.getpid()}; "
                "open a store there"
            )

    def _is_open(self) -> bool:
        if self._driver is None:
            return False
        try:
            self._driver.pgconn.consume_input()
        except psycopg.Error:
            return False
        return self._driver.pgconn.status == ConnStatus.OK
