"""A notification arrives within milliseconds, and again after the connection was lost; behind a pooler nobody listens."""

from __future__ import annotations

import os
import resource
import threading
import time

import pytest

from supervisor import Client
from supervisor.errors import StoreUnavailable
from supervisor.stores.postgres.store import PostgresStore
from tests.stores.factories import NEAR_AND_FAR, put, release, success, take, take_one, waiting
from tests.stores.test_client_forked import in_child

pytestmark = NEAR_AND_FAR


def listeners(factory):
    return [
        pid
        for (pid,) in factory.sql("select pid from pg_stat_activity where query like 'listen%%' and query like %s", f"%{factory.schema}.jobs%")
    ]  # fmt: skip


def test_an_enqueue_notifies_with_its_commit_and_not_before(factory, store):
    client = factory.open()
    with client.transaction():
        put(client)
        waiting(client, None)  # all that waits is sent
        assert factory.quiet(store)
    began = time.monotonic()
    assert factory.notified(store)
    assert time.monotonic() - began < 0.5


def test_the_descriptor_stays_the_same_and_notifies_after_a_reconnect(factory, store):
    fd = store.notification_fd()
    (before,) = listeners(factory)
    factory.sql("select pg_terminate_backend(%s)", before)
    assert factory.notified(store)
    factory.clear_notifications(store)
    assert store.notification_fd() == fd
    assert listeners(factory) not in ([], [before])
    put(factory.open())
    assert factory.notified(store)


def test_a_listener_that_cannot_connect_again_is_logged_once_and_once_when_it_can(factory, store, caplog):
    caplog.set_level("INFO")
    address = store.connection.session.address
    connect = address.connect

    def refuse():
        if not caplog.messages:
            raise StoreUnavailable("too many connections")
        return connect()

    address.connect = refuse
    factory.sql("select pg_terminate_backend(%s)", listeners(factory)[0])
    while len(caplog.messages) < 2:
        time.sleep(0.01)
    assert factory.notified(store)
    assert caplog.messages[0].startswith("too many connections; this was the connection for notifications: ")
    assert "supervisors are notified again, after " in caplog.messages[1]


def test_a_listener_that_connects_again_within_moments_logs_nothing(factory, store, caplog):
    """When the server stops, the connection of the store, which is used a moment later, is the one to report that."""
    caplog.set_level("INFO")
    address = store.connection.session.address
    tries, connect = iter(range(100)), address.connect

    def refuse():
        if next(tries) < 3:
            raise StoreUnavailable("the server is shutting down")
        return connect()

    address.connect = refuse
    factory.sql("select pg_terminate_backend(%s)", listeners(factory)[0])
    assert factory.notified(store)
    assert caplog.messages == []


def test_a_supervisor_is_notified_however_many_files_are_open(factory):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        many = factory.joined("many")
        assert many.notifier._listener.connection.fileno() > 1024
        put(factory.open())
        assert factory.notified(many)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_supervisor_notifies_others(factory, store):
    other = factory.joined("two")
    other.notify()
    assert factory.notified(store)
    assert factory.quiet(other)


def test_a_supervisor_is_not_notified_of_its_own_jobs(factory, store):
    put(store)
    assert factory.quiet(store)


def test_a_notification_that_arrives_while_others_are_notified_is_not_lost(factory, store):
    """The statement that notifies them takes it off the connection."""
    client, driver = factory.open(), store.notifier._listener.connection
    sent = threading.Event()

    def and_notify(query, *parameters):
        if not sent.is_set():
            client.notify()
            sent.set()
        return type(driver).execute(driver, query, *parameters)

    driver.execute = and_notify
    store.notify()
    assert factory.notified(store)


def test_a_supervisor_that_has_left_listens_no_more(factory, store):
    assert len(listeners(factory)) == 1
    store.leave()
    store.close()
    while listeners(factory):
        time.sleep(0.002)


# --- listen: false


@pytest.fixture
def pooled(factory):
    """Each of its transactions may be in another session, which knows nothing of the one before."""
    store = PostgresStore(factory.server.url, schema=factory.schema, listen=False, create=True)
    store.join("pooled", "host", 4711)
    yield store
    store.leave()
    store.close()


def test_without_listening_a_store_works_and_has_no_descriptor(factory, pooled):
    other = factory.joined("one")
    assert pooled.notification_fd() is None
    pooled.notify()
    ids = put(pooled, *"abc")
    assert factory.notified(other), "others may listen all the same"
    a, b, c = take(pooled)
    assert pooled.settle([success(a), release(b)]) == []
    assert pooled.extend([c], 30.0, [c]) == []
    assert pooled.held() == [(ids[2], c.token)]


def test_without_listening_nothing_is_left_in_the_session(factory, pooled):
    settings = "select name, setting from pg_settings where source = 'session'"
    fresh = pooled.connection.rows(settings)
    for _ in range(10):
        put(pooled, *["mail"] * 300)
        pooled.settle([success(lease) for lease in take(pooled, 300)])
        pooled.stats()
    assert pooled.connection.rows(settings) == fresh
    assert pooled.connection.value("select count(*) from pg_prepared_statements") == 0
    assert (
        pooled.connection.value("select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
        == 0
    )
    assert pooled.connection.value("select count(*) from pg_listening_channels()") == 0


def test_without_listening_every_transaction_has_its_limits(pooled):
    with pooled.transaction():
        assert pooled.connection.value("select current_setting('statement_timeout')") == "9s"
        assert pooled.connection.value("select current_setting('lock_timeout')") == "3s"
    assert pooled.connection.value("select current_setting('statement_timeout')") == "0"


def test_a_store_works_though_its_session_is_another_in_each_transaction(factory, pooled):
    """As behind a pooler: here by connecting anew each time."""
    for _ in range(3):
        put(pooled)
        pooled.connection.session.disconnect()
        lease = take_one(pooled)
        pooled.connection.session.disconnect()
        assert pooled.settle([success(lease)]) == []
        pooled.connection.session.disconnect()
    assert waiting(pooled, None) == {}


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
