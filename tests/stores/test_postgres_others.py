"""Other users of the same database: roles with settings of their own, and functions that only bear the names of PostgreSQL's."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.postgres.transactional_enqueue import TransactionalEnqueue
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import ON_POSTGRESQL, again, put, success, take, take_one

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
    ("setting", "value"), [("array_nulls", "off"), ("default_transaction_read_only", "on"), ("search_path", "nowhere")]
)
def test_a_role_with_settings_of_its_own_changes_nothing(factory, setting, value):
    factory.open()
    with role_with(factory, setting, value):
        store = factory.joined("one")
        put(store, "a", "b")
        won, failed = take(store)
        assert store.settle([success(won, None, None), again(failed)]) == []


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
