"""One connection to a PostgreSQL store: transactions of few round trips, errors, and counts that block nobody."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import orjson
import psycopg
from psycopg import sql as quoting
from psycopg.pq import ConnStatus

from supervisor.errors import RowRefused, StoreContended, StoreError, StoreUnavailable
from supervisor.stores.postgres.driver import SESSION, TOO_LONG, Address, DriverConnection, is_lost

Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]

BEGIN = "begin isolation level read committed read write"
LOOK = "begin isolation level repeatable read read only"
SET = f"select {', '.join(f'''pg_catalog.set_config('{name}', '{value}', true)''' for name, value in SESSION.items())}"
ADD_COUNTS = """insert into {s}.counts(state, queue, tier, n)
  select * from json_to_recordset($1::json) as it(state smallint, queue text, tier smallint, n bigint)"""

_IDLE = 0.5
_FAILURES = (psycopg.Error, UnicodeError, OverflowError)


class CommitUnknown(StoreUnavailable):
    """The answer to a commit was lost: it was done, or it was not."""


class Database:
    """Used from one thread at a time, in the process that opened it. Connects anew where a connection was lost.

    A statement whose answer nobody needs (`later`) goes with the next one, as does `begin`, and the counts with `commit`.
    """

    def __init__(self, url: str, *, schema: str, listen: bool) -> None:
        self.schema = schema
        self.channel = f"{schema}.bell"
        self.url = (address := Address(url, listen=listen)).shown
        self._address, self._listen, self._process = address, listen, os.getpid()
        self._connection: DriverConnection | None = None
        self.quoted = quoting.Identifier(schema).as_string(None)
        self._deltas: Counter[tuple[int, str, int]] = Counter()
        self._later: list[Statement] = []
        self._after_commit: list[Callable[[], None]] = []
        self._open_transaction = self._broken = self._begun = self._single = self._in_itself = False
        self._begin = BEGIN
        self._used = 0.0

    def close(self) -> None:
        self._check_process()
        self._drop()

    # transactions

    @contextmanager
    def transaction(self, *, single: bool = False) -> Iterator[None]:
        self._check_process()
        if self._open_transaction:
            with self._joined():
                yield
            return
        self._open_transaction, self._single = True, single
        try:
            yield
            self._commit()
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._open_transaction = self._broken = self._begun = self._single = False
        acts, self._after_commit = self._after_commit, []
        for act in acts:
            act()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads of one moment."""
        if self._open_transaction:
            yield
            return
        self._begin = LOOK
        try:
            with self.transaction():
                yield
        finally:
            self._begin = BEGIN

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """All or nothing: what failed half way must not be committed with the rest, even if the caller goes on."""
        try:
            yield
        except BaseException:
            self._broken = True
            raise

    def _commit(self) -> None:
        if self._broken:
            raise StoreError(f"{self.url}: a write inside this transaction failed, so none of it is kept")
        self.write_counts()
        if self._begun or self._later:
            with self.committing():
                self._exchange(("commit", ()))

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Around what commits: only a server that says so, before it is gone, has not done it."""
        try:
            yield
        except StoreUnavailable as error:
            cause = error.__cause__
            if self._connection is None and isinstance(cause, psycopg.Error) and cause.sqlstate is None:
                raise CommitUnknown(str(error)) from error
            raise

    @property
    def alone(self) -> bool:
        """Whether a statement would be its own transaction, with the limits of the session."""
        return self._listen and not self._open_transaction

    @property
    def is_last(self) -> bool:
        """Whether a claim is all that is written in this transaction, so that it may be one by itself (`in_itself`)."""
        return self._listen and self._single and not (self._begun or self._later or self._deltas)

    @contextmanager
    def in_itself(self) -> Iterator[None]:
        """A statement in here doesn't begin the transaction around it, if that has not begun: it is one of its own."""
        self._in_itself = self._listen
        try:
            yield
        finally:
            self._in_itself = False

    def _roll_back(self) -> None:
        self._deltas.clear()
        self._later.clear()
        self._after_commit.clear()
        self.forget()
        if self._begun and self._connection is not None:
            with suppress(StoreError):
                self._exchange(("rollback", ()))

    def forget(self) -> None:
        """Drop what was remembered of rows: a rollback may have taken them back."""

    def after_commit(self, act: Callable[[], None]) -> None:
        """Do it once this transaction is durable; not at all if it is rolled back."""
        self._after_commit.append(act)

    # statements: `{s}` in them is the schema

    def run(self, sql: str, *parameters: Any) -> int:
        """Rows changed."""
        return self._exchange((sql, parameters)).rowcount

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        return self._exchange((sql, parameters)).fetchall()

    def value(self, sql: str, *parameters: Any) -> Any:
        row = self._exchange((sql, parameters)).fetchone()
        return None if row is None else row[0]

    def column(self, sql: str, *parameters: Any) -> list[Any]:
        return [row[0] for row in self._exchange((sql, parameters)).fetchall()]

    def later(self, sql: str, *parameters: Any) -> None:
        """Only inside a transaction."""
        self._later.append((sql, parameters))

    def _exchange(self, last: Statement) -> psycopg.Cursor[Row]:
        """Whatever has waited, then `last`, in one round trip unless that is slower; gives the answer to `last`."""
        statements = [*self._openers(), *self._later, last]
        self._later = []
        with self.on_connection() as connection:
            if len(statements) == 1 or connection.near:
                return [self._send(connection, statement) for statement in statements][-1]
            with connection.pipeline():
                return [self._send(connection, statement) for statement in statements][-1]

    def _openers(self) -> Iterable[Statement]:
        if not self._open_transaction or self._begun or self._in_itself:
            return ()
        self._begun = True
        return [(self._begin, ())] if self._listen else [(self._begin, ()), (SET, ())]

    def _send(self, connection: DriverConnection, statement: Statement) -> psycopg.Cursor[Row]:
        sql, parameters = statement
        return connection.execute(_filled(sql, self.quoted), parameters)

    @contextmanager
    def on_connection(self) -> Iterator[DriverConnection]:
        """The connection; made if there is none, and dropped if it turns out to be lost."""
        self._check_process()
        connection = self._connection
        if connection is not None and not self._begun and time.monotonic() - self._used > _IDLE:
            connection = self._still_there(connection)
        self._used = time.monotonic()
        if connection is None:
            if self._open_transaction and self._broken:
                raise StoreError(f"{self.url}: a write inside this transaction failed, so none of it is kept")
            connection = self._connection = self._address.connect()
        try:
            yield connection
        except _FAILURES as error:
            if self._open_transaction:
                self._broken = True
            if isinstance(error, psycopg.Error) and is_lost(connection, error):
                self._drop()
            told = self._address.translated(error)
            if isinstance(told, StoreContended) or (isinstance(error, psycopg.Error) and error.sqlstate == TOO_LONG):
                self.contended()
            raise told from error

    def _still_there(self, connection: DriverConnection) -> DriverConnection | None:
        """A connection that the server has closed meanwhile is replaced before anything is asked of it."""
        try:
            connection.pgconn.consume_input()
            if connection.pgconn.status == ConnStatus.OK:
                return connection
        except psycopg.Error:
            pass
        self._drop()
        return None

    def contended(self) -> None:
        """A lock of somebody else's was in the way, or may have been."""

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.url}: opened by process {self._process}, used in its child {os.getpid()}; open a store there"
            )

    # counts

    def count(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        self._deltas[state, queue, tier] += n

    def write_counts(self) -> None:
        """Called before every commit, and before the counts are read. Rows are only added, so nobody waits for anybody."""
        deltas = [
            {"state": state, "queue": queue, "tier": tier, "n": n}
            for (state, queue, tier), n in self._deltas.items()
            if n
        ]
        self._deltas.clear()
        if deltas:
            self.later(ADD_COUNTS, packed(deltas))


@lru_cache(1024)
def _filled(sql: str, schema: str) -> str:
    return sql.replace("{s}", schema)


def packed(batch: Any) -> str:
    """A batch as one JSON text. Raises RowRefused for what JSON can't hold."""
    try:
        return orjson.dumps(batch).decode()
    except (TypeError, ValueError) as error:
        raise RowRefused(f"a row can't be stored: {error}") from None


def array(numbers: Iterable[int | None]) -> str:
    """As PostgreSQL writes an array: one text, and faster than one parameter per number."""
    return "{" + ",".join(["null" if number is None else str(number) for number in numbers]) + "}"
