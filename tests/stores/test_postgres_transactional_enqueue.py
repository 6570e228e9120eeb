"""Enqueueing inside the caller's own transaction: the job exists if and only if that commits, on a connection of any library."""

from __future__ import annotations

import sqlite3
import types
from collections.abc import Iterator
from typing import Any

import django
import django.conf
import psycopg
import pytest
import sqlalchemy
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from supervisor import Client
from supervisor.config.settings import Settings, StoreSettings
from supervisor.errors import InvalidJob, RowRefused, StoreError
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.postgres.transactional_enqueue import TransactionalEnqueue, caller_of
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import ON_POSTGRESQL, take

pytestmark = ON_POSTGRESQL


class Caller:
    """A program with a transaction of its own. It passes its `connection` to the client."""

    connection: Any

    def __init__(self, server: Any, autocommit: bool = False) -> None: ...

    def execute(self, sql: str) -> None:
        self.connection.execute(sqlalchemy.text(sql))

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


class Psycopg(Caller):
    def __init__(self, server: Any, autocommit: bool = False) -> None:
        self.connection = psycopg.connect(server.url, autocommit=autocommit, row_factory=dict_row)

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)


class SQLAlchemy(Caller):
    driver = "psycopg"

    def __init__(self, server: Any, autocommit: bool = False) -> None:
        options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        url = server.url.replace("postgresql:", f"postgresql+{self.driver}:")
        self.engine = sqlalchemy.create_engine(url, poolclass=NullPool, **options)
        self.connection = self.engine.connect()


class Psycopg2(SQLAlchemy):
    driver = "psycopg2"


class OrmSession(SQLAlchemy):
    def __init__(self, server: Any, autocommit: bool = False) -> None:
        super().__init__(server, autocommit)
        self.connection.close()
        self.connection = Session(self.engine)


class Django(Caller):
    """Outside of `atomic` Django is in autocommit."""

    def __init__(self, server: Any, autocommit: bool = False) -> None:
        if not django.conf.settings.configured:
            place = {"NAME": "postgres", "USER": "postgres", "HOST": str(server.folder)}
            django.conf.settings.configure(
                DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **place}}, LOGGING_CONFIG=None
            )
            django.setup()
        from django.db import connection, transaction

        self.connection, self.atomic = connection, None
        if not autocommit:
            self.atomic = transaction.atomic()
            self.atomic.__enter__()

    def execute(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self._end(None)

    def rollback(self) -> None:
        self._end(RuntimeError("rolled back"))

    def _end(self, error: RuntimeError | None) -> None:
        atomic, self.atomic = self.atomic, None
        if atomic is not None:
            atomic.__exit__(error and RuntimeError, error, None)

    def close(self) -> None:
        self.rollback()
        self.connection.close()


CALLERS = {"psycopg": Psycopg, "sqlalchemy": SQLAlchemy, "psycopg2": Psycopg2, "session": OrmSession, "django": Django}


@pytest.fixture
def client(factory, store) -> Client:
    return client_of(factory.server.url, factory.schema)


def client_of(url: str, schema: str) -> Client:
    return Client(Settings(store=StoreSettings(url=url, options={"schema": schema})), timeout=0.0)


@pytest.fixture(params=CALLERS)
def caller(request, factory) -> Iterator[Caller]:
    caller = CALLERS[request.param](factory.server)
    yield caller
    caller.close()


@pytest.fixture(params=CALLERS)
def autocommitting(request, factory) -> Iterator[Caller]:
    caller = CALLERS[request.param](factory.server, autocommit=True)
    yield caller
    caller.close()


@pytest.fixture
def mine(factory) -> Iterator[psycopg.Connection]:
    with psycopg.connect(factory.server.url) as mine:
        yield mine


def test_the_job_exists_once_the_transaction_commits(factory, store, client, caller):
    id = client.enqueue("mail", {"to": "me"}, queue="post", priority=3, headers={"a": 1}, connection=caller.connection)
    assert store.get(id) is None and factory.quiet(store)
    caller.commit()
    assert factory.notified(store)
    job = store.get(id)
    assert (job["handler"], job["payload"], job["queue"], job["priority"]) == ("mail", {"to": "me"}, "post", 3)
    assert (job["state"], job["headers"]) == ("ready", {"a": 1})
    assert [lease.id for lease in take(store, queue="post")] == [id]
    assert client._access._opened is None, "no connection of its own"
    factory.check()


def test_after_a_rollback_the_job_does_not_exist(factory, store, client, caller):
    caller.execute("create temporary table work(n int)")
    ids = client.enqueue_many([("mail", n) for n in range(3)], connection=caller.connection)
    caller.rollback()
    assert [store.get(id) for id in ids] == [None] * 3 and factory.quiet(store)
    factory.check()


def test_work_and_jobs_of_one_transaction_go_together(factory, store, client, caller):
    caller.execute(f'create table "{factory.schema}".work(n int)')
    ids = client.enqueue_many([("a", 1), {"handler": "b", "delay": "1h"}, ("c", 3)], connection=caller.connection)
    caller.execute(f'insert into "{factory.schema}".work values (1)')
    caller.commit()
    assert ids == sorted(ids)
    assert [(store.get(id)["handler"], store.get(id)["state"]) for id in ids] == [
        ("a", "ready"),
        ("b", "scheduled"),
        ("c", "ready"),
    ]
    assert factory.sql("select n from {s}.work").fetchall() == [(1,)]
    factory.check()


def test_in_autocommit_the_job_exists_at_once(factory, store, client, autocommitting):
    id = client.enqueue("mail", connection=autocommitting.connection)
    assert factory.notified(store)
    assert store.get(id)["state"] == "ready"


def test_a_failed_transaction_is_refused(factory, store, client, caller):
    with pytest.raises(Exception, match="division by zero"):
        caller.execute("select 1 / 0")
    with pytest.raises(StoreError, match="connection: its transaction has failed; roll it back first"):
        client.enqueue("mail", connection=caller.connection)
    caller.rollback()
    caller.commit()
    assert [*store.list_jobs()] == []


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_with_it(store, client, mine):
    kept = client.enqueue("mail", connection=mine)
    with pytest.raises(KeyError), mine.transaction():
        client.enqueue("mail", connection=mine)
        raise KeyError
    mine.commit()
    assert [job["id"] for job in store.list_jobs()] == [kept]


def test_a_session_whose_flush_failed_is_refused(factory, client):
    caller = OrmSession(factory.server)
    base = sqlalchemy.orm.declarative_base()
    table = type(
        "Work", (base,), {"__tablename__": "nowhere", "id": sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)}
    )
    caller.connection.add(table(id=1))
    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        caller.connection.flush()
    with pytest.raises(StoreError, match="its transaction has failed"):
        client.enqueue("mail", connection=caller.connection)
    caller.close()


def test_nothing_is_left_on_the_connection(client, mine):
    client.enqueue("warm", connection=mine)
    mine.commit()
    before = mine.execute("select name, setting from pg_settings order by name").fetchall()
    mine.commit()
    for _ in range(10):
        client.enqueue("mail", connection=mine)
    assert mine.info.transaction_status == TransactionStatus.INTRANS
    assert mine.execute("select name, setting from pg_settings order by name").fetchall() == before
    statements = mine.execute("select statement from pg_prepared_statements").fetchall()
    assert not [statement for (statement,) in statements if "put(" in statement]
    mine.rollback()
    assert mine.info.transaction_status == TransactionStatus.IDLE


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "SQL_ASCII"])
def test_a_payload_need_not_fit_the_encoding_of_the_connection(factory, store, client, encoding):
    text = "\u00e9 \u6f22 \U0001f600 \\u00e9 \u0000"
    with psycopg.connect(factory.server.url, client_encoding=encoding) as mine:
        id = client.enqueue("caf\u00e9", text, headers={"a": text}, connection=mine)
    job = store.get(id)
    assert (job["handler"], job["payload"], job["headers"]) == ("caf\u00e9", text, {"a": text})


def test_an_invalid_job_is_refused_before_anything_is_sent(client, mine):
    with pytest.raises(InvalidJob, match="payload: inf is not a finite number"):
        client.enqueue("mail", float("inf"), connection=mine)
    assert client.enqueue_many([], connection=mine) == []
    assert mine.info.transaction_status == TransactionStatus.IDLE


def test_many_jobs_are_several_statements_of_one_transaction(factory, store, mine):
    enqueue = TransactionalEnqueue(factory.server.url, factory.schema, store.database, characters=3_000).enqueue
    jobs = [EnqueueRow("mail", f'"{"x" * 500}"')] * 20 + [EnqueueRow("mail", f'"{"y" * 5_000}"')]
    ids = enqueue(mine, jobs)
    mine.commit()
    assert ids == sorted(set(ids)) and len([*store.list_jobs()]) == 21
    mine.autocommit = True
    with pytest.raises(StoreError, match="on a connection in autocommit: open a transaction"):
        enqueue(mine, jobs)
    with mine.transaction():
        enqueue(mine, jobs)
    assert len([*store.list_jobs()]) == 42


# --- which connections


def test_the_same_database_by_another_address(factory, store):
    other_way = client_of(factory.server.url.replace("?host=", "?host=/./"), factory.schema)
    with psycopg.connect(factory.server.url) as mine:
        id = other_way.enqueue("mail", connection=mine)
    assert store.get(id) is not None
    other_way.close()


def test_another_database_is_refused_though_it_has_such_a_schema(factory, store, client):
    factory.admin.execute("create database elsewhere")
    url = factory.server.url.replace("/postgres?", "/elsewhere?")
    try:
        PostgresStore(url, schema=factory.schema, create=True).close()
        with psycopg.connect(url) as theirs:
            with pytest.raises(StoreError, match="leads to another database than the store"):
                client.enqueue("mail", connection=theirs)
            assert theirs.info.transaction_status == TransactionStatus.IDLE
        client.close()
    finally:
        factory.admin.execute("drop database elsewhere with (force)")


def test_a_missing_schema_is_named(factory, mine):
    with pytest.raises(StoreError, match="no job store in the schema nowhere of its database"):
        client_of(factory.server.url, "nowhere").enqueue("mail", connection=mine)
    assert mine.execute("select 1").fetchone() == (1,), "nothing has failed in its transaction"


def status_of(caller: Caller) -> TransactionStatus:
    return TransactionStatus(caller_of(caller.connection).driver.info.transaction_status)


def test_a_refused_connection_is_left_as_it_was(factory, store, caller):
    nowhere = client_of(factory.server.url, "nowhere")
    with pytest.raises(StoreError, match="no job store in the schema nowhere"):
        nowhere.enqueue("mail", connection=caller.connection)
    assert status_of(caller) == TransactionStatus.IDLE
    if type(caller.connection) is sqlalchemy.Connection:
        assert not caller.connection.in_transaction()
    caller.execute("create temporary table work(n int)")
    with pytest.raises(StoreError, match="no job store in the schema nowhere"):
        nowhere.enqueue("mail", connection=caller.connection)
    assert status_of(caller) == TransactionStatus.INTRANS
    caller.execute("insert into work values (1)")
    caller.commit()


def test_a_refused_connection_in_autocommit_stays_in_it(factory, store, autocommitting):
    with pytest.raises(StoreError, match="no job store in the schema nowhere"):
        client_of(factory.server.url, "nowhere").enqueue("mail", connection=autocommitting.connection)
    autocommitting.execute("select 1")
    assert status_of(autocommitting) == TransactionStatus.IDLE


def test_a_connection_that_is_refused_for_its_jobs_is_left_as_it_was(factory, store, mine):
    with pytest.raises(RowRefused):
        TransactionalEnqueue(factory.server.url, factory.schema, store.database).enqueue(
            mine, [EnqueueRow("mail", "\udc80")]
        )
    assert mine.info.transaction_status == TransactionStatus.IDLE


def test_a_closed_connection_is_refused(factory, client):
    caller = SQLAlchemy(factory.server)
    mine = psycopg.connect(factory.server.url)
    for connection in (mine, caller.connection):
        connection.close()
        with pytest.raises(StoreError, match="connection: it is closed"):
            client.enqueue("mail", connection=connection)


class _Async:
    async def exec_driver_sql(self) -> None: ...

    dialect = None


@pytest.mark.parametrize(
    "other",
    [
        object(),
        "postgresql://",
        sqlite3.connect(":memory:"),
        sqlalchemy.create_engine("sqlite://"),
        _Async(),
        types.SimpleNamespace(vendor="sqlite", ensure_connection=print),
    ],
    ids=lambda it: type(it).__name__,
)
def test_a_value_that_is_no_such_connection_is_refused(client, other):
    with pytest.raises(StoreError, match="connection: expected a psycopg connection, a SQLAlchemy"):
        client.enqueue("mail", connection=other)


def test_a_connection_of_sqlalchemy_to_something_else_is_refused(client):
    error = r"got sqlalchemy.*Connection with sqlite\+pysqlite"
    with sqlalchemy.create_engine("sqlite://").connect() as other, pytest.raises(StoreError, match=error):
        client.enqueue("mail", connection=other)


def test_only_a_postgresql_store_takes_jobs_inside_other_transactions(tmp_path, mine):
    client = Client(f"sqlite:///{tmp_path}/jobs.db", create=True)
    with pytest.raises(
        StoreError, match="only a PostgreSQL store takes jobs inside other transactions; this is sqlite"
    ):
        client.enqueue("mail", connection=mine)


# --- roles


@pytest.fixture
def role(factory, store) -> Iterator[str]:
    name = f"app {factory.schema}"
    factory.admin.execute(f'create role "{name}" login')
    yield name
    factory.admin.execute(f'drop owned by "{name}"; drop role "{name}"')


def test_a_role_may_be_granted_to_enqueue_and_nothing_else(factory, store, client, role):
    with psycopg.connect(factory.server.url) as theirs:
        theirs.execute(f'set role "{role}"')
        with pytest.raises(StoreError, match=f"its role {role} may not enqueue; expected: grant usage on schema"):
            client.enqueue("mail", connection=theirs)
        factory.sql(f'grant usage on schema {{s}} to "{role}"')
        with pytest.raises(StoreError, match="may not enqueue"):
            client.enqueue("mail", connection=theirs)
        factory.sql(f'grant execute on function {{s}}.put to "{role}"')
        id = client.enqueue("mail", connection=theirs)
        theirs.commit()
        assert store.get(id)["state"] == "ready"
        for sql in (
            "select payload from {s}.jobs",
            "delete from {s}.jobs",
            "insert into {s}.jobs(handler) values ('x')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                theirs.execute(sql.replace("{s}", f'"{factory.schema}"'))
            theirs.rollback()
