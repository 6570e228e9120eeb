"""Other users of the same database: roles with settings of their own, and functions that only bear the names of PostgreSQL's."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from supervisor.errors import StoreError
from supervisor.stores.postgres.counts import FOLDED_FROM
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.postgres.transactional_enqueue import TransactionalEnqueue
from supervisor.stores.records import EnqueueRow
from supervisor.stores.transfer import TransferRecord
from tests.stores.factories import ON_POSTGRESQL, again, put, success, take, take_one, waiting

pytestmark = ON_POSTGRESQL

ROWS = [EnqueueRow("mail", '{"to":"\u00e9 \u65e5"}')]


@contextlib.contextmanager
def role_with(factory, setting, value):
    factory.sql(f"alter role postgres set {setting} = {value}")
    try:
        yield
    finally:
        factory.sql(f"alter role postgres reset {setting}")


@pytest.mark.parametrize("n", [1, 300])
def test_texts_are_stored_as_given_whatever_the_client_encoding_of_the_role(factory, n, monkeypatch):
    store = factory.open()
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with role_with(factory, "client_encoding", "LATIN1"):
        (id, *_) = factory.open().enqueue(ROWS * n)
    assert store.get(id)["payload"] == {"to": "\u00e9 \u65e5"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("array_nulls", "off"),
        ("default_transaction_read_only", "on"),
        ("search_path", "nowhere"),
        ("statement_timeout", "1"),
        ("idle_in_transaction_session_timeout", "1"),
    ],
)
def test_a_role_with_settings_of_its_own_changes_nothing(factory, setting, value):
    factory.open()
    with role_with(factory, setting, value):
        store = factory.joined("one")
        put(store, "a", "b")
        won, failed = take(store)
        assert store.settle([success(won, None, None), again(failed)]) == []


AT_COMMIT = (
    "create table {s}.at_commit(durable text, isolation text)",
    """create function {s}.note() returns trigger language plpgsql as $$ begin
      insert into {s}.at_commit
      values (current_setting('synchronous_commit'), current_setting('transaction_isolation'));
      return null; end $$""",
    """create constraint trigger at_commit after insert or update on {s}.jobs deferrable initially deferred
      for each row execute function {s}.note()""",
)


@pytest.mark.parametrize("listen", [True, False])
def test_every_commit_is_durable_and_read_committed_whatever_the_role_has(factory, listen):
    factory.open()
    for statement in AT_COMMIT:
        factory.sql(statement)
    with (
        role_with(factory, "synchronous_commit", "off"),
        role_with(factory, "default_transaction_isolation", "'serializable'"),
    ):
        store = PostgresStore(factory.server.url, schema=factory.schema, listen=listen)
        factory._opened.append(store)
        store.join("one", "host", 1)
        for n in (1, 2, 300):
            put(store, *["mail"] * n)
        store.settle([success(take_one(store))])
        store.cancel([take_one(store).id])
    assert factory.sql("select distinct durable, isolation from {s}.at_commit").fetchall() == [("on", "read committed")]


def test_a_publication_of_all_tables_refuses_nothing(factory):
    """As of tools for change data capture. The server then refuses to delete or update rows that it can't identify."""
    store = factory.joined("one")
    factory.sql("create publication everything for all tables")
    try:
        for _ in range(FOLDED_FROM + 20):  # so many that a look folds the counts
            put(store, "mail")
        waiting(store)
        assert factory.sql("select count(*) from {s}.counts").fetchone() == (1,)
        assert store.settle([success(take_one(store))]) == []
        store.cancel(range(2, FOLDED_FROM + 21))
        store.leave()
        store.close_for_transfer(TransferRecord("1", "elsewhere", "place", False))
        store.note_arrival(TransferRecord("1", "elsewhere", "place", False))
    finally:
        factory.sql("drop publication everything")


def test_a_closed_store_refuses_jobs_although_the_triggers_of_a_session_are_off(factory):
    store = factory.open()
    store.close_for_transfer(TransferRecord("1", "elsewhere", "place", False))
    store.connection.run("set session_replication_role = replica")
    for n in (1, 2, 300):
        with pytest.raises(StoreError, match="elsewhere"):
            put(store, *["mail"] * n)
    with pytest.raises(StoreError, match="elsewhere"):
        store.join("one", "host", 1)


def test_the_function_checks_jobs_whatever_strings_mean_to_the_role(factory):
    """Functions are compiled at their first use in a session."""
    store = factory.open()
    with (
        role_with(factory, "standard_conforming_strings", "off"),
        psycopg.connect(factory.server.url, autocommit=True) as theirs,
    ):
        call = f"""select "{factory.schema}".enqueue('mail', %s)"""
        (id,) = theirs.execute(call, [r'{"\u00e9": [1e5, 12345678901234567890.5]}']).fetchone()
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="surrogate"):
            theirs.execute(call, [r'"\ud800"'])
    assert store.get(id)["payload"] == {"\u00e9": [1e5, 12345678901234567890.5]}


def test_a_url_with_a_search_path_changes_nothing(factory):
    factory.open()
    other = PostgresStore(f"{factory.server.url}&options=-csearch_path%3Dpublic", schema=factory.schema)
    assert other.connection.value("select current_setting('search_path')") == "pg_catalog"
    other.close()


@pytest.fixture
def impostors(factory):
    """In a schema that anybody may write to: a better match than what PostgreSQL has itself, or found before it."""
    before = factory.sql("show search_path").fetchone()[0]
    factory.sql("create schema theirs")
    factory.sql("set search_path = theirs, pg_catalog")
    factory.sql("create table theirs.called(what text)")
    for name, arguments, result in (
        ("nextval", "text", "bigint"), ("statement_timeout", "", "int"), ("current_database", "", "name"), ("multiply", "numeric, numeric", "numeric"),
        ("pg_notify", "text, text", "int"),
    ):  # fmt: skip
        factory.sql(
            f"""create function theirs.{name}({arguments}) returns {result} language plpgsql as
            $$ begin insert into theirs.called values ('{name}'); return null; end $$"""
        )
    factory.sql("create operator theirs.* (leftarg = numeric, rightarg = numeric, function = theirs.multiply)")
    factory.sql("create domain theirs.json as int")
    with role_with(factory, "search_path", "theirs, pg_catalog"):
        yield
    factory.sql(f"set search_path = {before}")
    factory.sql("drop schema theirs cascade")


@pytest.mark.usefixtures("impostors")
@pytest.mark.parametrize("listen", [True, False])
def test_functions_and_operators_of_others_are_not_called(factory, listen):
    """A schema that is made, and used, by one whose search path leads to them; with the clock that it has."""
    store = PostgresStore(factory.server.url, schema=factory.schema, create=True, listen=listen)
    factory._opened.append(store)
    store.join("one", "host", 1)
    put(store)
    put(store, "a", "b")
    put(store, *["many"] * 300)
    factory.sql("insert into {s}.jobs(handler) values ('mail')")
    assert store.settle([success(take_one(store))]) == []
    with psycopg.connect(factory.server.url) as theirs:
        TransactionalEnqueue(f"{factory.server.url}&application_name=x", factory.schema, store.database).enqueue(
            theirs, ROWS
        )
        theirs.execute(f"select \"{factory.schema}\".enqueue('mail')")
    assert factory.sql("select what from theirs.called").fetchall() == []
