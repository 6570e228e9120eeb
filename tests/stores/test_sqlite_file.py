"""The file itself: opening and refusing it, its modes, rows that other programs put into it, and its log."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.config.settings import StoreSettings
from supervisor.errors import RowRefused, StoreBroken, StoreError, StoreUnavailable
from supervisor.stores.opening import open_store
from supervisor.stores.records import EnqueueBatch, EnqueueRow, Presence, Waiting
from supervisor.stores.sqlite.connection import Connection, SqliteLimits
from supervisor.stores.sqlite.store import SqliteStore
from tests.stores.factories import (
    PAST_ALL_LIMITS,
    UNREADABLE_OPTIONS,
    SqliteFactory,
    failure,
    put,
    success,
    take,
    take_one,
    waiting,
)


@pytest.fixture
def factory(tmp_path):
    factory = SqliteFactory(tmp_path)
    yield factory
    factory.close()


@pytest.fixture
def store(factory):
    return factory.joined("one")


@pytest.fixture
def raw(store):
    database = sqlite3.connect(store.path, isolation_level=None)
    yield database
    database.close()


def test_a_missing_file_is_refused_unless_it_may_be_made(tmp_path):
    path = tmp_path / "jobs.db"
    with pytest.raises(StoreError, match=r"jobs\.db: no such database"):
        SqliteStore(path)
    assert not path.exists()
    SqliteStore(path, create=True).close()
    SqliteStore(path).close()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match="can't be created: No such file or directory"):
        SqliteStore(tmp_path / "nowhere" / "jobs.db", create=True)


@pytest.mark.parametrize(
    ("make", "expected"),
    [(Path.mkdir, "expected a file, not a folder"), (os.mkfifo, "expected a file, not a device or pipe")],
)
def test_a_path_that_is_no_file_is_a_broken_store(tmp_path, make, expected):
    make(tmp_path / "jobs.db")
    with pytest.raises(StoreBroken, match=expected):
        SqliteStore(tmp_path / "jobs.db", create=True)


@pytest.mark.parametrize("length", [248, 300])
def test_a_name_that_no_file_can_have_is_a_broken_store(tmp_path, length):
    """Nor a name that no file can have which SQLite puts beside it."""
    with pytest.raises(StoreBroken, match="x: File name too long"):
        SqliteStore(tmp_path / ("x" * length), create=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_opened_for_now_is_an_unavailable_store(tmp_path, monkeypatch):
    """For example, because this process has too many open files."""
    SqliteStore(tmp_path / "jobs.db", create=True).close()

    def refused(*arguments, **options):
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    monkeypatch.setattr(sqlite3, "connect", refused)
    with pytest.raises(StoreUnavailable, match=r"jobs\.db: unable to open database file") as raised:
        SqliteStore(tmp_path / "jobs.db")
    assert not isinstance(raised.value, StoreBroken)


def test_an_empty_file_becomes_a_store(tmp_path):
    (tmp_path / "jobs.db").touch()
    store = SqliteStore(tmp_path / "jobs.db")
    assert put(store) == [1]
    store.close()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "jobs.db"
    path.write_text("these are not the jobs you are looking for" * 100)
    with pytest.raises(StoreError, match=r"jobs\.db: file is not a database: restore it from a backup"):
        SqliteStore(path)


def test_a_database_of_another_program_is_left_alone(tmp_path):
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as database:
        database.execute("create table jobs(id)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SqliteStore(path, create=True)
    assert path.read_bytes() == before


def test_a_store_that_another_process_is_making_is_not_taken_for_another_programs(tmp_path, monkeypatch):
    path, stores, value = tmp_path / "jobs.db", [], Connection.value
    other = threading.Thread(target=lambda: stores.append(SqliteStore(path, create=True)))

    def while_another_opens_it(self, sql, *parameters):
        found = value(self, sql, *parameters)
        if sql == "pragma application_id" and other.ident is None:
            other.start()
            other.join(0.3)
        return found

    monkeypatch.setattr(Connection, "value", while_another_opens_it)
    stores.append(SqliteStore(path, create=True))
    other.join()
    for store in stores:
        assert store.stats()["queues"] == []
        store.close()


def test_a_newer_version_is_refused_by_name(store, raw):
    raw.execute("pragma user_version = 99")
    with pytest.raises(StoreError, match="version 99 is of a newer job-supervisor; this one expects at most 4"):
        SqliteStore(store.path)


def test_files_may_be_used_by_their_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        store = SqliteFactory(tmp_path).joined("one")
        put(store)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {
        "jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600, "jobs.db-queue.lock": 0o600, "jobs.db-write.lock": 0o600,
        "jobs.db.notify": 0o700, "one.sock": 0o600, "one.lock": 0o600,
    }  # fmt: skip
    store.leave()
    store.close()


def test_only_the_database_is_left_behind(tmp_path):
    factory = SqliteFactory(tmp_path)
    put(factory.joined("one"))
    put(factory.joined("two"))
    factory.close()
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.db"]


def test_a_store_is_durable_by_default(tmp_path):
    store = SqliteStore(tmp_path / "jobs.db", create=True)
    assert store.connection.value("pragma synchronous") == 2
    assert store.connection.value("pragma journal_mode") == b"wal"
    store.close()
    relaxed = SqliteStore(tmp_path / "jobs.db", synchronous="normal")
    assert relaxed.connection.value("pragma synchronous") == 1
    relaxed.close()


# --- URLs


def test_stores_open_by_url(tmp_path):
    relative = open_store(StoreSettings(url="sqlite:///a.db"), create=True, base=tmp_path)
    assert (tmp_path / "a.db").exists()
    relative.close()
    absolute = open_store(StoreSettings(url=f"sqlite:///{tmp_path}/b.db"), create=True, base=tmp_path / "elsewhere")
    assert (tmp_path / "b.db").exists()
    absolute.close()
    assert open_store(StoreSettings(url="memory://"), create=False, base=tmp_path).url == "memory://"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:", "a URL such as sqlite:///jobs.db"),
        ("sqlite:///", "sqlite:///relative/file.db or sqlite:////absolute/file.db"),
        ("sqlite://host/x.db", "sqlite:///relative/file.db or sqlite:////absolute/file.db"),
        ("sqlite:///x.db?synchronous=normal", "no options in the URL of a file; write synchronous beside it"),
    ],
)
def test_a_url_that_does_not_name_exactly_a_file_is_refused(tmp_path, url, expected):
    with pytest.raises(StoreError, match=re.escape(f"store: expected {expected}, got {url!r}")):
        open_store(StoreSettings(url=url), create=True, base=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_an_unknown_kind_of_store_is_refused(tmp_path):
    with pytest.raises(
        StoreError, match="'redis' is not a kind of store; expected one of kafka, memory, postgres, postgresql, sqlite"
    ):
        open_store(StoreSettings(url="redis://x"), create=True, base=tmp_path)


def test_a_store_of_a_plugin_is_opened(tmp_path):
    from supervisor.stores.memory.store import MemoryStore

    def opener(settings, *, create, base):
        return MemoryStore()

    store = open_store(StoreSettings(url="mine://x"), create=True, base=tmp_path, openers={"mine": opener})
    assert isinstance(store, MemoryStore)


# --- rows of other programs


BROKEN = {
    "{": "{",
    "": "",
    None: "",
    "[1": "[1",
    b"\xff\xfe": "\\xff\\xfe",
    b'{"a": "\xe9"}': '{"a": "\\xe9"}',
    "[" * 100_000: "[" * 100_000,
}


@pytest.mark.parametrize("payload", BROKEN, ids=lambda payload: repr(payload)[:12])
def test_a_broken_payload_is_claimed_shown_and_kept_as_it_is(store, raw, payload):
    bad, good = put(store, "a", "b")
    raw.execute("update jobs set payload = cast(? as text) where id = ?", (payload, bad))
    stored = raw.execute("select cast(payload as blob) from jobs where id = ?", (bad,)).fetchone()
    lease, other = take(store)
    assert (lease.id, lease.payload) == (bad, BROKEN[payload])
    assert (other.id, other.payload) == (good, "{}")
    assert store.get(bad)["payload"] == BROKEN[payload]
    assert store.settle([success(lease)]) == []
    assert raw.execute("select cast(payload as blob) from jobs where id = ?", (bad,)).fetchone() == stored


def test_a_blob_is_read_as_a_payload(store, raw):
    put(store)
    raw.execute("update jobs set payload = x'7b7d'")
    assert take_one(store).payload == "{}"
    assert store.get(1)["payload"] == {}


def test_a_null_payload_in_json_is_a_payload(store, raw):
    put(store)
    raw.execute("update jobs set payload = 'null'")
    assert take_one(store).payload == "null"
    assert store.get(1)["payload"] is None


def test_plain_sql_may_enqueue(store, raw):
    (before,) = put(store)
    raw.execute("""insert into jobs(handler, payload) values ('mail', '{"n": 1}')""")
    raw.execute("insert into jobs(handler, queue, payload, priority) values ('mail', 'other', '{}', 5)")
    (after,) = put(store)
    assert waiting(store) == {"default": Waiting(3, 0), "other": Waiting(1, 0)}
    assert [lease.id for lease in take(store)] == [before, before + 1, after]
    assert store.get(before + 1)["payload"] == {"n": 1}
    assert store.get(before + 1)["created_at"].startswith("20")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("handler", b"mail"), ("queue", b"\xff"), ("priority", "high"), ("priority", b"\xff"), ("priority", 1.5),
        ("created_at", "2030-01-01 00:00:00"), ("created_at", 2**63 - 1), ("options", "{"), ("options", b"\xff"),
        *(("options", text) for text in UNREADABLE_OPTIONS),
    ],
)  # fmt: skip
def test_a_value_that_no_claim_could_read_is_refused_when_it_is_written(store, raw, column, value):
    (id,) = put(store)
    row = {"handler": "mail", column: value}
    with pytest.raises(sqlite3.Error, match=rf"jobs\.{column}: expected"):
        raw.execute(f"insert into jobs({', '.join(row)}) values ({', '.join('?' * len(row))})", list(row.values()))
    with pytest.raises(sqlite3.Error, match=rf"jobs\.{column}: expected"):
        raw.execute(f"update jobs set {column} = ?", (value,))
    assert waiting(store) == {"default": Waiting(1, 0)}
    assert [lease.id for lease in take(store)] == [id]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("state", "ready"), ("state", 9), ("tier", 7), ("retries", "many"), ("due_at", "2030-01-01 00:00:00"),
        *PAST_ALL_LIMITS.items(),
    ],
)  # fmt: skip
def test_a_row_inserted_with_plain_sql_must_be_one_that_its_readers_know(store, raw, column, value):
    with pytest.raises(sqlite3.Error, match=rf"jobs\.{column}: expected"):
        raw.execute(f"insert into jobs(handler, {column}) values ('mail', ?)", (value,))
    assert [*store.list_jobs()] == []


def test_leases_without_a_known_owner_are_recovered_all_the_same(factory, store, raw):
    """Recovery depends on the job's own lease, not on the list of supervisors."""
    (id,) = put(store)
    take_one(store)
    raw.execute("delete from supervisors")
    other = factory.joined("two")
    assert other.expired_leases(10) == []
    factory.clock.step(30)
    (expired_leases,) = other.expired_leases(10)
    assert (expired_leases.lease.id, expired_leases.owner_gone) == (id, False)


def test_an_owner_not_seen_for_a_day_is_forgotten_but_keeps_its_socket_and_may_come_back(factory, store):
    other = factory.joined("two")
    factory.clock.step(86_401)
    other.announce(Presence("running"))
    other.expired_leases(10)
    assert [row["owner"] for row in other.stats()["supervisors"]] == ["two"]
    put(other)
    store.announce(Presence("running"))
    assert [row["owner"] for row in other.stats()["supervisors"]] == ["two", "one"]
    assert (store.path.parent / "jobs.db.notify" / "one.lock").exists()
    take_one(store)
    assert len(store.held()) == 1


# --- rows that can't be stored


@pytest.mark.parametrize("result", ['"\ud800"'])
def test_a_row_that_cannot_be_stored_is_refused_with_its_batch(store, result):
    put(store, "a", "b")
    good, bad = take(store)
    with pytest.raises(RowRefused):
        store.settle([success(good), success(bad, result)])
    assert store.held() == [(good.id, 1), (bad.id, 1)]
    assert store.settle([success(good)]) == []


def test_a_transaction_with_a_refused_row_is_not_committed_even_if_the_caller_goes_on(store):
    put(store)
    with pytest.raises(StoreError, match="none of it is kept"), store.transaction():
        put(store)
        with pytest.raises(RowRefused):
            store.enqueue([EnqueueRow("mail", '"\ud800"')])
    assert len([*store.list_jobs()]) == 1


def test_a_claim_of_more_than_one_json_text_can_hold_is_read_row_by_row(store):
    put(store, "a", "b")
    store.connection._sqlite.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2800)
    store.enqueue([EnqueueRow("c", '"' + "x" * 1200 + '"')])
    store.enqueue([EnqueueRow("c", '"' + "x" * 1200 + '"')])
    assert [lease.id for lease in take(store)] == [1, 2, 3, 4]


# --- an unavailable store


def test_a_locked_database_is_unavailable_and_nothing_is_done(store, raw):
    put(store)
    raw.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="locked"):
        put(store)
    raw.execute("rollback")
    assert len([*store.list_jobs()]) == 1
    assert put(store) == [2]


def test_a_full_disk_makes_the_store_unavailable_and_nothing_is_done(store):
    put(store)
    store.connection.execute(f"pragma max_page_count = {store.connection.value('pragma page_count')}")
    with pytest.raises(StoreUnavailable, match="full"):
        store.enqueue([EnqueueRow("mail", '"' + "x" * 100_000 + '"')])
    store.connection.execute("pragma max_page_count = 1000000")
    assert len([*store.list_jobs()]) == 1
    assert put(store) == [2]


def test_a_lock_that_is_never_released_is_not_waited_for_without_end(store):
    import fcntl

    put(store)
    impatient = SqliteStore(store.path, limits=SqliteLimits(write_seconds=0.01))
    with open(f"{store.path}-write.lock") as write_lock:
        fcntl.flock(write_lock, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="busy"):
            put(impatient)
    impatient.close()
    assert put(store) == [2]


class Broken:
    """A connection whose commit fails, after it was done or instead of it."""

    def __init__(self, connection, done: bool) -> None:
        self._connection, self._done, self._failed = connection, done, False

    def execute(self, sql, parameters=()):
        if sql == "commit" and not self._failed:
            self._failed = True
            if self._done:
                self._connection.execute(sql)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.mark.parametrize("done", [True, False])
def test_an_enqueue_whose_commit_is_in_doubt_is_repeated_without_harm(store, done):
    put(store)
    store.connection._sqlite = Broken(store.connection._sqlite, done)
    rows = EnqueueBatch([EnqueueRow("mail", "1"), EnqueueRow("mail", "2")])
    with pytest.raises(StoreUnavailable):
        store.enqueue(rows)
    assert store.enqueue(rows) == [2, 3]
    assert [job["payload"] for job in store.list_jobs()] == [2, 1, {}]
    assert waiting(store) == {"default": Waiting(3, 0)}
    assert store.enqueue(rows) == [4, 5]


@pytest.mark.parametrize("done", [True, False])
def test_an_enqueue_in_doubt_is_recognised_after_others_and_by_a_new_connection(factory, store, done):
    """As when other threads enqueue between two attempts, close the client or fork."""
    store.connection._sqlite = Broken(store.connection._sqlite, done)
    rows = EnqueueBatch([EnqueueRow("mail", "1"), EnqueueRow("mail", "2")])
    with pytest.raises(StoreUnavailable):
        store.enqueue(rows)
    factory.clock.step(0.001)
    store.enqueue(EnqueueBatch([EnqueueRow("mail", "3"), EnqueueRow("scan", "4")]))
    with closing(SqliteStore(store.path)) as another:
        another.enqueue(rows)
    assert sorted(job["payload"] for job in store.list_jobs()) == [1, 2, 3, 4]


@pytest.mark.parametrize("done", [True, False])
def test_a_settle_whose_commit_is_in_doubt_is_repeated_without_harm(store, done):
    (id,) = put(store)
    lease = take_one(store)
    store.connection._sqlite = Broken(store.connection._sqlite, done)
    with pytest.raises(StoreUnavailable):
        store.settle([success(lease)])
    assert store.settle([success(lease)]) == []
    assert store.get(id)["state"] == "succeeded"
    (queue,) = store.stats()["queues"]
    assert queue["in_flight"] == 0


# --- the log


def test_the_log_is_shortened_once_nobody_reads_an_old_state(tmp_path, caplog):
    limits = SqliteLimits(wal_bytes=200_000, wal_seconds=0.0)
    store = SqliteStore(tmp_path / "jobs.db", create=True, synchronous="normal", limits=limits)
    raw = sqlite3.connect(store.path, isolation_level=None)
    wal = store.path.with_name("jobs.db-wal")
    put(store)
    raw.execute("begin")
    raw.execute("select * from jobs").fetchall()
    for _ in range(30):
        store.enqueue([EnqueueRow("mail", '"' + "x" * 50_000 + '"')])
    assert wal.stat().st_size > 200_000
    assert [record.message for record in caplog.records if "keeps reading an old state" in record.message]
    raw.execute("commit")
    put(store)
    assert wal.stat().st_size < 200_000
    raw.close()
    store.close()


def test_a_vacuum_while_jobs_are_in_flight_gives_the_room_of_deleted_jobs_back(store, raw, tmp_path):
    raw.execute("pragma wal_checkpoint(truncate)")
    empty = (tmp_path / "jobs.db").stat().st_size
    ids = store.enqueue([EnqueueRow("mail", f'"{"x" * 20_000}"')] * 50)
    lease = take_one(store)
    raw.execute("delete from jobs where id > ?", (ids[1],))
    raw.execute("vacuum")
    assert store.settle([success(lease)]) == []
    assert take_one(store).id == ids[1]
    raw.execute("pragma wal_checkpoint(truncate)")
    assert (tmp_path / "jobs.db").stat().st_size < empty + 100_000


def test_the_store_holds_no_read_open(store, raw):
    put(store)
    reader = SqliteStore(store.path)
    reader.stats(), reader.list_jobs(), reader.get(1), waiting(store), store.expired_leases(1)
    busy, _, _ = raw.execute("pragma wal_checkpoint(truncate)").fetchone()
    assert busy == 0
    reader.close()


def test_a_reader_cannot_write(store):
    reader = SqliteStore(store.path)
    reader.connection.run("pragma query_only = on")
    with pytest.raises(StoreError, match="readonly"):
        put(reader)
    reader.close()


def test_history_of_a_job_goes_with_it(store, raw):
    (id,) = put(store)
    lease = take_one(store)
    store.settle([success(lease)._replace(failure=failure(lease))])
    store.delete([id])
    assert raw.execute("select count(*) from attempts").fetchone() == (0,)


def test_a_batch_larger_than_one_value_can_be_is_enqueued_as_a_whole(store):
    store.connection._sqlite.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    ids = store.enqueue([EnqueueRow(f"mail{index}", f'"{index:0>20000}"', delay=index % 2) for index in range(12)])
    assert ids == list(range(1, 13))
    assert [store.get(id)["handler"] for id in ids] == [f"mail{index}" for index in range(12)]
    assert store.remaining(None, None) == {"ready": 6, "scheduled": 6}


def test_savepoints_are_kept_in_memory(store):
    assert store.connection.value("pragma temp_store") == 2
