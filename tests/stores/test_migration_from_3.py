"""A store of version 3 becomes one of this version when it is opened. It has jobs that the limit of their handler holds back, jobs with
keys and groups, and a workflow."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from supervisor.stores.job_limits import Limit
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.sqlite.store import SqliteStore
from tests.stores import test_postgres_migrations, test_sqlite_migrations
from tests.stores.factories import Clock, PostgresFactory, success
from tests.stores.test_limits import claim, handlers, ids_of
from tests.stores.test_postgres_migrations import catalog_of
from tests.stores.test_sqlite_migrations import schema_of

DUMPS = Path(__file__).parent / "version_3"
HELD_BACK = [2, 3]
REST = [5, 7, 8, 9, 10]
LIMIT = handlers(mail=Limit(running=1))


@pytest.fixture
def sqlite(tmp_path, monkeypatch):
    monkeypatch.setattr(test_sqlite_migrations, "DUMP", DUMPS / "sqlite.sql")
    test_sqlite_migrations.load(tmp_path / "jobs.db")
    clock = Clock()
    clock.now = 1_790_000_000.0
    with closing(SqliteStore(tmp_path / "jobs.db", clock=clock)) as store:
        yield store
        store.leave()


@pytest.fixture
def factory(tmp_path, monkeypatch):
    monkeypatch.setattr(test_postgres_migrations, "DUMP", DUMPS / "postgres.sql")
    factory = PostgresFactory(tmp_path, schema="supervisor")
    test_postgres_migrations.load(factory)
    yield factory
    factory.close()


@pytest.fixture
def postgresql(factory):
    with closing(PostgresStore(factory.server.url, schema="supervisor")) as store:
        yield store
        store.leave()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request):
    return request.getfixturevalue(request.param)


def test_its_schema_is_that_of_a_new_store(tmp_path, sqlite):
    SqliteStore(tmp_path / "new.db", create=True).close()
    assert schema_of(tmp_path / "jobs.db") == schema_of(tmp_path / "new.db")


def test_its_catalog_is_that_of_a_new_store(factory):
    PostgresStore(factory.server.url, schema="supervisor").close()
    migrated = catalog_of(factory)
    factory.sql("drop schema {s} cascade")
    PostgresStore(factory.server.url, schema="supervisor", create=True).close()
    assert migrated == catalog_of(factory)


def test_its_jobs_go_on(store):
    store.join("later", "host", 1)
    assert store.repair() == ""
    found = []
    for _ in range(10):
        claimed = claim(store, LIMIT)
        assert len({*ids_of(claimed)} & {*HELD_BACK}) <= 1
        found += ids_of(claimed)
        store.settle([success(lease) for lease in claimed.leases])
    assert sorted(found) == [*HELD_BACK, 5, 6, 7, 8, 9, 10, 11]


def test_what_a_limit_has_held_back_is_released_without_it(store):
    store.join("later", "host", 1)
    assert store.release_held(None, None, 10) == {"default"}
    assert sorted(ids_of(claim(store, handlers(other=Limit(running=1)), 20))) == sorted([*HELD_BACK, *REST])
