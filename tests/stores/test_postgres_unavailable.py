"""The server goes away, at any moment and in every way: each call ends within its limit, and the next one works."""

from __future__ import annotations

import os
import signal
import threading
import time

import psycopg
import pytest

from supervisor.client.client import Client
from supervisor.config.settings import Settings, StoreSettings
from supervisor.errors import RowRefused, StoreBroken, StoreError, StoreUnavailable, StoreUnsure
from supervisor.stores.postgres.claim import ENQUEUE_ONE
from supervisor.stores.postgres.driver import FAR_END, IDLE_LIMIT, SESSION, Address, DriverConnection
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import EnqueueRow, Presence
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

LIMIT = 1.0


@pytest.fixture(scope="module")
def own_server():
    """One that may be stopped, and keeps what it has promised."""
    server = Server({}, address=loopback())
    yield server
    server.remove()


def loopback():
    """An address of this machine that no other test process listens at."""
    return f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


@pytest.fixture(params=["near", "far"])
def factory(request, tmp_path, own_server, monkeypatch):
    """On a server of another machine, what can wait for it goes along with the next question."""
    monkeypatch.setattr("supervisor.stores.postgres.driver.is_near", lambda link: request.param == "near")
    monkeypatch.setattr("tests.stores.factories.server", lambda: own_server)
    factory = PostgresFactory(tmp_path)
    yield factory
    own_server.thaw()
    factory.close()


@pytest.fixture
def store(factory):
    return factory.joined("one")


OTHERS = "select pid from pg_stat_activity where pid != pg_backend_pid() and backend_type = 'client backend'"


def cut(factory):
    """Every connection but the one that says it."""
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
    "lapsed": lambda store, lease: store.expired_leases(10),
    "recover": lambda store, lease: store.recover([release(lease)._replace(seen=1)]),
    "letters": lambda store, lease: dead_letters(store),
    "announce": lambda store, lease: store.announce(Presence("running")),
    "stats": lambda store, lease: store.stats(),
    "get": lambda store, lease: store.get(lease.id),
    "cancel": lambda store, lease: store.cancel([lease.id]),
    "leave": lambda store, lease: store.leave(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_finds_its_connection_cut_did_nothing_and_the_next_works(factory, store, name):
    put(store)
    lease = take_one(store)
    before = store.list_jobs()
    cut(factory)
    with pytest.raises(StoreUnavailable):
        CALLS[name](store, lease)
    assert store.list_jobs() == before
    CALLS[name](store, lease)


def test_a_connection_cut_in_the_middle_of_a_transaction_takes_all_of_it(factory, store):
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
def test_a_restart_in_between_is_survived(factory, store, how):
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


def test_a_client_that_finds_the_server_away_waits_for_it_from_the_beginning(factory, store):
    settings = Settings(store=StoreSettings(url=factory.server.url, options={"schema": factory.schema}))
    factory.kill(store)
    factory.server.stop()
    with pytest.raises(StoreUnavailable), Client(settings, timeout=0.1):
        pass
    ids = []

    def enqueue():
        with Client(settings, timeout=20.0) as client:
            ids.append(client.enqueue("mail"))

    waiting = threading.Thread(target=enqueue)
    waiting.start()
    time.sleep(0.1)  # it has met nobody by now, or has yet to ask: it gets on either way
    factory.server.start()
    factory.admin.close()
    factory.admin = factory.server.connect()
    waiting.join()
    assert factory.sql("select id from {s}.jobs").fetchall() == [(ids[0],)]


@pytest.mark.parametrize("name", ["enqueue many", "claim", "settle"])
def test_a_server_that_hangs_keeps_nobody_longer_than_the_limit(factory, store, name, monkeypatch):
    put(store)
    lease = take_one(store)
    monkeypatch.setattr(DriverConnection, "limit", LIMIT)
    factory.server.freeze()
    for _ in range(2):  # the second has to connect first
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            CALLS[name](store, lease)
        assert time.monotonic() - began < LIMIT + 6.0
        monkeypatch.setitem(store._address._arguments, "connect_timeout", "2")
    factory.server.thaw()
    store.settle([success(lease)])
    assert state_of(store, lease.id) == "succeeded"


def test_closing_does_not_wait_for_a_server_that_hangs(factory, store):
    factory.server.freeze()
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 2.0
    factory._opened.remove(store)


@pytest.fixture
def lose_answer_to_commit(monkeypatch, factory):
    """The next commit is done, but the connection is lost before that is told."""

    def lose(store):
        exchange = store._exchange

        def and_lose(last):
            answer = exchange(last)
            if last[0] in ("commit", ENQUEUE_ONE):
                monkeypatch.undo()
                store._drop()
                raise StoreUnavailable("lost") from psycopg.OperationalError(
                    "server closed the connection unexpectedly"
                )
            return answer

        monkeypatch.setattr(store, "_exchange", and_lose)

    return lose


@pytest.mark.parametrize("n", [1, 1000])
def test_jobs_whose_commit_was_not_answered_are_not_enqueued_again_silently(store, lose_answer_to_commit, n):
    lose_answer_to_commit(store)
    with pytest.raises(StoreUnsure, match="may or may not have been enqueued"):
        store.enqueue([EnqueueRow("mail", "{}")] * n)
    assert len(store.list_jobs(limit=2000)) == n


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
    put(store, "a", "b")
    lose_answer_to_commit(store)
    with pytest.raises(StoreUnavailable):
        take_one(store)
    ((id, token),) = store.held()
    assert [(lease.id, lease.token) for lease in store.leases([id])] == [(id, token)]
    assert take_one(store).id != id


def test_a_server_that_takes_no_writes_any_more_is_left(factory, store):
    """As after a failover: the old primary is a standby now, and the connection to it goes on."""
    put(store)
    process = store._server_process()
    store.run("set default_transaction_read_only = on")
    store._begin = "begin"
    with pytest.raises(StoreUnavailable, match=r"read-only.*a standby, .*name the primary in the URL"):
        take_one(store)
    store._begin = "begin isolation level read committed read write"
    assert take_one(store)
    assert store._server_process() != process


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


def test_a_lock_that_somebody_keeps_ends_the_wait(factory, store, monkeypatch):
    monkeypatch.setattr("supervisor.stores.postgres.driver.LOCK_LIMIT", 100)
    (id,) = put(store)
    lease = take_one(store)
    store.run("set lock_timeout = '100ms'")
    other = factory.server.connect()
    with other.transaction():
        other.execute(f'select from "{factory.schema}".jobs where id = {id} for update')
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            store.settle([success(lease)])
    other.close()
    assert store.settle([success(lease)]) == []


def test_what_a_process_that_was_stopped_was_being_sent_is_free_again(factory, store, monkeypatch):
    put(store)
    """While it sends, the server heeds no limit of the statement."""
    monkeypatch.setitem(SESSION, "statement_timeout", "0")
    monkeypatch.setitem(FAR_END, "tcp_user_timeout", "500")
    stopped = Address(factory.server.far_url, listen=True).connect()
    try:
        much = (
            f"""select repeat('x', 1000000) from "{factory.schema}".jobs, generate_series(1, 100) for update of jobs"""
        )
        stopped.pgconn.send_query(much.encode())
        process = stopped.pgconn.backend_pid
        while factory.sql("select wait_event from pg_stat_activity where pid = %s", process).fetchone() != (
            "ClientWrite",
        ):
            time.sleep(0.01)
        assert take(store) == []
        deadline = time.monotonic() + 10
        while not take(store):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        stopped.close()


def test_what_a_stopped_process_locks_is_free_before_leases_end_that_wait_for_it():
    assert Settings().lease.ttl / 2 > IDLE_LIMIT / 1000
    assert FAR_END["tcp_user_timeout"] == str(IDLE_LIMIT)


def test_two_that_lock_each_others_rows_are_told_to_try_again(factory, store):
    """A deadlock ends one of the two transactions, and nothing of it is done."""
    a, b = put(store, "a", "b")
    other, ended = factory.joined("two"), []
    store.run("set deadlock_timeout = '50ms'")
    together = threading.Barrier(2)

    def cancel_both(store, first, second):
        try:
            with store.transaction():
                store.cancel([first])
                store.run("select 1")
                together.wait()
                store.cancel([second])
        except StoreUnavailable as error:
            ended.append(str(error))

    threads = [threading.Thread(target=cancel_both, args=arguments) for arguments in ((store, a, b), (other, b, a))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 1 and "deadlock" in ended[0]
    assert [job["state"] for job in store.list_jobs()] == ["cancelled"] * 2


@pytest.mark.parametrize("text", ["a\x00b", "\udc80"])
def test_what_the_server_cannot_hold_is_refused_and_leaves_nothing(store, text):
    for n in (1, 1000):
        with pytest.raises(RowRefused):
            store.enqueue([EnqueueRow("mail", "{}"), EnqueueRow(text, "{}")] * n)
    assert store.list_jobs() == []
    assert put(store)


@pytest.mark.parametrize("n", [1, 500])
def test_texts_come_back_as_they_went_in(store, n):
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


def test_a_database_that_is_not_there_is_no_outage(factory):
    with pytest.raises(StoreBroken, match="does not exist"):
        PostgresStore(factory.server.url.replace("/postgres?", "/absent?"), create=True)


def test_dead_letters_survive_a_cut(factory, store):
    make_dead(store)
    claimed = dead_letters(store)
    cut(factory)
    with pytest.raises(StoreUnavailable):
        store.mark_accepted(claimed, "file", frozenset({"file"}))
    assert store.mark_accepted(claimed, "file", frozenset({"file"})) == []
