"""A store of version 1 becomes one of this version when it is opened: with all its jobs, in one transaction."""

from __future__ import annotations

import fcntl
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.jobs import Policy
from supervisor.stores.records import ClaimRequest, Waiting
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.stores.transfer import TransferRecord
from tests.stores.at_once import all_at_once
from tests.stores.factories import Clock, again, put, success, waiting
from tests.stores.test_sqlite_crash_points import killed_before

DUMP = Path(__file__).parent / "version_1" / "sqlite.sql"
NEW_NAMES = {"letters": "dead_letters", "shut": "transfer_out", "received": "transfers_in"}
NEW_COLUMNS = {"dead_letters": {"owed": "[]"}, "supervisors": {"sinks": "[]", "about": "{}"}}
ADDED_TABLES = (
    "payloads", "reports", "schedules", "extras", "key_holders", "key_waiters", "snoozes", "job_tags", "unique_jobs", "expiries", "turns",
    "job_groups", "group_shares", "limits", "limited_leases", "held_back", "group_lines", "parents",
)  # fmt: skip
DEAD_OWNER = "host-2-bbbbbbbbbbbbbbbb"
CLOSED = """
  create table shut(id text not null, target text not null, place text not null, arrived int not null);
  insert into shut values ('x', 'postgresql://it''s there', 'there', 1);
  create trigger shut_enqueues before insert on jobs begin select raise(abort, 'moved'); end;
  create trigger shut_updates before update on jobs begin select raise(abort, 'moved'); end;
  create trigger shut_joins before insert on supervisors begin select raise(abort, 'moved'); end;"""
RECEIVED = "create table received(id text primary key) without rowid; insert into received values ('y');"


def database(path):
    return closing(sqlite3.connect(path, isolation_level=None))


def load(path, *more):
    with database(path) as raw:
        raw.executescript(DUMP.read_text())
        for script in more:
            raw.executescript(script)


@pytest.fixture
def path(tmp_path):
    load(tmp_path / "jobs.db")
    return tmp_path / "jobs.db"


@pytest.fixture
def clock():
    clock = Clock()
    clock.now = 1_790_001_302.0  # the lease of job 3 has just expired
    return clock


@pytest.fixture
def migrated(path, clock):
    store = SqliteStore(path, synchronous="normal", clock=clock)
    yield store
    store.leave()
    store.close()


def schema_of(path):
    with database(path) as raw:
        made = raw.execute("select name, sql from sqlite_master where sql is not null").fetchall()
        pragmas = [raw.execute(f"pragma {name}").fetchone() for name in ("user_version", "application_id")]
    return {name: " ".join(re.sub('["(),]', " ", sql).lower().split()) for name, sql in made}, pragmas


def rows_of(path):
    """Every row of every table, by the names of this version."""
    with database(path) as raw:
        raw.row_factory = sqlite3.Row
        tables = [name for (name,) in raw.execute("select name from sqlite_master where type = 'table'")]
        rows = {table: [dict(row) for row in raw.execute(f"select * from {table}")] for table in tables}
    return {table: [] for table in ADDED_TABLES} | {
        NEW_NAMES.get(table, table): [
            NEW_COLUMNS.get(NEW_NAMES.get(table, table), {})
            | {"expired_count" if column == "lapses" else column: value for column, value in row.items()}
            for row in its
        ]
        for table, its in rows.items()
    }


def test_its_schema_is_that_of_a_new_store(tmp_path, path, migrated):
    SqliteStore(tmp_path / "new.db", create=True).close()
    assert schema_of(path) == schema_of(tmp_path / "new.db")


@pytest.mark.parametrize("more", [(), (RECEIVED,), (CLOSED, RECEIVED)], ids=["plain", "received", "closed"])
def test_every_row_is_as_it_was(tmp_path, more):
    load(path := tmp_path / "jobs.db", *more)
    before = rows_of(path)
    assert [row["expired_count"] for row in before["jobs"] if row["id"] == 8] == [1]
    SqliteStore(path).close()
    assert rows_of(path) == before
    SqliteStore(path).close()
    assert rows_of(path) == before, "it is migrated once"


def test_long_texts_of_unfinished_jobs_leave_the_rows_that_claims_write_anew(tmp_path):
    long, headers = '"' + "x" * 5000 + '"', '{"a": "' + "y" * 5000 + '"}'
    change = (
        f"update jobs set payload = '{long}' where id in (2, 8); update jobs set headers = '{headers}' where id = 4"
    )
    load(path := tmp_path / "jobs.db", change)
    with closing(SqliteStore(path)) as store:
        assert [store.get(id)["payload"] for id in (2, 8)] == ["x" * 5000] * 2
        assert store.get(4)["headers"] == {"a": "y" * 5000}
    rows = rows_of(path)
    assert {row["job_id"]: (row["payload"] == long, row["headers"]) for row in rows["payloads"]} == {
        4: (False, headers),
        8: (True, None),
    }
    assert {row["id"] for row in rows["jobs"] if row["payload"] is None} == {4, 8}


def test_what_belongs_to_jobs_that_were_deleted_is_not_kept(tmp_path):
    """A dead letter without its job would wait for ever."""
    load(path := tmp_path / "jobs.db", "delete from jobs where id in (1, 2)")
    SqliteStore(path).close()
    rows = rows_of(path)
    assert {row["job_id"] for row in rows["dead_letters"] + rows["attempts"]}.isdisjoint({1, 2})


def test_garbage_in_its_dead_letters_keeps_it_from_no_version(tmp_path, clock):
    """What no row of this version may hold was put in by another program."""
    garbage = (
        "update letters set accepted = 'x', tries = -1, due_at = 'soon', token = 1e300, state = 7 where job_id = 2"
    )
    load(path := tmp_path / "jobs.db", garbage)
    store = SqliteStore(path, clock=clock)
    store.join("new", "host", 3, frozenset({"file"}))
    (dead_letter,) = store.claim_dead_letters(10, 30.0)
    assert (dead_letter.id, dead_letter.accepted) == (2, frozenset())
    assert store.mark_accepted([dead_letter], "file") == []
    assert store.get(2)["dead_letter"] == "delivered"
    store.leave()
    store.close()


def test_its_jobs_are_shown_as_they_were(migrated):
    states = {job["id"]: job["state"] for job in migrated.list_jobs()}
    assert states == {
        1: "failed", 2: "failed", 3: "in_flight", 4: "ready", 5: "succeeded", 6: "cancelled", 7: "scheduled", 8: "ready",
        9: "scheduled",
    }  # fmt: skip
    job = migrated.get(2)
    assert (job["payload"], job["max_retries"], job["dead_letter"]) == ({"n": 2}, 0, "pending")
    assert [error["message"] for error in job["errors"]] == ["no"]
    assert (migrated.get(1)["dead_letter"], migrated.get(1)["headers"]) == ("delivered", {"trace": "x"})
    assert migrated.paused() == {"slow"}


def test_its_jobs_go_on(migrated, clock):
    migrated.join("new", "host", 3, frozenset({"file", "web"}))
    (expired,) = migrated.expired_leases(10)
    assert (expired.lease.id, expired.owner, expired.lease.expired_count) == (3, DEAD_OWNER, 0)
    assert migrated.recover([again(expired.lease)._replace(seen=expired.deadline)]) == []
    (dead_letter,) = migrated.claim_dead_letters(10, 30.0)
    assert (dead_letter.id, dead_letter.accepted, dead_letter.tries) == (2, {"file"}, 2)
    assert migrated.mark_accepted([dead_letter], "web") == []
    assert migrated.get(2)["dead_letter"] == "delivered"
    migrated.pause("slow", False)
    clock.step(3600)
    assert migrated.look(None, 100).waiting == {"default": Waiting(1, 2), "slow": Waiting(2, 0)}
    takes = [ClaimRequest(queue, 10, 10, 10, 100) for queue in ("default", "slow")]
    leases = migrated.claim(takes, 30.0, lambda handler, queue: Policy())
    assert [(lease.id, lease.attempt, lease.policy.backoff.max) for lease in leases] == [
        (7, 2, 30.0), (3, 2, 8.0), (9, 1, 30.0), (8, 1, 30.0), (4, 1, 30.0),
    ]  # fmt: skip
    assert migrated.settle([success(lease) for lease in leases]) == []
    assert put(migrated) == [10]
    assert migrated.remaining(None, None) == {"ready": 1}


def test_its_triggers_refuse_the_same_values_as_before(path, migrated):
    with database(path) as raw:
        raw.execute("insert into jobs(handler, payload) values ('mail', '{}')")
        for column, value in (("expired_count", -1), ("priority", "high")):
            with pytest.raises(sqlite3.Error, match=rf"jobs\.{column}: expected"):
                raw.execute(f"insert into jobs(handler, {column}) values ('mail', ?)", (value,))
        with pytest.raises(sqlite3.Error, match=r"jobs\.queue: expected text"):
            raw.execute("update jobs set queue = x'00' where id = 10")
    assert waiting(migrated) == {"default": Waiting(1, 0)}


def test_a_closed_store_stays_closed(tmp_path):
    load(tmp_path / "jobs.db", CLOSED)
    with closing(SqliteStore(tmp_path / "jobs.db")) as store:
        record = TransferRecord("x", "postgresql://it's there", "there", True)
        assert store.transfer_record() == record
        for act in (lambda: put(store), lambda: store.cancel([4]), lambda: store.join("new", "host", 3)):
            with pytest.raises(
                StoreError, match="its jobs were transferred to postgresql://it's there: set store in the config"
            ):
                act()
        store.leave()
        fresh = SqliteStore(tmp_path / "new.db", create=True)
        fresh.close_for_transfer(record)
        fresh.close()
        assert schema_of(tmp_path / "jobs.db") == schema_of(tmp_path / "new.db")
        store.reopen(record)
        assert put(store) == [10]


def test_a_received_transfer_is_still_known(tmp_path):
    load(tmp_path / "jobs.db", RECEIVED)
    with closing(SqliteStore(tmp_path / "jobs.db")) as store:
        assert store.has_received(TransferRecord("y", "here", "here"))
        assert not store.has_received(TransferRecord("z", "here", "here"))


def test_a_process_killed_between_any_two_statements_of_a_migration_leaves_one_version_whole(tmp_path):
    load(path := tmp_path / "jobs.db", CLOSED, RECEIVED)
    before, statement, died, found = rows_of(path), 0, True, []
    version_1 = schema_of(path)
    while died:
        (folder := tmp_path / str(statement)).mkdir()
        (folder / "jobs.db").write_bytes(path.read_bytes())

        def open_it(count_from_here, path=folder / "jobs.db"):
            count_from_here()
            SqliteStore(path).close()

        died = killed_before(statement, open_it)
        schema = schema_of(folder / "jobs.db")
        assert rows_of(folder / "jobs.db") == before
        if schema not in found:
            found.append(schema)
        statement += 1
    assert statement > 20
    assert found[0] == version_1
    assert len(found) == 2, "of version 1, or migrated"


def test_programs_that_open_it_at_once_migrate_it_once(path):
    all_at_once(*[lambda: SqliteStore(path).close()] * 8)


# --- the files beside it


@pytest.fixture
def files_of_version_1(path):
    folder = path.with_name("jobs.db.bells")
    folder.mkdir()
    for name in (
        "jobs.db-gate",
        "jobs.db-turn",
        f"jobs.db.bells/{DEAD_OWNER}.lock",
        f"jobs.db.bells/{DEAD_OWNER}.sock",
    ):
        (path.parent / name).touch()
    return folder


def test_its_files_are_renamed_or_removed(files_of_version_1, migrated, path):
    left = {entry.name for entry in path.parent.rglob("*")}
    assert left == {
        "jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.notify", f"{DEAD_OWNER}.lock", f"{DEAD_OWNER}.sock",
    }  # fmt: skip


def test_an_owner_that_was_provably_gone_still_is(files_of_version_1, migrated, clock):
    clock.step(-600)
    gone = []
    migrated.watch_owners(gone.append)
    migrated.join("new", "host", 3)
    (expired,) = migrated.expired_leases(10)
    assert (expired.lease.id, expired.owner_gone) == (3, True)
    migrated.cancel([3])
    migrated.expired_leases(10)
    assert gone == [DEAD_OWNER]
    assert sorted(entry.name for entry in migrated.owner_lock.folder.iterdir()) == ["new.lock", "new.sock"]


def test_while_a_supervisor_of_version_1_uses_it_it_stays_as_it_is(files_of_version_1, path):
    before = schema_of(path)
    with (files_of_version_1 / f"{DEAD_OWNER}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            StoreUnavailable, match=f"in use by a supervisor of an older version .{DEAD_OWNER}.; stop it"
        ):
            SqliteStore(path)
    assert schema_of(path) == before
    assert files_of_version_1.exists()
    SqliteStore(path).close()


def test_files_that_a_killed_migration_left_are_renamed_by_the_next_opening(files_of_version_1, path):
    SqliteStore(path).close()
    path.with_name("jobs.db.notify").rename(files_of_version_1)
    path.with_name("jobs.db-gate").touch()
    SqliteStore(path).close()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["jobs.db", "jobs.db.notify"]
