"""Who rings is heard within milliseconds, and again after the connection was lost; behind a pooler nobody listens."""

from __future__ import annotations

import os
import resource
import threading
import time

import pytest

from supervisor import Client
from supervisor.stores.postgres.store import PostgresStore
from tests.stores.factories import NEAR_AND_FAR, put, release, success, take, take_one
from tests.stores.test_client_forked import in_child

pytestmark = NEAR_AND_FAR


def listeners(factory):
    return [
        pid
        for (pid,) in factory.sql("select pid from pg_stat_activity where query like 'listen%%' and query like %s", f"%{factory.schema}.bell%")
    ]  # fmt: skip


def test_an_enqueue_rings_with_its_commit_and_not_before(factory, store):
    client = factory.open()
    with client.transaction():
        put(client)
        client.write_counts()
        client.run("select 1")
        assert factory.quiet(store)
    began = time.monotonic()
    assert factory.notified(store)
    assert time.monotonic() - began < 0.5


def test_the_descriptor_stays_the_same_and_rings_after_the_connection_came_back(factory, store):
    bell = store.notification_fd()
    (before,) = listeners(factory)
    factory.sql("select pg_terminate_backend(%s)", before)
    assert factory.notified(store)
    factory.clear_notifications(store)
    assert store.notification_fd() == bell
    assert listeners(factory) not in ([], [before])
    put(factory.open())
    assert factory.notified(store)


def test_a_bell_is_heard_however_many_files_are_open(factory):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        many = factory.joined("many")
        assert many._listener._connection.fileno() > 1024
        put(factory.open())
        assert factory.notified(many)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_supervisor_rings_others_from_any_thread(factory, store):
    other = factory.joined("two")
    other.notify()
    assert factory.notified(store)
    assert factory.quiet(other)


def test_a_supervisor_does_not_hear_what_it_enqueues_itself(factory, store):
    put(store)
    assert factory.quiet(store)


def test_a_ring_that_comes_while_it_rings_others_is_heard(factory, store):
    """Taken off the connection by the statement that rings."""
    client, link = factory.open(), store._listener._connection
    sent = threading.Event()

    def and_ring(query, *parameters):
        if not sent.is_set():
            client.notify()
            sent.set()
        return type(link).execute(link, query, *parameters)

    link.execute = and_ring
    store.notify()
    assert factory.notified(store)


def test_whoever_leaves_listens_no_more(factory, store):
    assert len(listeners(factory)) == 1
    store.leave()
    store.close()
    while listeners(factory):
        time.sleep(0.002)


# listen: false


@pytest.fixture
def pooled(factory):
    """Every transaction of it may meet another session, which knows nothing of the one before."""
    store = PostgresStore(factory.server.url, schema=factory.schema, listen=False, create=True)
    store.join("pooled", "host", 4711)
    yield store
    store.leave()
    store.close()


def test_without_listening_there_is_no_bell_and_it_works(factory, pooled):
    other = factory.joined("one")
    assert pooled.notification_fd() is None
    pooled.notify()
    ids = put(pooled, *"abc")
    assert factory.notified(other), "others may listen all the same"
    a, b, c = take(pooled)
    assert pooled.settle([success(a), release(b)]) == []
    assert pooled.extend([c], 30.0, [c]) == []
    assert pooled.held() == [(ids[2], 1)]


def test_without_listening_nothing_is_left_in_the_session(factory, pooled):
    settings = "select name, setting from pg_settings where source = 'session'"
    fresh = pooled.rows(settings)
    for _ in range(10):
        put(pooled, *["mail"] * 300)
        pooled.settle([success(lease) for lease in take(pooled, 300)])
        pooled.stats()
    assert pooled.rows(settings) == fresh
    assert pooled.value("select count(*) from pg_prepared_statements") == 0
    assert pooled.value("select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()") == 0
    assert pooled.value("select count(*) from pg_listening_channels()") == 0


def test_without_listening_every_transaction_has_its_limits(pooled):
    with pooled.transaction():
        assert pooled.value("select current_setting('statement_timeout')") == "9s"
        assert pooled.value("select current_setting('lock_timeout')") == "3s"
    assert pooled.value("select current_setting('statement_timeout')") == "0"


def test_sessions_change_between_transactions(factory, pooled):
    """What a pooler does: here by connecting anew each time."""
    for _ in range(3):
        put(pooled)
        pooled._drop()
        lease = take_one(pooled)
        pooled._drop()
        assert pooled.settle([success(lease)]) == []
        pooled._drop()
    assert pooled.waiting(None) == {}


def test_a_forked_child_connects_for_itself(factory, store):
    from supervisor.config.settings import Settings, StoreSettings

    settings = Settings(store=StoreSettings(url=factory.server.url, options={"schema": factory.schema}))
    with Client(settings) as client:
        first = client.enqueue("a")

        def work():
            assert client.enqueue("b") == first + 1
            client.close()

        assert in_child(work) == 0
        assert client.enqueue("c") == first + 2
    assert len(take(store)) == 3
