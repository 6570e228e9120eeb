"""One connection to a PostgreSQL store: transactions of few round trips, statements and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
import psycopg
from psycopg import sql as quoting

from supervisor.errors import RowRefused, StoreError, StoreUnavailable
from supervisor.stores.postgres.driver import TRANSACTION_TIMEOUT, Address, DriverConnection, is_undone
from supervisor.stores.postgres.session import Session

Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]

BEGIN = "begin isolation level read committed read write"
BEGIN_SNAPSHOT = "begin isolation level repeatable read read only"
NOW = "(select {s}.clock())"
"""The time of a statement, in microseconds since the epoch, read once."""
HAS_ROOM = "pg_notification_queue_usage() < 0.9"
NOTIFY = f"case when {HAS_ROOM} then pg_notify({{channel}}, '')::text = '' else false end"
"""A call that notifies supervisors at the commit, and is false if the server's queue is almost full: a full one refuses the commit."""
LOCK_BRIEFLY = "set local lock_timeout = '100ms'"
# Settings that an old server doesn't have are left out.
SET_LOCAL = """
  select pg_catalog.set_config(key, value, true) from pg_catalog.json_each_text($1)
  where pg_catalog.current_setting(key, true) is not null"""


class CommitUnknown(StoreUnavailable):
    """The answer to a commit was lost: it is unknown whether it was done."""


class Names(NamedTuple):
    """The texts that replace {s}, {jobs} and {channel} in statements: the schema as an identifier, and the table of the jobs and
    the channel of notifications as literals."""

    schema: str
    jobs: str
    channel: str


class _State(Enum):
    NOT_BEGUN = "not begun"
    BEGUN = "begun"
    FAILED = "failed"
    """A write inside failed: it must not be committed with the rest, even if the caller goes on."""


class _Transaction:
    """A transaction, whose `begin` is sent with its first statement. `single`: its last statement may commit by itself."""

    def __init__(self, begin: str, single: bool) -> None:
        self.begin, self.single = begin, single
        self.state: _State = _State.NOT_BEGUN
        self.waiting: list[Statement] = []
        self.after_commit: list[Callable[[], None]] = []


class Connection:
    """A connection for one thread at a time, in the process that opened it. It connects again if it was lost.

    `begin`, and statements whose answer nobody needs (`later`), are sent together with the next statement.
    """

    def __init__(self, address: Address, schema: str) -> None:
        self.session, self.url, self.schema, self.channel = Session(address), address.shown, schema, f"{schema}.jobs"
        quoted = quoting.Identifier(schema).as_string(None)
        jobs, channel = (quoting.Literal(text).as_string(None) for text in (f"{quoted}.jobs", self.channel))
        self.names = Names(quoted, jobs, channel)
        self._listen, self._session = address.listen, packed({**address.session, TRANSACTION_TIMEOUT: "0"})
        self._transaction: _Transaction | None = None
        self._before_close: list[Callable[[], None]] = []
        self._before_commit: list[Callable[[], None]] = []
        self._on_rollback: list[Callable[[], None]] = []

    def close(self) -> None:
        for act in self._before_close:
            act()
        self.session.check_process()
        self.session.disconnect()

    def before_close(self, act: Callable[[], None]) -> None:
        self._before_close.append(act)

    # --- transactions

    @contextmanager
    def transaction(self, *, single: bool = False, brief: bool = False, begin: str = BEGIN) -> Iterator[None]:
        self.session.check_process()
        if self._transaction is not None:
            try:
                yield
            except BaseException:
                self._transaction.state = _State.FAILED
                raise
            return
        self._transaction = transaction = _Transaction(begin, single)
        if brief:
            self.later(LOCK_BRIEFLY)
        try:
            yield
            self._commit(transaction)
        except BaseException:
            self._roll_back(transaction)
            raise
        finally:
            self._transaction = None
        for act in transaction.after_commit:
            act()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads inside see the same state of the store."""
        if self._transaction is not None:
            yield
            return
        with self.transaction(begin=BEGIN_SNAPSHOT):
            yield

    def before_commit(self, act: Callable[[], None]) -> None:
        """Call `act` before every commit from now on."""
        self._before_commit.append(act)

    def on_rollback(self, act: Callable[[], None]) -> None:
        """Call `act` at every rollback from now on."""
        self._on_rollback.append(act)

    def after_commit(self, act: Callable[[], None]) -> None:
        """Call `act` once this transaction is durable; not at all if it is rolled back."""
        assert self._transaction is not None
        self._transaction.after_commit.append(act)

    def _commit(self, transaction: _Transaction) -> None:
        if transaction.state is not _State.FAILED:
            for act in self._before_commit:
                act()
            if transaction.state is _State.NOT_BEGUN and not transaction.waiting:
                return
        with self.committing():
            self._exchange(("commit", ()))

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Wrap a statement that commits. Raises CommitUnknown if it fails, unless the error shows that nothing was committed."""
        try:
            yield
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.Error):
                state = cause.sqlstate
                # Without a state nothing was sent, unless the connection was lost.
                undone = self.session.is_connected if state is None else is_undone(state, direct=self._listen)
                if not undone:
                    raise CommitUnknown(str(error)) from error
            raise

    def _roll_back(self, transaction: _Transaction) -> None:
        for act in self._on_rollback:
            act()
        if self.session.in_transaction:
            transaction.waiting, transaction.state = [], _State.BEGUN
            with suppress(StoreError):
                self._exchange(("rollback", ()))

    @property
    def commits_by_itself(self) -> bool:
        """Return whether a statement can be a transaction by itself: behind a pooler it would have no time limits."""
        return self._listen and self._transaction is None

    @property
    def is_single(self) -> bool:
        return self._transaction is not None and self._transaction.single

    # --- statements

    def run(self, sql: str, *parameters: Any) -> int:
        """Execute the statement, and return how many rows it changed."""
        return self._exchange((sql, parameters)).rowcount

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        return self._exchange((sql, parameters)).fetchall()

    def rows_alone(self, sql: str, *parameters: Any) -> list[Row]:
        """Return the rows of a statement. It is a transaction by itself if the one around it has not begun."""
        return self._exchange((sql, parameters), alone=True).fetchall()

    def value(self, sql: str, *parameters: Any) -> Any:
        row = self._exchange((sql, parameters)).fetchone()
        return None if row is None else row[0]

    def column(self, sql: str, *parameters: Any) -> list[Any]:
        return [row[0] for row in self._exchange((sql, parameters)).fetchall()]

    def later(self, sql: str, *parameters: Any) -> None:
        """Send the statement with the next one, or with the commit. Only inside a transaction."""
        assert self._transaction is not None
        self._transaction.waiting.append((sql, parameters))

    def flush(self) -> None:
        """Send the statements that wait."""
        if self._transaction is not None and self._transaction.waiting:
            self._exchange(self._transaction.waiting.pop())

    @contextmanager
    def copy(self, sql: str) -> Iterator[psycopg.Copy]:
        """Execute a `copy from stdin`. Only inside a transaction in which a statement has been executed."""
        self.flush()
        with self._connected() as driver, driver.cursor().copy(_filled(sql, self.names)) as copy:
            yield copy

    def _exchange(self, last: Statement, alone: bool = False) -> psycopg.Cursor[Row]:
        """Send all that waits, then `last`, in one round trip unless that is slower; returns the answer to `last`."""
        statements = [*self._openers(alone), last]
        with self._connected() as driver:
            if len(statements) == 1 or driver.near:
                return [self._send(driver, statement) for statement in statements][-1]
            with driver.pipeline():
                return [self._send(driver, statement) for statement in statements][-1]

    def _openers(self, alone: bool) -> Iterable[Statement]:
        transaction = self._transaction
        if transaction is None:
            return ()
        waiting, transaction.waiting = transaction.waiting, []
        if transaction.state is _State.FAILED:
            raise StoreError(f"{self.url}: a write inside this transaction failed, so none of it is kept")
        if transaction.state is _State.BEGUN or (alone and self._listen and not waiting):
            return waiting
        transaction.state = _State.BEGUN
        begin: Statement = (transaction.begin, ())
        return (begin, *waiting) if self._listen else (begin, (SET_LOCAL, (self._session,)), *waiting)

    def _send(self, driver: DriverConnection, statement: Statement) -> psycopg.Cursor[Row]:
        sql, parameters = statement
        return driver.execute(_filled(sql, self.names), parameters)

    @contextmanager
    def _connected(self) -> Iterator[DriverConnection]:
        transaction = self._transaction
        begun = transaction is not None and transaction.state is not _State.NOT_BEGUN
        try:
            with self.session.connected(may_reconnect=not begun) as driver:
                yield driver
        except BaseException:
            if transaction is not None:
                transaction.state = _State.FAILED
            raise


@lru_cache(1024)
def _filled(sql: str, names: Names) -> str:
    return sql.replace("{s}", names.schema).replace("{jobs}", names.jobs).replace("{channel}", names.channel)


def packed(batch: Any) -> str:
    """Return a batch as one JSON text. Raises RowRefused for values that JSON can't hold."""
    try:
        return orjson.dumps(batch).decode()
    except (TypeError, ValueError) as error:
        raise RowRefused(f"a row can't be stored: {error}") from None


def array(numbers: Iterable[int | None]) -> str:
    """Return the text of a PostgreSQL array, which is faster than one parameter for each number."""
    return "{" + ",".join(["null" if number is None else str(number) for number in numbers]) + "}"
