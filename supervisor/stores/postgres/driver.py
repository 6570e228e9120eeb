"""A connection to PostgreSQL on which no call waits longer than its limit, and what its errors mean to a caller."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from psycopg import Connection, Error, OperationalError, RawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DataError, IntegrityError

from supervisor.errors import RowRefused, StoreBroken, StoreContended, StoreError, StoreUnavailable
from supervisor.text.redaction import Mask, secrets_of, without_secrets

Answer = TypeVar("Answer")

CALL_LIMIT = 10.0
"""Seconds that an exchange with the server may take, whatever has become of the server or of the way to it."""
CONNECT_LIMIT = 5
LOCK_LIMIT = 3_000
STATEMENT_LIMIT = 9_000
"""Milliseconds, kept by the server: below CALL_LIMIT, so that its word comes before the line is cut. The first is also below what
a supervisor waits at its end: it passes by a locked row only after it has met one."""
IDLE_LIMIT = 10_000
"""Of a transaction in which this process says nothing, or takes nothing (it was stopped, or cut off): then its locks are
given back, before leases that are extended behind them end."""
_LOOK_AT_CLOCK = 0.1
_NOTHING_READY = 0

SESSION = {
    "statement_timeout": str(STATEMENT_LIMIT),
    "lock_timeout": str(LOCK_LIMIT),
    "idle_in_transaction_session_timeout": str(IDLE_LIMIT),
    "search_path": "pg_catalog",
    "array_nulls": "on",
    "default_transaction_read_only": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off"),
}
"""Whatever the role, the database and the URL say. Of functions, operators and types only those of PostgreSQL are found:
anybody may have put others into a schema that is searched otherwise. A plan made while the tables were small is kept after
they have grown; every statement has its index, so nothing else is considered where that can be used."""

FAR_END = {
    "tcp_user_timeout": str(IDLE_LIMIT),
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""What the server, which no limit of SESSION reaches while it sends, expects of this end of the connection. Behind a pooler
that is not this process."""

DEFAULTS: Mapping[str, str] = {
    "connect_timeout": str(CONNECT_LIMIT),
    "application_name": "supervisor",
    "target_session_attrs": "read-write",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""Unless the URL says otherwise."""

TOO_LONG = "57014"
"""A statement did: it is slow, or has waited for one lock after another, for none of them as long as LOCK_LIMIT."""
_UNAVAILABLE_CLASSES = ("08", "53", "57", "58", "25")
_UNAVAILABLE = frozenset({"55006"})
_CONTENDED = frozenset({"40001", "40P01", "55P03"})
_REFUSED_CLASSES = ("22", "23", "54", "P0")  # the last by somebody's trigger
_READ_ONLY = "25006"
_TAKES_NO_WRITES = (
    " (a standby, or default_transaction_read_only is on for this role or database, or in what a pooler keeps open: "
    "name the primary in the URL, or switch that off there)"
)
_FAILED_TRANSACTION = "25P02"
_FINAL_AT_CONNECT = ("28", "3D", "0P")
_FINAL_WORDS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


def _is_told_anyway(record: logging.LogRecord) -> bool:
    """What psycopg says of a connection that was lost is what the call has raised."""
    return record.levelno >= logging.ERROR or not str(record.msg).startswith("error ignored")


logging.getLogger("psycopg").addFilter(_is_told_anyway)


class Unanswered(OperationalError):
    """The server did not answer within the limit: what it has done is unknown."""


class DriverConnection(Connection[tuple[Any, ...]]):
    """After one call that was not answered it answers none: what is left in it belongs to that call."""

    limit = CALL_LIMIT
    given_up = False
    near = False
    """On this machine a round trip costs less than to save one."""

    def wait(self, gen: Any, interval: float = _LOOK_AT_CLOCK, timeout: float | None = None) -> Any:
        if self.given_up:
            raise Unanswered("the connection was given up")
        try:
            return super().wait(_within(gen, self.limit), interval=_LOOK_AT_CLOCK)
        except Unanswered:
            self.given_up = True
            raise


def _within(gen: Generator[Any, Any, Answer], limit: float) -> Generator[Any, Any, Answer]:
    """The same steps, as long as they don't take longer than `limit` seconds together."""
    deadline = time.monotonic() + limit
    try:
        step = next(gen)
        while True:
            ready = yield step
            if ready == _NOTHING_READY and time.monotonic() > deadline:
                raise Unanswered(f"no answer within {limit:g} s")
            step = gen.send(ready)
    except StopIteration as end:
        answer: Answer = end.value
        return answer


class Address:
    """Where a store is. `shown` and all errors are without what is secret in `url`."""

    def __init__(self, url: str, *, listen: bool) -> None:
        self.shown = without_secrets(url)
        self._mask = Mask(secrets_of(url) if "://" in url else ())
        self._listen = listen
        try:
            given = conninfo_to_dict(url)
        except Error as error:
            raise StoreError(f"{self.shown}: {self._line(error)}") from None
        self._arguments: dict[str, Any] = {**DEFAULTS, **given, "client_encoding": "UTF8"}
        if listen:  # a pooler refuses options, and would keep them for the next client
            own = " ".join(f"-c {name}={value}" for name, value in {**SESSION, **FAR_END}.items())
            self._arguments["options"] = f"{given.get('options') or ''} {own}".strip()

    def connect(self) -> DriverConnection:
        """Raises StoreUnavailable, or StoreBroken if trying again won't help by itself."""
        try:
            connection = DriverConnection.connect(
                make_conninfo(**self._arguments),
                autocommit=True,
                prepare_threshold=2 if self._listen else None,
                cursor_factory=RawCursor,
            )
        except Error as error:
            raise self._not_connected(error) from None
        connection.near = is_near(connection)
        return connection

    def _not_connected(self, error: Error) -> StoreError:
        text = str(error)
        state = error.sqlstate or ""
        final = state.startswith(_FINAL_AT_CONNECT) or any(word in text for word in _FINAL_WORDS)
        kind = StoreBroken if final and "starting up" not in text else StoreUnavailable
        hint = _TAKES_NO_WRITES if "session is read-only" in text else ""
        return kind(f"{self.shown}: {self._line(error)}{hint}")

    def translated(self, error: Error | UnicodeError | OverflowError) -> StoreError:
        """What a failed call means to its caller."""
        message = f"{self.shown}: {self._line(error)}"
        if not isinstance(error, Error):
            return RowRefused(message)
        state = error.sqlstate
        if state is None:
            lost = isinstance(error, OperationalError)
            refused = isinstance(error, DataError | IntegrityError)
            return (StoreUnavailable if lost else RowRefused if refused else StoreBroken)(message)
        if state == _FAILED_TRANSACTION:
            return StoreError(f"{self.shown}: a write inside this transaction failed, so none of it is kept")
        if state == _READ_ONLY:
            return StoreUnavailable(message + _TAKES_NO_WRITES)
        if state in _CONTENDED:
            return StoreContended(message)
        if state in _UNAVAILABLE or state.startswith(_UNAVAILABLE_CLASSES):
            return StoreUnavailable(message)
        return (RowRefused if state.startswith(_REFUSED_CLASSES) else StoreBroken)(message)

    def _line(self, error: BaseException) -> str:
        primary = error.diag.message_primary if isinstance(error, Error) else None
        lines = (primary or str(error)).strip().splitlines()
        return self._mask(lines[0]) if lines else type(error).__name__


def is_near(connection: DriverConnection) -> bool:
    return connection.info.host.startswith("/") or connection.info.hostaddr in ("127.0.0.1", "::1")


def is_lost(connection: DriverConnection, error: Error) -> bool:
    """Whether nothing more can be done on this connection: it is broken, or leads to a server that takes no writes."""
    return connection.given_up or connection.broken or connection.closed or error.sqlstate == _READ_ONLY
