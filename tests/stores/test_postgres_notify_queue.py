"""The server's queue of notifications is full while a session listens and stays in a transaction: what notifies is done all the same."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

import psycopg
import pytest

from supervisor import Client
from supervisor.config.settings import Settings, StoreSettings
from supervisor.errors import StoreUnavailable
from tests.stores.factories import PostgresFactory, put, take
from tests.stores.postgres_server import FAST, Server


@pytest.fixture(scope="module")
def small_server():
    server = Server({**FAST, "max_notify_queue_pages": "64"})
    yield server
    server.remove()


@pytest.fixture
def factory(tmp_path, small_server):
    factory = PostgresFactory(tmp_path, on=small_server)
    yield factory
    factory.close()


@pytest.fixture
def stuck_listener(factory):
    """The queue keeps all that this session has not read, which it does only between its transactions."""
    with factory.server.connect() as listener:
        listener.execute("listen something_else")
        yield listener


def fill_queue(factory, listener):
    listener.execute("begin")
    while usage(factory) < 1:
        with suppress(psycopg.errors.ProgramLimitExceeded):
            factory.sql("select pg_notify('something_else', repeat('x', 7900))")


def usage(factory):
    return factory.sql("select pg_notification_queue_usage()").fetchone()[0]


def until_logged(caplog, level):
    deadline = time.monotonic() + 10
    while not (found := [it for it in caplog.records if it.name.endswith("notifier") and it.levelno == level]):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


@pytest.mark.parametrize("n", [1, 3, 300])
def test_jobs_are_enqueued_while_the_queue_is_full(factory, store, stuck_listener, n):
    fill_queue(factory, stuck_listener)
    client = factory.open()
    ids = put(client, *["mail"] * n)
    assert [lease.id for lease in take(store, n)] == ids
    assert factory.quiet(store)


def test_a_queue_is_paused_while_the_queue_is_full(factory, store, stuck_listener):
    fill_queue(factory, stuck_listener)
    factory.open().pause("mail", True)
    assert store.paused() == {"mail"}


def test_jobs_in_the_transaction_of_a_caller_and_by_plain_sql_are_enqueued_while_the_queue_is_full(
    factory, store, stuck_listener
):
    fill_queue(factory, stuck_listener)
    settings = Settings(store=StoreSettings(url=factory.server.url, options={"schema": factory.schema}))
    with Client(settings) as client, psycopg.connect(factory.server.url) as connection:
        ids = [client.enqueue("mail", connection=connection)]
        ids += connection.execute(f"""select "{factory.schema}".enqueue('mail')""").fetchone()
        ids += connection.execute(
            f"""insert into "{factory.schema}".jobs(handler) values ('mail') returning id"""
        ).fetchone()
        connection.execute(f"""update "{factory.schema}".jobs set queue = 'other' where id = %s""", ids[-1:])
    assert [lease.id for queue in ("default", "other") for lease in take(store, queue=queue)] == ids


def test_a_supervisor_logs_once_that_the_queue_is_full_and_once_that_it_has_room_again(
    factory, store, stuck_listener, caplog
):
    caplog.set_level(logging.INFO)
    other = factory.joined("other")
    fill_queue(factory, stuck_listener)
    store.notify()
    (full,) = until_logged(caplog, logging.WARNING)
    assert "its queue of notifications is almost full" in full.getMessage()
    store.notify()
    stuck_listener.execute("rollback")
    while usage(factory) >= 0.9:
        time.sleep(0.002)
    factory.clear_notifications(other)
    store.notify()
    assert factory.notified(other)
    assert len(until_logged(caplog, logging.INFO)) == len(until_logged(caplog, logging.WARNING)) == 1


def test_a_commit_that_finds_the_queue_full_is_to_be_tried_again(factory, store, stuck_listener):
    """It may have filled after the look at it."""
    fill_queue(factory, stuck_listener)
    with pytest.raises(StoreUnavailable, match="NOTIFY queue"), store.transaction():
        store.connection.run("select pg_notify('x', '')")
    assert put(store) == [1]
