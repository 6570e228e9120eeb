"""Enqueue jobs inside a caller's transaction, on the caller's connection: nothing is begun, ended or left changed on it.

Connections of SQLAlchemy and Django are recognised by their methods, and used through their own calls, so that these libraries
know of the transaction; neither is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Protocol
from weakref import WeakSet

import orjson
import psycopg
from psycopg import sql as quoting
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from supervisor.errors import StoreError
from supervisor.stores.postgres.connection import packed
from supervisor.stores.postgres.enqueue import in_part, split_batch, values_of
from supervisor.stores.postgres.transfer import DATABASE
from supervisor.stores.records import EnqueueBatch, EnqueueRow
from supervisor.stores.unique import decoded_ids
from supervisor.text.redaction import without_secrets

MAX_CHARACTERS = 16_000_000
EXPECTED = """a psycopg connection, a SQLAlchemy Connection or Session, or Django's connection, none of them async"""

# All names are in full: the search path is the caller's.
FIND_PUT = """
  select namespace.oid is not null and put.oid is not null,
    coalesce(pg_catalog.has_schema_privilege(namespace.oid, 'usage')
      and pg_catalog.has_function_privilege(put.oid, 'execute'), false), current_user
  from (select) as it left join pg_catalog.pg_namespace as namespace on nspname operator(pg_catalog.=) %s
    left join pg_catalog.pg_proc as put
      on pronamespace operator(pg_catalog.=) namespace.oid and proname operator(pg_catalog.=) 'put'"""


class Caller(Protocol):
    """The caller's connection. `driver` is the connection of the driver beneath it."""

    driver: Any

    def check(self) -> None:
        """Raise StoreError if nothing can be executed on the connection."""

    def fetch_one(self, sql: str, *parameters: str) -> Sequence[Any]:
        """Return the one row; errors are those of the caller's own library."""

    def end(self) -> None:
        """End what `fetch_one` has begun on a connection that was in no transaction."""


class TransactionalEnqueue:
    """Enqueues on connections of callers, from any thread. `database_of_store` is called only if the address of a connection is not
    written as in `url`. `characters` is the limit of one statement; several need a transaction to be all or nothing."""

    def __init__(
        self,
        url: str,
        schema: str,
        database_of_store: Callable[[], tuple[int, int]],
        characters: int = MAX_CHARACTERS,
    ) -> None:
        self.shown, self._schema, self._database_of_store = without_secrets(url), schema, database_of_store
        self._characters = characters
        given = conninfo_to_dict(url)
        host, port, database = (str(given.get(key) or "") for key in ("host", "port", "dbname"))
        self._address = (host, port or "5432", database)
        quoted = quoting.Identifier(schema).as_string(None).replace("%", "%%")
        self._put = f"select {quoted}.put(%s::pg_catalog.json)"
        self._known: WeakSet[Any] = WeakSet()

    def enqueue(self, connection: Any, rows: Sequence[EnqueueRow]) -> list[int]:
        """Enqueue the rows, and return their ids in order. The jobs exist if and when the caller's transaction commits. Raises
        JobExists; the caller's transaction can go on then."""
        if not rows:
            return []
        caller = caller_of(connection)
        caller.check()
        idle = _is_idle(caller.driver)
        try:
            parts = self._prepare(caller, rows)
            texts = [_text_of(part, ()) for part in parts]  # all, so that a row that is refused leaves nothing behind
        except StoreError:
            if idle:
                caller.end()
            raise
        ids: list[int] = []
        for part, text in zip(parts, texts, strict=True):
            has_parents = any(kind.extras is not None and kind.extras.after for kind in part.kinds)
            batch = _text_of(part, ids) if ids and has_parents else text
            ids += decoded_ids(part, caller.fetch_one(self._put, batch)[0])
        return ids

    def _prepare(self, caller: Caller, rows: Sequence[EnqueueRow]) -> list[EnqueueBatch]:
        """Return the parts of the batch, each for one call of `put`. Raises StoreError if the connection or the jobs are refused."""
        if caller.driver not in self._known:
            self._check_store(caller)
            self._known.add(caller.driver)
        parts = split_batch(rows, self._characters)
        if len(parts) > 1 and not _in_transaction(caller.driver):
            raise StoreError(
                f"connection: more than {self._characters / 10**6:g} MB of jobs at once, on a connection in autocommit: "
                "open a transaction, so that they are all enqueued or none is"
            )
        if len(parts) > 1 and any(kind.extras and kind.extras.on_conflict == "reject" for kind in parts[0].kinds):
            raise StoreError(
                f'connection: more than {self._characters / 10**6:g} MB of jobs at once, some with on_conflict="reject", which '
                "refuses all of them or none: enqueue fewer at once"
            )
        return parts

    def _check_store(self, caller: Caller) -> None:
        """Raise StoreError unless the connection leads to the store's database, and its role may enqueue there."""
        if not self._is_written_as(caller.driver) and tuple(caller.fetch_one(DATABASE)) != self._database_of_store():
            raise StoreError(f"connection: it leads to another database than the store, {self.shown}")
        exists, may_put, user = caller.fetch_one(FIND_PUT, self._schema)
        if not exists:
            raise StoreError(
                f"connection: no job store in the schema {self._schema} of its database ({self.shown}) yet"
            )
        if not may_put:
            raise StoreError(
                f"connection: its role {user} may not enqueue; expected: grant usage on schema {self._schema} and "
                f"execute on function {self._schema}.put to {user}"
            )

    def _is_written_as(self, driver: Any) -> bool:
        info = driver.info
        return (info.host, str(info.port), info.dbname) == self._address


def _text_of(part: EnqueueBatch, ids: Sequence[int]) -> str:
    """Return the part as `put` takes it, if the parts before have these ids. Raises RowRefused."""
    return _in_ascii(packed([values_of(row) for row in in_part(part, ids)]))


def caller_of(connection: Any) -> Caller:
    if isinstance(connection, psycopg.Connection):
        return _Psycopg(connection)
    if _has(connection, "get_bind", "connection", "is_active"):  # a SQLAlchemy Session
        if not connection.is_active:
            raise _failed()
        connection = connection.connection()  # the one that its transaction is on
    if _has(connection, "exec_driver_sql", "dialect"):
        return _SQLAlchemy(connection)
    if _has(connection, "ensure_connection", "vendor"):
        return _Django(connection)
    raise _unfit(f"expected {EXPECTED}; got {_kind(connection)}")


class _Psycopg:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.driver = connection

    def check(self) -> None:
        _check_driver(self.driver)

    def fetch_one(self, sql: str, *parameters: str) -> Sequence[Any]:
        with psycopg.Cursor(self.driver, row_factory=tuple_row) as cursor:
            row = cursor.execute(sql.encode(), parameters, prepare=False).fetchone()
        assert row is not None
        return row

    def end(self) -> None:
        self.driver.rollback()


class _SQLAlchemy:
    def __init__(self, connection: Any) -> None:
        dialect = connection.dialect
        if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "psycopg2"):
            raise _unfit(f"expected {EXPECTED}; got {_kind(connection)} with {dialect.name}+{dialect.driver}")
        if connection.closed or connection.invalidated:
            raise _unfit("it is closed")
        transaction = connection.get_nested_transaction() or connection.get_transaction()
        if transaction is not None and not transaction.is_active:
            raise _failed()
        self._connection, self._begun = connection, transaction is not None
        self.driver = connection.connection.driver_connection

    def check(self) -> None:
        _check_driver(self.driver)

    def fetch_one(self, sql: str, *parameters: str) -> Sequence[Any]:
        row: Sequence[Any] = self._connection.exec_driver_sql(sql, parameters).one()
        return row

    def end(self) -> None:
        ours = None if self._begun else self._connection.get_transaction()
        (ours or self.driver).rollback()


class _Django:
    def __init__(self, connection: Any) -> None:
        if connection.vendor != "postgresql":
            raise _unfit(f"expected {EXPECTED}; got Django's connection to {connection.vendor}")
        if connection.in_atomic_block and (connection.needs_rollback or connection.closed_in_transaction):
            raise _failed()
        connection.ensure_connection()
        self._connection = connection
        self.driver = connection.connection

    def check(self) -> None:
        _check_driver(self.driver)

    def fetch_one(self, sql: str, *parameters: str) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            row: Sequence[Any] = cursor.fetchone()
        return row

    def end(self) -> None:
        self.driver.rollback()  # inside `atomic` too: the next statement begins anew


def _check_driver(driver: Any) -> None:
    if driver.closed:
        raise _unfit("it is closed")
    if driver.info.transaction_status == TransactionStatus.INERROR:
        raise _failed()


def _in_ascii(text: str) -> str:
    """Return the same JSON in ASCII: the encoding of the caller's connection may not have all characters."""
    return text if text.isascii() else json.dumps(orjson.loads(text))


def _in_transaction(driver: Any) -> bool:
    return not driver.autocommit or not _is_idle(driver)


def _is_idle(driver: Any) -> bool:
    return bool(driver.info.transaction_status == TransactionStatus.IDLE)


def _failed() -> StoreError:
    return _unfit("its transaction has failed; roll it back first")


def _unfit(why: str) -> StoreError:
    return StoreError(f"connection: {why}")


def _has(value: Any, *names: str) -> bool:
    return all(hasattr(value, name) and not iscoroutinefunction(getattr(value, name)) for name in names)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
