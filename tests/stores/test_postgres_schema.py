"""The schema: made once by whichever program opens it first, refused if it is newer, and under any name."""

from __future__ import annotations

import threading

import psycopg
import pytest

from supervisor.errors import StoreBroken, StoreError, StoreMissing
from supervisor.jobs import MAX_RETRIES, Backoff
from supervisor.stores.postgres.schema import VERSION
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.transfer import TransferRecord
from supervisor.text.units import MAX_SECONDS
from tests.stores.at_once import all_at_once
from tests.stores.factories import ON_POSTGRESQL, PAST_ALL_LIMITS, UNREADABLE_OPTIONS, put, states, take

pytestmark = ON_POSTGRESQL


def test_a_missing_schema_is_made_only_for_a_store_that_may_make_it(factory):
    with pytest.raises(StoreMissing, match=f"no job store in its schema {factory.schema} yet"):
        PostgresStore(factory.server.url, schema=factory.schema)
    assert factory.sql("select to_regnamespace(%s)", f'"{factory.schema}"').fetchone() == (None,)
    factory.open()
    PostgresStore(factory.server.url, schema=factory.schema).close()


def test_a_store_that_was_dropped_while_it_was_open_is_named_and_not_made_again(factory):
    store = factory.open()
    put(store)
    factory.sql("drop schema {s} cascade")
    for call in (lambda: put(store), lambda: put(store, "a", "b"), store.stats, lambda: store.join("one", "host", 1)):
        with pytest.raises(StoreBroken, match=r"was the schema of the store dropped\? restore it"):
            call()
    assert factory.sql("select to_regnamespace(%s)", f'"{factory.schema}"').fetchone() == (None,)


def test_many_programs_that_open_an_empty_database_at_once_all_succeed(factory):
    together, stores = threading.Barrier(6, timeout=30.0), []

    def open_one():
        together.wait()
        stores.append(PostgresStore(factory.server.url, schema=factory.schema, create=True))

    all_at_once(*[open_one] * 6)
    assert factory.sql("select version from {s}.version").fetchall() == [(VERSION,)]
    assert [put(store) for store in stores] == [[1], [2], [3], [4], [5], [6]]
    for store in stores:
        store.close()


def test_a_store_that_could_not_be_made_whole_leaves_nothing(factory):
    factory.sql("create schema {s}")
    factory.sql("create table {s}.supervisors()")
    with pytest.raises(StoreError, match="already exists"):
        factory.open()
    tables = "select relname from pg_class where relnamespace = %s::regnamespace"
    assert factory.sql(tables, f'"{factory.schema}"').fetchall() == [("supervisors",)]


def test_a_newer_schema_is_refused_by_name(factory):
    factory.open()
    factory.sql("update {s}.version set version = 99")
    with pytest.raises(StoreError, match=f"schema {factory.schema} is version 99, of a newer job-supervisor"):
        PostgresStore(factory.server.url, schema=factory.schema, create=True)


@pytest.mark.parametrize("schema", ["", "x" * 51, "a\nb", "pg_jobs", "{s}"])
def test_a_name_that_postgresql_would_cut_or_refuse_is_refused(factory, schema):
    with pytest.raises(StoreError, match=r"store\.schema: .*name"):
        PostgresStore(factory.server.url, schema=schema, create=True)


def test_a_database_that_cannot_hold_every_text_is_refused(factory):
    factory.admin.execute("create database narrow template template0 encoding 'LATIN1' locale 'C'")
    try:
        url = factory.server.url.replace("/postgres?", "/narrow?")
        with pytest.raises(StoreMissing) as missing:
            PostgresStore(url, schema=factory.schema)
        assert "encoding UTF8, not LATIN1" in missing.value.obstacle
        with pytest.raises(StoreError, match="encoding UTF8, not LATIN1"):
            PostgresStore(url, schema=factory.schema, create=True)
    finally:
        factory.admin.execute("drop database narrow with (force)")


def test_a_role_that_may_not_make_the_store_is_named_with_the_right_that_it_lacks(factory):
    factory.admin.execute("create role poor login")
    url = factory.server.url.replace("postgres@", "poor@")
    try:
        with pytest.raises(StoreMissing) as missing:
            PostgresStore(url, schema=factory.schema)
        assert "run `grant create on database postgres to poor`" in missing.value.obstacle
        with pytest.raises(StoreError, match="role poor may not create a schema in database postgres"):
            PostgresStore(url, schema=factory.schema, create=True)
        factory.sql("create schema {s}")
        factory.sql("grant usage on schema {s} to poor")
        with pytest.raises(StoreError, match=f"role poor may not create tables in schema {factory.schema}"):
            PostgresStore(url, schema=factory.schema, create=True)
        factory.sql("grant create on schema {s} to poor")
        PostgresStore(url, schema=factory.schema, create=True).close()
    finally:
        factory.sql("drop schema {s} cascade")
        factory.admin.execute("drop role poor")


def test_jobs_inserted_with_plain_sql_are_counted_and_claimed_and_notify(factory):
    store = factory.joined("one")
    ready, later = (
        factory.sql(
            "insert into {s}.jobs(handler, payload, due_at) values ('mail', '{}', %s) returning id", due
        ).fetchone()[0]
        for due in (factory.clock.microseconds, factory.clock.microseconds + 5_000_000)
    )
    assert factory.notified(store)
    assert states(store, [ready, later]) == ["ready", "scheduled"]
    factory.check()
    assert [lease.id for lease in take(store)] == [ready]


@pytest.mark.parametrize("schema", ["a$$b", "a'b", 'a"b', "a\\b", "%s", "\u00e9" * 25, "a b; drop table x --"])
def test_every_other_name_may_be_that_of_a_schema(factory, schema):
    store = PostgresStore(factory.server.url, schema=schema, create=True)
    try:
        store.close_for_transfer(transfer_record := TransferRecord("id", f"a store in {schema}", "elsewhere"))
        store.reopen(transfer_record)
        store.join("one", "host", 1)
        put(store)
        put(store, *["many"] * 300)
        store.connection.run("insert into {s}.jobs(handler) values ('mail')")
        assert store.connection.value("select {s}.enqueue('mail')") == 303
        assert len(take(store, 1000)) == 303
    finally:
        store.connection.run("drop schema {s} cascade")
        store.close()


@pytest.mark.parametrize("text", [*UNREADABLE_OPTIONS, '["\\u0000",null,null]'])
def test_options_that_no_claim_could_read_are_refused(factory, text):
    factory.open()
    with pytest.raises(psycopg.Error, match=r"claimable|Unicode"):
        factory.sql("insert into {s}.jobs(handler, options) values ('mail', %s)", text)


@pytest.mark.parametrize(("column", "value"), PAST_ALL_LIMITS.items())
def test_numbers_past_which_sums_overflow_are_refused(factory, column, value):
    factory.open()
    with pytest.raises(psycopg.Error, match=f"claimable|{column}: expected|integer out of range"):
        factory.sql(f"insert into {{s}}.jobs(handler, {column}) values ('mail', %s)", value)


def test_the_options_of_any_job_are_taken(factory):
    store = factory.open()
    for backoff in (None, Backoff(), Backoff(0.0, 1.0, MAX_SECONDS, "none"), Backoff(jitter=0.2)):
        for timeout in (None, 0.0, 1e-9, MAX_SECONDS):
            for max_retries in (None, 0, MAX_RETRIES):
                put(store, max_retries=max_retries, timeout=timeout, backoff=backoff)
