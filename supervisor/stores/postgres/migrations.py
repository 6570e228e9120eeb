"""Migrate a PostgreSQL store of any version to this version. Names of older versions are used in this file only."""

from __future__ import annotations

import hashlib

from supervisor.errors import StoreError, StoreMissing, StoreUnavailable
from supervisor.stores.codes import DELIVERED, IN_FLIGHT, LEFT, PENDING, WITHDRAWN
from supervisor.stores.limits import MAX_DEAD_LETTER_TOKEN, MAX_TIME, MAX_TRIES
from supervisor.stores.postgres.connection import NOW, Connection
from supervisor.stores.postgres.expiry import EXPIRIES
from supervisor.stores.postgres.functions import BODY, DROP_OLD_ENQUEUE, FUNCTIONS, MAX_SCHEMA_BYTES
from supervisor.stores.postgres.groups import GROUP_FUNCTIONS, GROUP_TABLES, GROUP_TRIGGERS
from supervisor.stores.postgres.job_limits import HELD_BACK_TABLES, LIMIT_TABLES, LIMITS_UNTIL
from supervisor.stores.postgres.keys import KEY_FUNCTIONS, KEY_TABLES
from supervisor.stores.postgres.links import LINK_FUNCTIONS
from supervisor.stores.postgres.owner_lock import is_gone
from supervisor.stores.postgres.schedules import SCHEDULES
from supervisor.stores.postgres.schema import (
    BLOCKED_JOBS,
    CLAIMABLE,
    CLAIMABLE_JOB,
    CLOSE,
    COUNTS_BY_QUEUE,
    EXTRAS,
    INSERTED_BY_SQL,
    JOBS_DELETED,
    JOBS_DELETED_FUNCTIONS,
    KEYLESS_TABLES,
    LEASED,
    PENDING_DEAD_LETTERS,
    QUEUE_CHANGED,
    REPORTS,
    SCHEMA,
    SNOOZES,
    VERSION,
    VERSION_FOR_ALL,
)
from supervisor.stores.postgres.tags import TAGS
from supervisor.stores.postgres.unique import UNIQUE_FUNCTIONS, UNIQUE_TABLES
from supervisor.stores.postgres.workflows import PARENT_FUNCTIONS, PARENT_TABLES
from supervisor.stores.sinks import sinks_of, sinks_text

# What no row of this version may hold was put in by another program.
CORRECT_DEAD_LETTERS = f"""
  update {{s}}.dead_letters set state = {PENDING}, token = 0, due_at = 0, tries = 0
  where state not between {WITHDRAWN} and {DELIVERED} or token not between 0 and {MAX_DEAD_LETTER_TOKEN}
    or due_at not between {-MAX_TIME} and {MAX_TIME} or tries not between 0 and {MAX_TRIES}"""
ACCEPTED = "select distinct accepted from {s}.letters"
SET_ACCEPTED = "update {s}.letters set accepted = $2 where accepted = $1"

_LINKING_FUNCTIONS = (
    *GROUP_FUNCTIONS,
    *KEY_FUNCTIONS,
    *PARENT_FUNCTIONS,
    *LINK_FUNCTIONS,
    *UNIQUE_FUNCTIONS,
)
FROM_VERSION_3 = (
    "alter table {s}.limits add column until bigint",
    LIMITS_UNTIL,
    "create table {s}.held_back_by_handler as select * from {s}.held_back",
    "drop table {s}.held_back",
    *HELD_BACK_TABLES,
    """insert into {s}.held_back(job_id, age, priority, tier, name, queue)
      select job_id, age, priority, tier, 'handler ' || handler, queue from {s}.held_back_by_handler""",
    "drop table {s}.held_back_by_handler",
    *(it.replace("create function", "create or replace function", 1) for it in _LINKING_FUNCTIONS),
    QUEUE_CHANGED[0],
    *JOBS_DELETED_FUNCTIONS,
    *FUNCTIONS,
)
FROM_VERSION_2 = (
    SCHEDULES,
    "alter table {s}.jobs add column linked boolean, drop constraint claimable",
    f"alter table {{s}}.jobs add constraint claimable {CLAIMABLE_JOB}",
    BLOCKED_JOBS,
    EXTRAS,
    *TAGS,
    SNOOZES,
    *KEY_TABLES,
    *LIMIT_TABLES,
    *PARENT_TABLES,
    *UNIQUE_TABLES,
    EXPIRIES,
    *GROUP_TABLES,
    *_LINKING_FUNCTIONS,
    *GROUP_TRIGGERS,
    QUEUE_CHANGED[0],
    *JOBS_DELETED_FUNCTIONS,
    *FUNCTIONS,
    DROP_OLD_ENQUEUE,
)

FROM_VERSION_1 = (
    VERSION_FOR_ALL,
    "drop trigger put_by_hand on {s}.jobs",
    "drop function {s}.put_by_hand()",
    "alter table {s}.jobs rename column lapses to expired_count",
    "alter table {s}.jobs alter column id set generated always",
    "alter table {s}.letters rename to dead_letters",
    "alter index {s}.letters_pkey rename to dead_letters_pkey",
    "drop index {s}.pending_letters",
    "alter table {s}.supervisors rename column place to owner_lock",
    "alter table {s}.supervisors add column sinks text not null default '[]'",
    "alter table {s}.supervisors add column about text not null default '{}'",
    # It did not keep the sinks that they are owed to: they are owed to those of the supervisor that claims them.
    """alter table {s}.dead_letters alter column accepted type text collate "C",
      add column owed text collate "C" not null default '[]'""",
    PENDING_DEAD_LETTERS,
    COUNTS_BY_QUEUE,
    *INSERTED_BY_SQL,
    f"alter table {{s}}.jobs add constraint leased {LEASED}",
    *QUEUE_CHANGED,
    REPORTS,
    *JOBS_DELETED,
    "delete from {s}.dead_letters where job_id not in (select id from {s}.jobs)",
    "delete from {s}.attempts where job_id not in (select id from {s}.jobs)",
    CORRECT_DEAD_LETTERS,
    f"alter table {{s}}.dead_letters add constraint claimable_dead_letter {CLAIMABLE}",
    *KEYLESS_TABLES,
    *FUNCTIONS,
)
CLOSED_FROM_VERSION_1 = (
    "drop trigger shut on {s}.jobs",
    "drop trigger shut on {s}.supervisors",
    "drop function {s}.refuse_shut()",
    "alter table {s}.shut rename to transfer_out",
    *CLOSE,
)
RECEIVED_FROM_VERSION_1 = (
    "alter table {s}.received rename to transfers_in",
    "alter index {s}.received_pkey rename to transfers_in_pkey",
)
# Since version 18 of PostgreSQL `not null` is a constraint, which keeps its name when its column or table gets another.
NOT_NULL_FROM_VERSION_1 = f"""
  do {BODY}
    declare it record;
    begin
      for it in
        select conrelid::regclass as its_table, conname, name.new || substr(conname, length(name.old) + 1) as new_name
        from pg_constraint join (values ('jobs_lapses_', 'jobs_expired_count_'), ('letters_', 'dead_letters_'),
          ('shut_', 'transfer_out_'), ('received_', 'transfers_in_')) as name(old, new) on starts_with(conname, name.old)
        where contype = 'n' and connamespace = (select relnamespace from pg_class where oid = {{jobs}}::regclass)
      loop
        execute format('alter table %s rename constraint %I to %I', it.its_table, it.conname, it.new_name);
      end loop;
    end {BODY}"""
# The next supervisor recovers these jobs. A store that is closed has none in flight.
EXPIRE_UNLEASED = f"""
  update {{s}}.jobs set owner = coalesce(owner, 0), lease_until = coalesce(lease_until, 0)
  where state = {IN_FLIGHT} and (owner is null or lease_until is null)"""
# The lock keeps supervisors from joining between the look for running ones and the migration.
LOCK_SUPERVISORS = "lock table {s}.jobs, {s}.supervisors in access exclusive mode"
# It reads the catalog itself: after a wait for the lock of another process, `to_regclass` alone answers from a cache that is as
# old as the transaction.
MAY_CREATE = """
  select current_user::text, current_database()::text, to_regnamespace($1) is not null,
    case when to_regnamespace($1) is null then has_database_privilege(current_database(), 'create')
      else has_schema_privilege(to_regnamespace($1), 'create') end"""
FIND_TABLE = "select relname from pg_catalog.pg_class where oid operator(pg_catalog.=) pg_catalog.to_regclass($1)"
RUNNING = f"""
  select owner, host, owner_lock from {{s}}.supervisors where state <> '{LEFT}' and unseen_after >= {NOW} order by id"""
RUNNING_OF_VERSION_1 = f"""
  select owner, host, place from {{s}}.supervisors where state <> '{LEFT}' and unseen_after >= {NOW} order by id"""


def bring_up(connection: Connection, *, create: bool) -> None:
    """Make the schema of a new store, or migrate an older one, in one transaction, and close the connection if that fails. Raises
    StoreMissing if there is none and `create` is false, and StoreUnavailable while a supervisor of an older version uses it."""
    try:
        _check_name(connection.schema)
        version = _known_version(connection)
        if version is None and not create:
            missing = f"{connection.url}: no job store in its schema {connection.schema} yet"
            raise StoreMissing(missing, _obstacle(connection))
        if version is None or version < VERSION:
            with connection.transaction():
                _bring_up(connection)
    except BaseException:
        connection.close()
        raise


def _check_name(schema: str) -> None:
    if not schema or len(schema.encode()) > MAX_SCHEMA_BYTES or not schema.isprintable() or {*schema} & {*"{}"}:
        raise StoreError(
            f"store.schema: expected a name of 1 to {MAX_SCHEMA_BYTES} bytes without braces, got {schema!r}"
        )
    if schema.startswith("pg_"):
        raise StoreError(f"store.schema: names that begin with pg_ are PostgreSQL's own, got {schema!r}")


def _known_version(connection: Connection) -> int | None:
    """Return the version of the store, or None if there is no store yet."""
    if not has_table(connection, "version"):
        return None
    version = int(connection.value("select max(version) from {s}.version") or 0)
    if version > VERSION:
        raise StoreError(
            f"{connection.url}: schema {connection.schema} is version {version}, of a newer job-supervisor; "
            f"this one expects at most {VERSION}"
        )
    return version


def _bring_up(connection: Connection) -> None:
    """Make or migrate the schema. A second process waits for the lock, and then finds nothing to do."""
    connection.run("select pg_advisory_xact_lock($1)", _lock_of(connection.schema))
    version = _known_version(connection)
    if version is None:
        _make(connection)
    elif version < VERSION:
        connection.run(LOCK_SUPERVISORS)
        _refuse_running(connection, RUNNING_OF_VERSION_1 if version == 1 else RUNNING)
        if version == 1:
            _migrate_version_1(connection)
        _run_all(connection, FROM_VERSION_3 if version == 3 else FROM_VERSION_2)
    connection.run("delete from {s}.version")
    connection.run("insert into {s}.version values ($1)", VERSION)


def _make(connection: Connection) -> None:
    if obstacle := _obstacle(connection):
        raise StoreError(obstacle)
    if connection.value("select to_regnamespace($1)", connection.names.schema) is None:
        connection.run("create schema {s}")
    _run_all(connection, SCHEMA)


def _obstacle(connection: Connection) -> str | None:
    """Return why the schema of a new store can't be made, if that is so."""
    encoding = connection.value("select current_setting('server_encoding')")
    if encoding != "UTF8":
        return f"{connection.url}: expected a database with the encoding UTF8, not {encoding}"
    role, database, schema_exists, may_create = connection.rows(MAY_CREATE, connection.names.schema)[0]
    if may_create:
        return None
    kind, name = ("schema", connection.schema) if schema_exists else ("database", database)
    return (
        f"{connection.url}: role {role} may not create {'tables' if schema_exists else 'a schema'} in {kind} {name}: let its owner "
        f"run `grant create on {kind} {name} to {role}`, or make the store once as a role that may"
    )


def _refuse_running(connection: Connection, query: str) -> None:
    """Raise StoreUnavailable if the query finds a supervisor of the older version that is running."""
    if running := [f"{owner} on {host}" for owner, host, lock in connection.rows(query) if not is_gone(lock)]:
        raise StoreUnavailable(
            f"{connection.url}: in use by a supervisor of an older version ({', '.join(running)}); stop it first"
        )


def _migrate_version_1(connection: Connection) -> None:
    closed = has_table(connection, "shut")
    if not closed:
        connection.run(EXPIRE_UNLEASED)
    for text in connection.column(ACCEPTED):
        connection.run(SET_ACCEPTED, text, sinks_text(sinks_of(text)))
    _run_all(connection, FROM_VERSION_1)
    if closed:
        _run_all(connection, CLOSED_FROM_VERSION_1)
    if has_table(connection, "received"):
        _run_all(connection, RECEIVED_FROM_VERSION_1)
    connection.run(NOT_NULL_FROM_VERSION_1)


def _run_all(connection: Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        connection.run(statement)


def has_table(connection: Connection, name: str) -> bool:
    return connection.value(FIND_TABLE, f"{connection.names.schema}.{name}") is not None


def _lock_of(schema: str) -> int:
    return int.from_bytes(hashlib.sha256(f"supervisor schema {schema}".encode()).digest()[:8], "big", signed=True)
