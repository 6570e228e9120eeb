"""Migrate a SQLite store of any version to this version. Names of older versions are used in this file only."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.stores.codes import BLOCKED, SUCCEEDED
from supervisor.stores.limits import MAX_DEAD_LETTER_TOKEN, MAX_TIME, MAX_TRIES
from supervisor.stores.sqlite.connection import Connection
from supervisor.stores.sqlite.database_file import beside, code_of, store_error
from supervisor.stores.sqlite.expiry import EXPIRIES
from supervisor.stores.sqlite.groups import GROUP_TABLES
from supervisor.stores.sqlite.job_limits import HELD_BACK_TABLES, LIMIT_TABLES, LIMITS_UNTIL
from supervisor.stores.sqlite.keys import KEY_TABLES
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.schedules import SCHEDULES
from supervisor.stores.sqlite.schema import (
    APPLICATION_ID,
    BLOCKED_JOBS,
    CLOSED_TRIGGERS,
    DEAD_LETTERS,
    EXTRAS,
    INSERTED_BY_SQL,
    JOB_DELETED,
    PENDING_DEAD_LETTERS,
    QUEUE_CHANGED,
    REPORTS,
    SCHEMA,
    SNOOZES,
    UPDATED_BY_SQL,
    VERSION,
    between,
    closed_trigger,
    is_list,
)
from supervisor.stores.sqlite.tags import TAGS
from supervisor.stores.sqlite.texts import PAYLOADS, headers_are_long, texts_are_long
from supervisor.stores.sqlite.unique import UNIQUE_TABLES
from supervisor.stores.sqlite.workflows import PARENT_TABLES
from supervisor.stores.sqlite.write_lock import FileLock
from supervisor.stores.transfer import closed_message

_OPENING_SECONDS = 5.0

# It did not keep the sinks that they are owed to: they are owed to those of the supervisor that claims them. What no row of this
# version may hold was put in by another program.
DEAD_LETTERS_OF_VERSION_1 = f"""
  insert into dead_letters(job_id, state, token, owner, due_at, tries, accepted)
  select job_id, iif(state in (0, 1, 2), state, 1), iif({between("token", 0, MAX_DEAD_LETTER_TOKEN)}, token, 0), owner,
    iif({between("due_at", -MAX_TIME, MAX_TIME)}, due_at, 0), iif({between("tries", 0, MAX_TRIES)}, tries, 0),
    iif({is_list("accepted")}, accepted, '[]')
  from letters"""

FROM_VERSION_1 = (
    "drop trigger put_by_hand",
    "drop trigger changed_by_hand",
    "alter table jobs rename column lapses to expired_count",
    PAYLOADS,
    f"""insert into payloads select id, payload, iif({headers_are_long("jobs")}, headers, null) from jobs
      where state < {SUCCEEDED} and {texts_are_long("jobs")}""",
    f"""update jobs set payload = null, headers = iif({headers_are_long("jobs")}, null, headers)
      where id in (select job_id from payloads)""",
    UPDATED_BY_SQL,
    DEAD_LETTERS,
    DEAD_LETTERS_OF_VERSION_1,
    "drop table letters",
    PENDING_DEAD_LETTERS,
    "alter table supervisors add column sinks text not null default '[]'",
    "alter table supervisors add column about text not null default '{}'",
    REPORTS,
    "delete from dead_letters where job_id not in (select id from jobs)",
    "delete from attempts where job_id not in (select id from jobs)",
)
CLOSED_FROM_VERSION_1 = (
    "drop trigger shut_enqueues",
    "drop trigger shut_updates",
    "drop trigger shut_joins",
    "alter table shut rename to transfer_out",
)


FROM_VERSION_2 = (
    SCHEDULES,
    SNOOZES,
    EXTRAS,
    *TAGS,
    *KEY_TABLES,
    *LIMIT_TABLES,
    *PARENT_TABLES,
    *UNIQUE_TABLES,
    EXPIRIES,
    *GROUP_TABLES,
    BLOCKED_JOBS,
    "drop trigger if exists inserted_by_sql",
    INSERTED_BY_SQL,
    "drop trigger if exists job_deleted",
    JOB_DELETED,
    "drop trigger if exists queue_changed",
    QUEUE_CHANGED,
)

FROM_VERSION_3 = (
    "drop trigger queue_changed",
    "drop trigger job_deleted",
    "alter table limits add column until int",
    LIMITS_UNTIL,
    "alter table held_back rename to held_back_by_handler",
    *HELD_BACK_TABLES,
    f"""insert into held_back(job_id, name, queue, tier, priority, age)
      select job_id, 'handler ' || held.handler, held.queue, held.tier, held.priority, held.age
      from held_back_by_handler as held cross join jobs on id = job_id and state = {BLOCKED} and jobs.age = held.age where true
      on conflict do nothing""",
    "drop table held_back_by_handler",
    QUEUE_CHANGED,
    JOB_DELETED,
)


def bring_up(connection: Connection, synchronous: str, folder: Path) -> None:
    """Make the schema of a new store, or migrate an older one, in one transaction; `folder` is that of the owners' files. It
    waits some seconds for other processes that do the same, and closes the connection if it fails."""
    try:
        _wait_until_up(connection, synchronous, folder)
    except BaseException:
        connection.close()
        raise
    _rename_files_of_version_1(connection.path, folder)


def _wait_until_up(connection: Connection, synchronous: str, folder: Path) -> None:
    deadline = time.monotonic() + _OPENING_SECONDS
    while True:
        try:
            _bring_up(connection, synchronous, folder)
            return
        except sqlite3.Error as error:
            if code_of(error) != sqlite3.SQLITE_BUSY:
                raise store_error(error, connection.path) from error
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"{connection.path}: {error}") from error


def _bring_up(connection: Connection, synchronous: str, folder: Path) -> None:
    connection.execute("begin")  # to read one state: another process may be making this store
    try:
        version = _known_version(connection)
    finally:
        with suppress(sqlite3.Error):
            connection.execute("rollback")
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute(f"pragma journal_size_limit = {connection.limits.wal_bytes}")
    if version < VERSION:
        _migrate(connection, folder)
    connection.execute("pragma temp_store = memory")  # otherwise savepoints keep their undo data in files in /tmp


def _known_version(connection: Connection) -> int:
    path = connection.path
    version: int = connection.value("pragma user_version")
    ours = connection.value("pragma application_id") == APPLICATION_ID
    if not ours and (version or connection.value("select count(*) from sqlite_master")):
        raise StoreError(f"{path}: a SQLite database of another program; expected a job store or a new file")
    if version > VERSION:
        raise StoreError(
            f"{path}: schema version {version} is of a newer job-supervisor; this one expects at most {VERSION}"
        )
    return version


def _migrate(connection: Connection, folder: Path) -> None:
    connection.execute("begin immediate")
    try:
        version = _known_version(connection)
        if version == 0:
            _execute_all(connection, SCHEMA)
        elif version < VERSION:
            _refuse_running(connection.path, beside(connection.path, ".bells") if version == 1 else folder)
            if version == 1:
                _migrate_version_1(connection)
            _execute_all(connection, FROM_VERSION_3 if version == 3 else FROM_VERSION_2)
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        connection.execute(f"pragma user_version = {VERSION}")
        connection.execute("commit")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("rollback")
        raise


def _refuse_running(path: Path, folder: Path) -> None:
    """Raise StoreUnavailable if a supervisor of the older version, whose locks are in this folder, is running."""
    lock = OwnerLock(folder)
    if running := [owner for owner in sorted(lock.owners()) if not lock.is_gone(owner)]:
        raise StoreUnavailable(
            f"{path}: in use by a supervisor of an older version ({', '.join(running)}); stop it first"
        )


def _migrate_version_1(connection: Connection) -> None:
    _execute_all(connection, FROM_VERSION_1)
    tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
    if b"shut" in tables:
        _execute_all(connection, CLOSED_FROM_VERSION_1)
        target = connection.value("select target from transfer_out").decode()
        _execute_all(connection, [closed_trigger(name, closed_message(target)) for name in CLOSED_TRIGGERS])
    if b"received" in tables:
        connection.execute("alter table received rename to transfers_in")


def _execute_all(connection: Connection, statements: tuple[str, ...] | list[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def _rename_files_of_version_1(path: Path, folder: Path) -> None:
    """Rename the folder of the owners' locks, which prove that owners are gone. Remove unused locks of writers."""
    with suppress(OSError):
        beside(path, ".bells").rename(folder)
    for name in ("-gate", "-turn"):
        file = beside(path, name)
        if file.exists():
            lock = FileLock(file)
            if lock.try_take():
                lock.unlink()
            lock.close()
