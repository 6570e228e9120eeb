"""The server becomes unavailable, at any moment and in every way: each call ends within its limit, and the next one works."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import psycopg
import pytest

from supervisor.client.client import Client
from supervisor.config.settings import Settings, StoreSettings
from supervisor.errors import RowRefused, StoreBroken, StoreError, StoreUnavailable, StoreUnsure
from supervisor.stores.postgres.claim import CLAIM
from supervisor.stores.postgres.driver import Address
from supervisor.stores.postgres.enqueue import ENQUEUE_ONE
from supervisor.stores.postgres.limits import DEFAULT_LIMITS, PostgresLimits
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import EnqueueRow, Presence
from tests.stores.at_once import Meanwhile, all_at_once
from tests.stores.factories import (
    PostgresFactory,
    again,
    dead,
    dead_letters,
    make_dead,
    put,
    release,
    state_of,
    success,
    take,
    take_one,
)
from tests.stores.postgres_server import Server
from tests.system.command import wait_for

LIMIT = 1.0


@pytest.fixture(scope="module")
def own_server():
    """A durable server, which a test may stop."""
    server = Server({}, address=loopback())
    yield server
    server.remove()


def loopback():
    """An address of this machine that no other test process listens at."""
    return f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


@pytest.fixture(params=["near", "far"])
def factory(request, tmp_path, own_server):
    """See NEAR_AND_FAR."""
    factory = PostgresFactory(tmp_path, PostgresLimits(near=request.param == "near"), on=own_server)
    yield factory
    own_server.thaw()
    factory.close()


@pytest.fixture
def store(factory):
    return factory.joined("one")


def limited(factory, **limits):
    """A store that has joined under these limits."""
    factory.limits = replace(factory.limits, **limits)
    return factory.joined("limited")


OTHERS = "select pid from pg_stat_activity where pid != pg_backend_pid() and backend_type = 'client backend'"


def cut(factory):
    """Cut every connection but the administrator's."""
    others = [pid for (pid,) in factory.sql(OTHERS)]
    factory.sql("select pg_terminate_backend(pid) from unnest(%s) as it(pid)", others)
    while factory.sql("select 1 from pg_stat_activity where pid = any(%s)", others).fetchone():
        time.sleep(0.002)


CALLS = {
    "enqueue": lambda store, lease: put(store),
    "enqueue many": lambda store, lease: store.enqueue([EnqueueRow("mail", "{}")] * 1000),
    "claim": lambda store, lease: take(store),
    "look": lambda store, lease: store.look(None, 10),
    "settle": lambda store, lease: store.settle([success(lease)]),
    "fail": lambda store, lease: store.settle([dead(lease)]),
    "extend": lambda store, lease: store.extend([lease], 30.0, [lease]),
    "held": lambda store, lease: store.held(),
    "expired": lambda store, lease: store.expired_leases(10),
    "recover": lambda store, lease: store.recover([release(lease)._replace(seen=1)]),
    "dead letters": lambda store, lease: dead_letters(store),
    "announce": lambda store, lease: store.announce(Presence("running")),
    "stats": lambda store, lease: store.stats(),
    "get": lambda store, lease: store.get(lease.id),
    "cancel": lambda store, lease: store.cancel([lease.id]),
    "leave": lambda store, lease: store.leave(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_finds_its_connection_cut_has_done_nothing_and_the_next_works(factory, store, name):
    put(store)
    lease = take_one(store)
    before = [*store.list_jobs()]
    cut(factory)
    with pytest.raises(StoreUnavailable):
        CALLS[name](store, lease)
    assert [*store.list_jobs()] == before
    CALLS[name](store, lease)


def test_of_a_transaction_whose_connection_is_cut_nothing_is_kept(factory, store):
    ids = put(store, *"ab")
    with pytest.raises(StoreUnavailable), store.transaction():
        take_one(store)
        cut(factory)
        put(store)
    with pytest.raises(StoreError, match="none of it is kept"), store.transaction():
        take_one(store)
        cut(factory)
        with pytest.raises(StoreUnavailable):
            put(store)
        put(store)
    assert [job["state"] for job in store.list_jobs()] == ["ready"] * len(ids)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_an_outcome_is_settled_after_a_restart_of_the_server(factory, store, how):
    (id,) = put(store)
    lease = take_one(store)
    factory.server.stop(how)
    with pytest.raises(StoreUnavailable):
        store.settle([success(lease)])
    with pytest.raises(StoreUnavailable):
        store.settle([success(lease)])
    factory.server.start()
    factory.admin.close()
    factory.admin = factory.server.connect()
    assert store.settle([success(lease)]) == []
    assert state_of(store, id) == "succeeded"


def test_a_client_waits_for_a_server_that_is_unavailable_from_the_beginning(factory, store, monkeypatch):
    settings = Settings(store=StoreSettings(url=factory.server.url, options={"schema": factory.schema}))
    factory.kill(store)
    factory.server.stop()
    with pytest.raises(StoreUnavailable), Client(settings, timeout=0.1):
        pass
    ids, tried, sleep = [], threading.Event(), time.sleep

    def enqueue():
        with Client(settings, timeout=60.0) as client:
            ids.append(client.enqueue("mail"))

    def noted(seconds):
        tried.set()
        sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr("supervisor.stores.opening.time.sleep", noted)
        waiting = Meanwhile(enqueue)
        assert tried.wait(30.0)
    factory.server.start()
    factory.admin.close()
    factory.admin = factory.server.connect()
    waiting.join()
    assert factory.sql("select id from {s}.jobs").fetchall() == [(ids[0],)]


@pytest.mark.parametrize("name", ["enqueue many", "claim", "settle"])
def test_a_call_ends_within_its_limit_although_the_server_hangs(factory, name):
    store = limited(factory, call_seconds=LIMIT, connect_seconds=2)
    put(store)
    lease = take_one(store)
    factory.server.freeze()
    for _ in range(2):  # the second has to connect first
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            CALLS[name](store, lease)
        assert time.monotonic() - began < LIMIT + 6.0
    factory.server.thaw()
    store.settle([success(lease)])
    assert state_of(store, lease.id) == "succeeded"


def test_a_store_is_closed_at_once_although_the_server_hangs(factory):
    store = limited(factory, call_seconds=3600.0)
    factory.server.freeze()
    store.close()
    factory._opened.remove(store)


@pytest.fixture
def lose_answer_to_commit(monkeypatch, factory):
    """The next commit is done, but the connection is lost before its answer."""

    def lose(store):
        exchange = store.connection._exchange

        def and_lose(last, **how):
            answer = exchange(last, **how)
            if last[0] in ("commit", ENQUEUE_ONE, CLAIM):
                monkeypatch.undo()
                store.connection.session.disconnect()
                raise StoreUnavailable("lost") from psycopg.OperationalError(
                    "server closed the connection unexpectedly"
                )
            return answer

        monkeypatch.setattr(store.connection, "_exchange", and_lose)

    return lose


@pytest.mark.parametrize("n", [1, 1000])
def test_jobs_whose_commit_was_not_answered_are_not_enqueued_again_silently(store, lose_answer_to_commit, n):
    lose_answer_to_commit(store)
    with pytest.raises(StoreUnsure, match="may or may not have been enqueued"):
        store.enqueue([EnqueueRow("mail", "{}")] * n)
    assert len([*store.list_jobs(limit=2000)]) == n


def test_a_settle_whose_commit_was_not_answered_is_success_when_repeated(store, lose_answer_to_commit):
    put(store, "a", "b")
    won, failed = take(store)
    for _ in range(2):
        lose_answer_to_commit(store)
        with pytest.raises(StoreUnavailable):
            store.settle([success(won), again(failed)])
    assert store.settle([success(won), again(failed)]) == []
    assert len(store.get(failed.id)["errors"]) == 1


def test_a_claim_whose_commit_was_not_answered_is_found_by_its_owner(store, lose_answer_to_commit):
    put(store, *["mail"] * 3)
    before = take_one(store)
    lose_answer_to_commit(store)
    with pytest.raises(StoreUnavailable):
        take_one(store)
    _, (id, token) = store.held()
    assert [(lease.id, lease.token) for lease in store.leases([id])] == [(id, token)]
    assert take_one(store).id not in (before.id, id)


def test_a_server_that_takes_no_writes_any_more_is_left(factory, store):
    """As after a failover: the old primary is a standby now, and the connection to it still exists."""
    put(store)
    process = store.connection.session.server_process()
    store.connection.run("set default_transaction_read_only = on")
    with (
        pytest.raises(StoreUnavailable, match=r"read-only.*a standby, .*name the primary in the URL"),
        store.connection.transaction(begin="begin"),
    ):
        take_one(store)
    assert take_one(store)
    assert store.connection.session.server_process() != process


def test_a_server_that_takes_no_writes_is_not_connected_to(factory):
    factory.open()
    factory.sql("alter database postgres set default_transaction_read_only = on")
    try:
        with pytest.raises(
            StoreUnavailable, match=r"read-only.*default_transaction_read_only is on .*or switch that off"
        ):
            PostgresStore(factory.server.url, schema=factory.schema, listen=False)  # otherwise it is only a default
    finally:
        factory.sql("set default_transaction_read_only = off")
        factory.sql("alter database postgres reset default_transaction_read_only")


def test_a_lock_that_is_not_released_is_not_waited_for_longer_than_its_limit(factory):
    store = limited(factory, lock_milliseconds=100)
    (id,) = put(store)
    lease = take_one(store)
    other = factory.server.connect()
    with other.transaction():
        other.execute(f'select from "{factory.schema}".jobs where id = {id} for update')
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            store.settle([success(lease)])
    other.close()
    assert store.settle([success(lease)]) == []


def test_locks_of_a_stopped_process_end_although_rows_are_being_sent_to_it(factory, store):
    """While the server sends, no limit of the statement applies."""
    put(store)
    limits = PostgresLimits(statement_milliseconds=0, idle_milliseconds=500)
    stopped = Address(factory.server.far_url, listen=True, limits=limits).connect()
    try:
        much = (
            f"""select repeat('x', 1000000) from "{factory.schema}".jobs, generate_series(1, 100) for update of jobs"""
        )
        stopped.pgconn.send_query(much.encode())
        process = stopped.pgconn.backend_pid
        event = "select wait_event from pg_stat_activity where pid = %s"
        wait_for(lambda: factory.sql(event, process).fetchone() == ("ClientWrite",))
        assert take(store) == []
        wait_for(lambda: take(store) != [])
    finally:
        stopped.close()


def test_locks_of_a_stopped_process_end_before_leases_whose_extension_waits_for_them():
    limit = DEFAULT_LIMITS.idle_milliseconds
    assert Settings().lease.ttl / 2 > limit / 1000
    options = Address("", listen=True, limits=DEFAULT_LIMITS).arguments["options"]
    assert f"-c idle_in_transaction_session_timeout={limit}" in options and f"-c tcp_user_timeout={limit}" in options


def test_of_two_transactions_in_a_deadlock_one_fails_and_changes_nothing(factory, store):
    """Its caller finds the store unavailable, and tries again."""
    a, b = put(store, "a", "b")
    other, ended = factory.joined("two"), []
    store.connection.run("set deadlock_timeout = '50ms'")
    together = threading.Barrier(2, timeout=30.0)

    def cancel_both(store, first, second):
        try:
            with store.transaction():
                store.cancel([first])
                store.connection.flush()
                together.wait()
                store.cancel([second])
        except StoreUnavailable as error:
            ended.append(str(error))

    all_at_once(partial(cancel_both, store, a, b), partial(cancel_both, other, b, a))
    assert len(ended) == 1 and "deadlock" in ended[0]
    assert [job["state"] for job in store.list_jobs()] == ["cancelled"] * 2


@pytest.mark.parametrize("text", ["a\x00b", "\udc80"])
def test_a_text_that_the_server_cannot_hold_is_refused_with_its_batch(store, text):
    for n in (1, 1000):
        with pytest.raises(RowRefused):
            store.enqueue([EnqueueRow("mail", "{}"), EnqueueRow(text, "{}")] * n)
    assert [*store.list_jobs()] == []
    assert put(store)


@pytest.mark.parametrize("n", [1, 500])
def test_texts_are_claimed_and_shown_as_they_were_enqueued(store, n):
    payload = '{"nul":"a\\u0000b","tab":"\\t","raw":"é\U0001f600\\\\N\\\\", "space":\t\r\n1}'
    ids = store.enqueue([EnqueueRow("a\tb\\", payload, "q\n", headers=payload)] * n)
    leases = take(store, n, "q\n")
    assert [lease.id for lease in leases] == list(ids)
    assert {(lease.handler, lease.queue, lease.payload, lease.headers) for lease in leases} == {
        ("a\tb\\", "q\n", payload, payload)
    }
    assert store.get(ids[0])["payload"]["nul"] == "a\x00b"
    store.settle([success(leases[0], '"\\u0000"')])
    assert store.get(ids[0])["result"] == "\x00"


def test_a_password_is_in_no_error(factory, monkeypatch):
    secret = "sesame-0815"
    url = factory.server.url.replace("postgres@", f"postgres:{secret}@")
    factory.open()
    for wrong in (
        url.replace(str(factory.server.folder), "/nowhere"),
        url.replace("/postgres?", "/absent?"),
        f"{url}&x=1",
        f"postgresql://postgres:{secret}@[bad",
    ):
        with pytest.raises(StoreError) as raised:
            PostgresStore(wrong, schema=factory.schema)
        assert secret not in str(raised.value)
    store = PostgresStore(url, schema=factory.schema)
    assert secret not in store.url
    store.close()


def test_a_missing_database_is_a_broken_store(factory):
    with pytest.raises(StoreBroken, match="does not exist"):
        PostgresStore(factory.server.url.replace("/postgres?", "/absent?"), create=True)


def test_an_acceptance_is_repeated_after_its_connection_was_cut(factory, store):
    make_dead(store)
    claimed = dead_letters(store)
    cut(factory)
    with pytest.raises(StoreUnavailable):
        store.mark_accepted(claimed, "file")
    assert store.mark_accepted(claimed, "file") == []
