"""A schema of version 1 becomes one of this version when it is opened: with all its jobs, in one transaction."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.jobs import Policy
from supervisor.stores.postgres.connection import Connection
from supervisor.stores.postgres.owner_lock import OwnerLock
from supervisor.stores.postgres.schema import VERSION
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import ClaimRequest, Waiting
from supervisor.stores.transfer import TransferRecord
from tests.stores.at_once import Meanwhile, all_at_once
from tests.stores.factories import PostgresFactory, again, put, success
from tests.system.command import wait_for

DUMP = Path(__file__).parent / "version_1" / "postgres.sql"
DUMPED = 1_795_962_712.0
EXPIRED = DUMPED + 601.0
"""When the lease of job 3 has expired, and its owner may run all the same."""
UNSEEN = DUMPED + 3_700.0
"""When no owner has been seen for an hour."""
OTHER_OWNER = "host-1-aaaaaaaaaaaaaaaa"
DEAD_OWNER = "host-2-bbbbbbbbbbbbbbbb"
RECORD = TransferRecord("x", "postgresql://it's there", "there", True)
CLOSED = """
  create table supervisor.shut(id text not null, target text not null, place text not null, arrived boolean not null);
  insert into supervisor.shut values ('x', 'postgresql://it''s there', 'there', true);
  create function supervisor.refuse_shut() returns trigger language plpgsql as
    $$ begin raise exception using message = 'moved'; end $$;
  create trigger shut before insert or update on supervisor.jobs for each statement
    execute function supervisor.refuse_shut();
  create trigger shut before insert on supervisor.supervisors for each statement
    execute function supervisor.refuse_shut();"""
LONG_AGO = "update supervisor.supervisors set unseen_after = 0"
"""So that no supervisor of version 1 uses the store now."""
RECEIVED = "create table supervisor.received(id text primary key); insert into supervisor.received values ('y');"
NEW_TABLES = {"letters": "dead_letters", "shut": "transfer_out", "received": "transfers_in"}
NEW_COLUMNS = {("jobs", "lapses"): "expired_count", ("supervisors", "place"): "owner_lock"}

ADDED_TABLES = (
    "reports", "schedules", "extras", "key_holders", "key_waiters", "snoozes", "job_tags", "unique_jobs", "expiries", "turns",
    "job_groups", "group_shares", "limits", "limited_leases", "held_back", "group_lines", "parents",
)  # fmt: skip
ADDED_COLUMNS = {
    "jobs": {"linked": None},
    "dead_letters": {"owed": "[]"},
    "supervisors": {"sinks": "[]", "about": "{}"},
}


@pytest.fixture
def nothing(tmp_path):
    """A factory of a schema that does not exist yet."""
    factory = PostgresFactory(tmp_path, schema="supervisor")
    yield factory
    factory.close()


@pytest.fixture
def factory(nothing):
    """A store of version 1, whose owners are of another machine, and which reads its time from the clock of the test."""
    load(nothing, "update supervisor.supervisors set place = null")
    nothing.clock.now = UNSEEN
    nothing.replace_clock()
    return nothing


def load(factory, *more):
    dump = "\n".join(line for line in DUMP.read_text().splitlines() if not line.startswith("\\"))
    with psycopg.connect(factory.server.url) as connection:
        for script in (dump, *more):
            connection.execute(script)


def migrate(factory):
    PostgresStore(factory.server.url, schema="supervisor").close()


ITS_TABLES = "(select oid from pg_class where relnamespace = 'supervisor'::regnamespace)"
# A dump writes other parentheses than there were.
CATALOG = (
    "select relname, relkind, relreplident, reloptions::text, relacl::text from pg_class where relnamespace = 'supervisor'::regnamespace",
    f"""select attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
        attcollation::regcollation, pg_get_expr(adbin, adrelid)
      from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum
      where attrelid in {ITS_TABLES} and attnum > 0""",
    f"""select conrelid::regclass, conname, translate(pg_get_constraintdef(oid), '()', '')
      from pg_constraint where conrelid in {ITS_TABLES}""",
    "select indexdef from pg_indexes where schemaname = 'supervisor'",
    f"select pg_get_triggerdef(oid) from pg_trigger where not tgisinternal and tgrelid in {ITS_TABLES}",
    "select pg_get_functiondef(oid), proacl::text from pg_proc where pronamespace = 'supervisor'::regnamespace",
)


def catalog_of(factory):
    return {row for query in CATALOG for row in factory.sql(query)}


def rows_of(factory):
    """Every row of every table, by the names of this version."""
    rows = {table: [] for table in ADDED_TABLES}
    for (table,) in factory.sql("select tablename from pg_tables where schemaname = 'supervisor'").fetchall():
        found = [row for (row,) in factory.sql(f"select to_jsonb(it) from {{s}}.{table} as it")]
        rows[NEW_TABLES.get(table, table)] = sorted(
            (
                ADDED_COLUMNS.get(NEW_TABLES.get(table, table), {})
                | {NEW_COLUMNS.get((table, column), column): value for column, value in row.items()}
                for row in found
            ),
            key=lambda row: sorted(row.items()),
        )
    assert rows.pop("version")
    return rows


def test_what_belongs_to_jobs_that_were_deleted_is_not_kept(nothing):
    """A dead letter without its job would wait for ever."""
    load(nothing, LONG_AGO, "delete from supervisor.jobs where id in (1, 2)")
    migrate(nothing)
    rows = rows_of(nothing)
    assert {row["job_id"] for row in rows["dead_letters"] + rows["attempts"]}.isdisjoint({1, 2})


def test_a_job_in_flight_without_a_lease_gets_one_that_has_expired(nothing):
    load(nothing, LONG_AGO, "update supervisor.jobs set owner = null, lease_until = null where state = 2")
    migrate(nothing)
    assert nothing.sql("select owner, lease_until from {s}.jobs where state = 2").fetchall() == [(0, 0)]


@pytest.mark.parametrize("more", [(), (RECEIVED,), (CLOSED, RECEIVED)], ids=["plain", "received", "closed"])
def test_its_catalog_is_that_of_a_new_store(nothing, more):
    """Columns, indexes, constraints, triggers, functions and privileges."""
    new = PostgresStore(nothing.server.url, schema="supervisor", create=True)
    if RECEIVED in more:
        new.import_jobs(RECORD, [], 0, frozenset())
    if CLOSED in more:
        new.close_for_transfer(RECORD)
    new.close()
    wanted = catalog_of(nothing)
    nothing.sql("drop schema {s} cascade")
    load(nothing, LONG_AGO, *more)
    assert catalog_of(nothing) != wanted
    migrate(nothing)
    assert catalog_of(nothing) == wanted


@pytest.mark.parametrize("more", [(), (RECEIVED,), (CLOSED, RECEIVED)], ids=["plain", "received", "closed"])
def test_every_row_is_as_it_was(nothing, more):
    load(nothing, LONG_AGO, *more)
    before = rows_of(nothing)
    assert [row["expired_count"] for row in before["jobs"] if row["id"] == 8] == [1]
    migrate(nothing)
    assert rows_of(nothing) == before
    migrate(nothing)
    assert rows_of(nothing) == before, "it is migrated once"


def test_garbage_in_its_dead_letters_keeps_it_from_no_version(nothing):
    """What no row of this version may hold was put in by another program."""
    garbage = """update supervisor.letters set accepted = 'x', tries = -1, due_at = 9223372036854775807,
      token = 9223372036854775807, state = 7 where job_id = 2"""
    load(nothing, LONG_AGO, garbage)
    migrate(nothing)
    store = nothing.joined("new")
    (dead_letter,) = store.claim_dead_letters(10, 30.0)
    assert (dead_letter.id, dead_letter.accepted) == (2, frozenset())
    assert store.mark_accepted([dead_letter], "file") == []
    assert store.get(2)["dead_letter"] == "delivered"


def test_its_jobs_are_shown_as_they_were(factory):
    store = factory.open()
    states = {job["id"]: job["state"] for job in store.list_jobs()}
    assert states == {
        1: "failed", 2: "failed", 3: "in_flight", 4: "ready", 5: "succeeded", 6: "cancelled", 7: "scheduled", 8: "ready",
        9: "scheduled",
    }  # fmt: skip
    job = store.get(2)
    assert (job["payload"], job["max_retries"], job["dead_letter"]) == ({"n": 2}, 0, "pending")
    assert [error["message"] for error in job["errors"]] == ["no"]
    assert (store.get(1)["dead_letter"], store.get(1)["headers"]) == ("delivered", {"trace": "x"})
    assert store.paused() == {"slow"}
    factory.check()


def test_its_jobs_go_on(factory):
    store = factory.joined("new")
    (expired,) = store.expired_leases(10)
    assert (expired.lease.id, expired.owner, expired.lease.expired_count) == (3, DEAD_OWNER, 0)
    assert store.recover([again(expired.lease)._replace(seen=expired.deadline)]) == []
    (dead_letter,) = store.claim_dead_letters(10, 30.0)
    assert (dead_letter.id, dead_letter.accepted, dead_letter.tries) == (2, {"file"}, 2)
    assert store.mark_accepted([dead_letter], "web") == []
    assert store.get(2)["dead_letter"] == "delivered"
    store.pause("slow", False)
    factory.clock.step(3600)
    assert store.look(None, 100).waiting == {"default": Waiting(1, 2), "slow": Waiting(2, 0)}
    takes = [ClaimRequest(queue, 10, 10, 10, 100) for queue in ("default", "slow")]
    leases = store.claim(takes, 30.0, lambda handler, queue: Policy())
    assert [(lease.id, lease.attempt, lease.policy.backoff.max) for lease in leases] == [
        (7, 2, 30.0), (3, 2, 8.0), (9, 1, 30.0), (8, 1, 30.0), (4, 1, 30.0),
    ]  # fmt: skip
    assert store.settle([success(lease) for lease in leases]) == []
    assert put(store) == [10]
    assert store.remaining(None, None) == {"ready": 1}
    factory.check()


def test_jobs_inserted_with_plain_sql_are_counted_and_notify_and_the_same_values_are_refused(factory):
    store = factory.joined("new")
    factory.sql("insert into {s}.jobs(handler, payload) values ('mail', '{}')")
    assert factory.notified(store)
    factory.check()
    for column, value in (("expired_count", -1), ("token", -1), ("retries", 1001), ("options", "[]")):
        with pytest.raises(psycopg.Error, match=rf"{column}: expected|claimable"):
            factory.sql(f"insert into {{s}}.jobs(handler, {column}) values ('mail', %s)", value)


def test_a_role_keeps_its_grants(factory):
    role = "app_of_version_1"
    factory.sql(f"create role {role}")
    try:
        factory.sql(f"grant usage on schema {{s}} to {role}")
        factory.sql(f"grant execute on function {{s}}.put, {{s}}.enqueue to {role}")
        store = factory.open()
        factory.sql(f"set role {role}")
        (id,) = factory.sql("select {s}.enqueue('mail')").fetchone()
        (ids,) = factory.sql("select {s}.put('[]')").fetchone()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            factory.sql("select from {s}.jobs")
        assert store.get(id)["state"] == "ready" and ids == []
    finally:
        factory.sql("reset role")
        factory.sql(f"drop owned by {role}")
        factory.sql(f"drop role {role}")


def test_a_closed_store_stays_closed(nothing):
    load(nothing, LONG_AGO, CLOSED)
    with closing(PostgresStore(nothing.server.url, schema="supervisor")) as store:
        assert store.transfer_record() == RECORD
        for act in (lambda: put(store), lambda: store.cancel([4]), lambda: store.join("new", "host", 3)):
            with pytest.raises(
                StoreError, match="its jobs were transferred to postgresql://it's there: set store in the config"
            ):
                act()
        store.leave()
        store.reopen(RECORD)
        assert put(store) == [10]


def test_a_received_transfer_is_still_known(nothing):
    load(nothing, LONG_AGO, RECEIVED)
    with closing(PostgresStore(nothing.server.url, schema="supervisor")) as store:
        assert store.has_received(TransferRecord("y", "here", "here"))
        assert not store.has_received(TransferRecord("z", "here", "here"))


class Killed(BaseException):
    pass


def sessions(factory):
    """The sessions of stores on this server: those that earlier tests have left may never end."""
    return {*factory.sql("select pid from pg_stat_activity where application_name = 'supervisor'").fetchall()}


def killed_before(statement, factory, monkeypatch):
    """Migrate in a process that is killed before it sends this statement. Returns whether it was killed."""
    left, send, before = iter(range(statement)), Connection._send, sessions(factory)

    def count(connection, driver, it):
        if next(left, None) is None:
            driver.close()
            raise Killed
        return send(connection, driver, it)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "_send", count)
            migrate(factory)
        return False
    except Killed:
        return True
    finally:
        while sessions(factory) - before:
            time.sleep(0.002)


def test_a_process_killed_between_any_two_statements_of_a_migration_leaves_one_version_whole(nothing, monkeypatch):
    load(nothing, LONG_AGO, CLOSED, RECEIVED)
    rows, version_1, statement = rows_of(nothing), catalog_of(nothing), 0
    while killed_before(statement, nothing, monkeypatch):
        assert catalog_of(nothing) == version_1 and rows_of(nothing) == rows
        statement += 1
    assert statement > 20
    assert catalog_of(nothing) != version_1 and rows_of(nothing) == rows


def test_a_migration_that_fails_half_way_leaves_version_1_whole_and_is_repeated(factory):
    factory.sql("create table {s}.dead_letters()")
    before = catalog_of(factory)
    with pytest.raises(StoreError, match='"dead_letters" already exists'):
        migrate(factory)
    assert catalog_of(factory) == before
    factory.sql("drop table {s}.dead_letters")
    migrate(factory)


def test_programs_that_open_it_at_once_migrate_it_once(factory):
    all_at_once(*[partial(migrate, factory)] * 8)
    assert factory.sql("select version from {s}.version").fetchall() == [(VERSION,)]


# --- supervisors of version 1


def refused(factory, *owners):
    """Whether the store stays as it is, since these owners may run."""
    before = catalog_of(factory), rows_of(factory)
    named = ", ".join(f"{owner} on host" for owner in owners)
    with pytest.raises(
        StoreUnavailable, match=rf"in use by a supervisor of an older version \({named}\); stop it first"
    ):
        migrate(factory)
    return (catalog_of(factory), rows_of(factory)) == before


def test_while_a_supervisor_of_version_1_uses_it_it_stays_as_it_is(factory):
    factory.clock.now = EXPIRED
    assert refused(factory, OTHER_OWNER, DEAD_OWNER)
    factory.sql("update {s}.supervisors set state = 'left' where owner = %s", OTHER_OWNER)
    assert refused(factory, DEAD_OWNER)
    factory.clock.now = UNSEEN
    migrate(factory)


def test_a_supervisor_of_this_machine_that_is_gone_does_not_use_it(factory):
    factory.clock.now = EXPIRED
    factory.sql("update {s}.supervisors set state = 'left' where owner = %s", OTHER_OWNER)
    (lock := OwnerLock("a store")).take(DEAD_OWNER)
    factory.sql("update {s}.supervisors set place = %s where owner = %s", lock.address, DEAD_OWNER)
    assert refused(factory, DEAD_OWNER)
    lock.release()
    store = factory.joined("new")
    (expired,) = store.expired_leases(10)
    assert (expired.lease.id, expired.owner, expired.owner_gone) == (3, DEAD_OWNER, True)


def test_a_supervisor_of_version_1_that_joins_at_this_moment_is_seen(factory):
    join = "insert into supervisor.supervisors(owner, host, pid, state, seen_at, unseen_after) values (%s, 'host', 1, '', 0, %s)"
    with factory.server.connect() as other, other.transaction():
        other.execute(join, ["late", 2**60])
        opening = Meanwhile(migrate, factory)
        wait_for(lambda: factory.sql("select from pg_locks where not granted").fetchone() is not None)
    with pytest.raises(StoreUnavailable, match=r"older version \(late on host\)"):
        opening.join()
