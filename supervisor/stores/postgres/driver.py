"""A connection to PostgreSQL on which no call waits longer than its limit, and PostgreSQL's errors as errors of a store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from psycopg import Connection, Error, OperationalError, RawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DataError, IntegrityError

from supervisor.errors import (
    NoSuchParent,
    ParentsInCircle,
    RowRefused,
    StoreBroken,
    StoreContended,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from supervisor.stores.postgres.limits import DEFAULT_LIMITS, PostgresLimits
from supervisor.text.redaction import Mask, secrets_of, without_secrets

Answer = TypeVar("Answer")

_CLOCK_INTERVAL = 0.1
"""Seconds between two looks at the clock while a call waits."""
_NOTHING_READY = 0

STATEMENT_CANCELLED = "57014"
"""The SQLSTATE of a statement that took too long: it is slow, or has waited for many locks, for each less than the limit."""
_UNAVAILABLE_CLASSES = ("08", "53", "57", "58", "25")
_OBJECT_IN_USE = "55006"
LOCK_TIMEOUT = "55P03"
_CONTENDED = frozenset({"40001", "40P01", LOCK_TIMEOUT})
_NO_SUCH_PARENT, _PARENTS_IN_CIRCLE = "23503", "42830"  # raised by `link_children`
_REFUSED_CLASSES = ("22", "23", "54", "P0")  # the last: raised by a trigger
_DAMAGED_CLASS = "XX"
_COMMIT_OF_NOTIFICATIONS = "PreCommit_Notify"
"""The function of the server that refuses a commit while its queue of notifications is full."""
_READ_ONLY = "25006"
_READ_ONLY_HINT = (
    " (a standby, or default_transaction_read_only is on for this role or database, or in what a pooler keeps open: "
    "name the primary in the URL, or switch that off there)"
)
_FAILED_TRANSACTION = "25P02"
_UNDONE_CLASSES = ("0A", "21", "22", "23", "25", "3F", "42", "44", "54", "55", "P0")
_UNDONE = frozenset({"40001", "40P01", "53100", "53200", STATEMENT_CANCELLED})
"""SQLSTATEs by which a server refuses a statement and rolls it back; a pooler never answers with them itself."""
_UNDONE_IF_DIRECT = frozenset({"57P01", "57P04", "57P05"})
"""SQLSTATEs by which a server ends a session before its commit; a pooler that has lost its server may answer with them too."""
_STATEMENT_MODE = "transaction blocks not allowed in statement pooling mode"
_STATEMENT_MODE_HINT = (
    ": the pooler is in statement mode, in which a store is impossible; set pool_mode = transaction there"
)
_OPTIONS_REFUSED = "unsupported startup parameter"
_POOLER_HINT = ": a pooler is in between; set store.listen: false in the config"
_NO_OPTIONS_HINT = ": a pooler is in between; remove PGOPTIONS from the environment, and options from the URL"
_NOT_GRANTED = "42501"
_NOT_GRANTED_HINT = " (grant this right to the role in the URL of the store)"
_MISSING = ("3F000", "42P01", "42883")
_MISSING_HINT = " (was the schema of the store dropped? restore it from a backup, or start supervisors again for a new, empty store)"
_LOST_STATEMENTS = ("26000", "42P05")
"""SQLSTATEs of prepared statements that are missing, or of another session: a pooler exchanges the sessions."""
_FINAL_AT_CONNECT = ("28", "3D", "0P")
_FINAL_TEXTS = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects",
    "no password supplied",
    "not permitted to log in",
    "permission denied for database",
    "invalid port number",
    "server does not support SSL",
    "certificate",
    _OPTIONS_REFUSED,
)
"""Parts of messages of the server and of libpq, which gives no SQLSTATE, after which another try fails too."""
_FAILURE_OF_A_HOST = "- host: "
_SHOWN_IN_URLS = ("host", "port", "dbname", "sslmode", "target_session_attrs")
"""Parts of a URL that are no secrets although they may stand in its query."""


_CHECKED = {"session_replication_role": "origin"}
"""Settings of a session without which a store does not work, and which only a superuser may set."""
TRANSACTION_TIMEOUT = "transaction_timeout"
_ENDS_SESSIONS = (TRANSACTION_TIMEOUT, "idle_session_timeout")
"""Settings by which the server ends sessions that use the store as they should. Old servers don't have them."""
_FIND_SETTINGS = "select name, setting from pg_catalog.pg_settings where name operator(pg_catalog.=) any($1)"
_SWITCH_OFF = "select pg_catalog.set_config(name, '0', false) from pg_catalog.unnest($1::pg_catalog.text[]) as name"

_NEAR_SECONDS, _FAR_SECONDS, _ROUND_TRIPS = 0.001, 0.02, 5
"""A round trip of _NEAR_SECONDS costs no more than to save one. One that took longer is measured again, since the machine may be
busy, unless it took _FAR_SECONDS."""


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False for steps that fail because a connection is lost: psycopg logs each, and the call raises the same error."""
    return record.levelno >= logging.ERROR or not str(record.msg).startswith("error ignored")


logging.getLogger("psycopg").addFilter(_is_worth_logging)


def session_of(limits: PostgresLimits) -> Mapping[str, str]:
    """Return the settings of every session. They override those of the role, the database and the URL.

    The search path leads to PostgreSQL's own functions, operators and types only: anybody may have put others into another
    schema. A commit is durable once it is answered. A plan that was made while the tables were small is kept after they have
    grown; every statement has its index, so plans that use none are switched off.
    """
    return {
        "statement_timeout": str(limits.statement_milliseconds),
        "lock_timeout": str(limits.lock_milliseconds),
        "idle_in_transaction_session_timeout": str(limits.idle_milliseconds),
        "search_path": "pg_catalog",
        "array_nulls": "on",
        "default_transaction_read_only": "off",
        "default_transaction_isolation": "read committed",
        "synchronous_commit": "on",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }


def _server_side_of(limits: PostgresLimits) -> Mapping[str, str]:
    """Return the settings by which the server gives up a client that receives nothing: while the server sends, no limit of a
    session applies. Behind a pooler the client is not this process."""
    return {
        "tcp_user_timeout": str(limits.idle_milliseconds),
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
    }


def _defaults_of(limits: PostgresLimits) -> Mapping[str, str]:
    """Return the arguments of a connection that apply unless the URL sets them."""
    return {
        "connect_timeout": str(limits.connect_seconds),
        "application_name": "supervisor",
        "target_session_attrs": "read-write",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "15000",
    }


class Unanswered(OperationalError):
    """The server did not answer within the limit: it is unknown what it has done."""


class DriverConnection(Connection[tuple[Any, ...]]):
    """A connection that refuses all calls after one that was not answered: the next answer would belong to that one.

    `near`: a round trip costs less than to save one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.near, self.given_up, self.call_seconds = False, False, DEFAULT_LIMITS.call_seconds

    def wait(self, gen: Any, interval: float = _CLOCK_INTERVAL, timeout: float | None = None) -> Any:
        if self.given_up:
            raise Unanswered("the connection was given up")
        try:
            return super().wait(_within(gen, self.call_seconds), interval=_CLOCK_INTERVAL)
        except Unanswered:
            self.given_up = True
            raise

    def is_lost(self, error: Error) -> bool:
        """Return whether `error` ends the use of the connection: it is broken, or leads to a server that takes no writes."""
        return self.given_up or self.broken or self.closed or error.sqlstate == _READ_ONLY

    def measure(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Find out whether it is near: an address of this machine may be that of a tunnel or a pooler to another one."""
        if not (self.info.host.startswith("/") or self.info.hostaddr in ("127.0.0.1", "::1")):
            return
        for _ in range(_ROUND_TRIPS):
            began = clock()
            self.execute("select 1")
            took = clock() - began
            self.near = took <= _NEAR_SECONDS
            if self.near or took >= _FAR_SECONDS:
                return


def is_undone(state: str, *, direct: bool) -> bool:
    """Return whether a call certainly committed nothing if its answer is this SQLSTATE. After other states it is unknown: a pooler
    that has lost its server answers with states of its own. `direct`: no pooler is in between."""
    return state in _UNDONE or state.startswith(_UNDONE_CLASSES) or (direct and state in _UNDONE_IF_DIRECT)


def _within(gen: Generator[Any, Any, Answer], seconds: float) -> Generator[Any, Any, Answer]:
    """Yield the steps of `gen`. Raises Unanswered once they take longer than `seconds` together."""
    deadline = time.monotonic() + seconds
    try:
        step = next(gen)
        while True:
            ready = yield step
            if ready == _NOTHING_READY and time.monotonic() > deadline:
                raise Unanswered(f"no answer within {seconds:g} s")
            step = gen.send(ready)
    except StopIteration as end:
        answer: Answer = end.value
        return answer


class Address:
    """The address of a store. `shown` and all errors are without the secrets in `url`. With `listen` a session belongs to this
    process alone; otherwise a pooler may be in between."""

    def __init__(self, url: str, *, listen: bool, limits: PostgresLimits) -> None:
        self.shown, self.listen, self._limits = without_secrets(url), listen, limits
        self._mask = Mask(secrets_of(url) if "://" in url else ())
        self.session = session_of(limits)
        try:
            given = conninfo_to_dict(url)
        except Error as error:
            raise StoreError(f"{self.shown}: {self._line(error)}") from None
        shown = {str(given.get(name)) for name in _SHOWN_IN_URLS if given.get(name) != given.get("password")}
        self._mask = Mask(secrets_of(url) - shown if "://" in url else ())
        self.arguments: dict[str, Any] = {**_defaults_of(limits), **given, "client_encoding": "UTF8"}
        if listen:  # a pooler refuses options, and would keep them for the next client
            settings = {**self.session, **_server_side_of(limits)}
            settings = {name: value.replace(" ", "\\ ") for name, value in settings.items()}
            own = " ".join(f"-c {name}={value}" for name, value in settings.items())
            self.arguments["options"] = f"{given.get('options') or ''} {own}".strip()

    def connect(self) -> DriverConnection:
        """Open a connection. Raises StoreUnavailable, or StoreBroken if another try would fail too."""
        try:
            connection = DriverConnection.connect(
                make_conninfo(**self.arguments),
                autocommit=True,
                prepare_threshold=2 if self.listen else None,
                cursor_factory=RawCursor,
            )
        except Error as error:
            raise self._not_connected(error) from None
        try:
            self._prepare(connection)
        except Error as error:
            connection.close()
            raise self.translated(error) from None
        except StoreError:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: DriverConnection) -> None:
        connection.call_seconds = self._limits.call_seconds
        self._check_session(connection)
        if self._limits.near is None:
            connection.measure()
        else:
            connection.near = self._limits.near

    def _check_session(self, connection: DriverConnection) -> None:
        """Raise StoreBroken unless the session has its settings: a pooler may drop them. Without `listen` it has none of its own."""
        expected = {**self.session, **_CHECKED} if self.listen else _CHECKED
        found = dict(connection.execute(_FIND_SETTINGS, ([*expected, *_ENDS_SESSIONS],)).fetchall())
        for name in expected:
            if found[name] != expected[name]:
                reset = f": alter role {connection.info.user} reset {name}, or the same for the database"
                hint = _POOLER_HINT if name in self.session else reset
                raise StoreBroken(f"{self.shown}: {name} is {found[name]!r}, not {expected[name]!r}{hint}")
        to_switch_off = [name for name in _ENDS_SESSIONS if found.get(name, "0") != "0"]
        if self.listen and to_switch_off:
            connection.execute(_SWITCH_OFF, (to_switch_off,))

    def _not_connected(self, error: Error) -> StoreError:
        text = str(error)
        state = error.sqlstate or ""
        final = state.startswith(_FINAL_AT_CONNECT) or any(part in text for part in _FINAL_TEXTS)
        kind = StoreBroken if final and "starting up" not in text else StoreUnavailable
        hint = _READ_ONLY_HINT if "session is read-only" in text else ""
        if _OPTIONS_REFUSED in text:
            hint = _POOLER_HINT if self.listen else _NO_OPTIONS_HINT
        of_hosts = [line for line in text.splitlines() if line.startswith(_FAILURE_OF_A_HOST)]
        lines = self._mask("; ".join(line.removeprefix("- ") for line in of_hosts)) or self._line(error)
        return kind(f"{self.shown}: {lines}{hint}")

    def translated(self, error: Error | UnicodeError | OverflowError) -> StoreError:
        """Return the error of a store for a call that failed with `error`."""
        message = f"{self.shown}: {self._line(error)}"
        if not isinstance(error, Error):
            return RowRefused(message)
        state = error.sqlstate
        if state is None:
            lost = isinstance(error, OperationalError)
            refused = isinstance(error, DataError | IntegrityError)
            return (StoreUnavailable if lost else RowRefused if refused else StoreBroken)(message)
        if state == _NO_SUCH_PARENT:
            return NoSuchParent(self._line(error))
        if state == _PARENTS_IN_CIRCLE:
            return ParentsInCircle(self._line(error))
        if state == _FAILED_TRANSACTION:
            return StoreError(f"{self.shown}: a write inside this transaction failed, so none of it is kept")
        if state == _READ_ONLY:
            return StoreUnavailable(message + _READ_ONLY_HINT)
        if error.diag.source_function == _COMMIT_OF_NOTIFICATIONS:
            return StoreUnavailable(message)
        if _STATEMENT_MODE in message:
            return StoreBroken(message + _STATEMENT_MODE_HINT)
        if state == _NOT_GRANTED:
            return StoreBroken(message + _NOT_GRANTED_HINT)
        if state in _MISSING:
            return StoreBroken(message + _MISSING_HINT)
        if state in _LOST_STATEMENTS:
            return StoreBroken(message + _POOLER_HINT)
        if state in _CONTENDED:
            return StoreContended(message)
        if state == _OBJECT_IN_USE or state.startswith(_UNAVAILABLE_CLASSES):
            return StoreUnavailable(message)
        if state.startswith(_DAMAGED_CLASS):
            return StoreDamaged(message)
        return (RowRefused if state.startswith(_REFUSED_CLASSES) else StoreBroken)(message)

    def _line(self, error: BaseException) -> str:
        primary = error.diag.message_primary if isinstance(error, Error) else None
        lines = (primary or str(error)).strip().splitlines()
        return self._mask(lines[0]) if lines else type(error).__name__
