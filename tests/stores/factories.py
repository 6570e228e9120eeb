"""One place where jobs are kept, opened as often as a test needs, and the few calls that most tests make."""

from __future__ import annotations

import itertools
import os
import select
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome, Policy
from supervisor.stores.fencing import RandomPart
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.postgres.limits import DEFAULT_LIMITS, PostgresLimits
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.protocol import Store
from supervisor.stores.records import ClaimRequest, DeadLetter, EnqueueRow, Waiting
from supervisor.stores.sqlite.store import SqliteStore
from tests.stores.postgres_server import Server, server

POLICY = Policy(max_retries=3, timeout=5.0)
TTL = 30.0


class Clock:
    """Seconds since the epoch; steps only when a test steps it, in both directions."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def step(self, seconds: float) -> None:
        self.now += seconds

    @property
    def microseconds(self) -> int:
        return round(self.now * 1e6)


def is_readable(fd: int | None, seconds: float) -> bool:
    assert fd is not None
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


COUNTS = (
    "select state, queue, tier, sum(n) from {s}.counts group by state, queue, tier having sum(n) != 0",
    "select state, queue, tier, count(*) from {s}.jobs group by state, queue, tier",
)


class StoreFactory:
    max_notifications = 1000
    """An owner holds no more than these."""
    notify_takes = 0.0
    """Seconds that a notification may be on its way."""
    durable = True
    """Whether its jobs outlive the processes that use them: see `kill` and `crash`."""
    first_token = 1
    """Of a job that is claimed for the first time."""
    dead_letters_have_records = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.random_part: RandomPart = lambda: 0  # so that a token is the number of claims
        self._opened: list[Store] = []

    def open(self) -> Store:
        self._opened.append(store := self._open())
        return store

    def joined(self, owner: str, *sinks: str) -> Store:
        """A store of a supervisor that has these sinks; "file" if none is named."""
        store = self.open()
        store.join(owner, "host", 4711, frozenset(sinks or ("file",)))
        return store

    def notified(self, store: Store) -> bool:
        """Whether another owner or client has notified: waits as long as that may take."""
        return is_readable(store.notification_fd(), self.notify_takes)

    def quiet(self, store: Store) -> bool:
        """Whether there is no notification, nor any on its way."""
        return not is_readable(store.notification_fd(), min(0.1, self.notify_takes))

    def clear_notifications(self, store: Store) -> None:
        """Take off every notification, and those on their way."""
        store.clear_notifications()
        while not self.quiet(store):
            store.clear_notifications()

    def close(self) -> None:
        for store in self._opened:
            store.leave()
            store.close()
        self._opened = []

    def kill(self, store: Store) -> None:
        """End the process of this store as kill -9 does; the others go on."""
        raise NotImplementedError

    def crash(self) -> None:
        """End all processes at this moment. Until `restart` open stores can still be used, but nothing of that is kept."""
        raise NotImplementedError

    def restart(self) -> None:
        """From here on every store that is opened finds the state that the crash left."""
        raise NotImplementedError

    def save(self) -> None:
        """Back the store up, as the one that `go_back` restores."""
        raise NotImplementedError

    def go_back(self) -> None:
        """Restore the backup in its place, while stores are open."""
        raise NotImplementedError

    def check(self) -> None:
        """Fail if the counts that are kept beside the jobs don't agree with them."""
        if self.durable:
            kept, counted = (sorted(self.sql(query)) for query in COUNTS)
            assert kept == counted

    def sql(self, text: str, *parameters: object) -> Any:
        """Execute a statement as another program does. `{s}` is the schema of the tables."""
        raise NotImplementedError

    def _open(self) -> Store:
        raise NotImplementedError


class MemoryFactory(StoreFactory):
    max_notifications = 65_536
    durable = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._first = MemoryStore(self.clock)

    def _open(self) -> Store:
        return MemoryStore(state=self._first.state)


class Moment(NamedTuple):
    """The length of the log, and the locks that exist."""

    log_length: int
    locks: list[str]


class SqliteFactory(StoreFactory):
    """A crash copies the files as they are, before SQLite tidies up as it does when it is closed, and the test goes on with the copy."""

    _crashes = 0

    @property
    def path(self) -> Path:
        return self.folder / "jobs.db"

    @property
    def log(self) -> Path:
        return self.folder / "jobs.db-wal"

    def kill(self, store: Store) -> None:
        assert isinstance(store, SqliteStore)
        self._opened.remove(store)
        drop_as_killed(store)

    def moment(self) -> Moment:
        return Moment(self.log.stat().st_size, [lock.name for lock in self.folder.glob("jobs.db.notify/*.lock")])

    def crash(self) -> None:
        self._copy(self.moment())

    def crash_in_the_commit_after(self, before: Moment, share: float) -> bool:
        """Crash when only this share of the log's growth since `before` has reached the file, and nothing that follows a commit has
        been done. Returns whether the commit is whole all the same."""
        after = self.moment().log_length
        reached = before.log_length + int(share * max(0, after - before.log_length))
        self._copy(Moment(reached if after > before.log_length else after, before.locks))
        return after <= before.log_length or reached == after

    def _copy(self, moment: Moment) -> None:
        self._crashes += 1
        after = self._after_crash
        after.mkdir()
        shutil.copyfile(self.path, after / self.path.name)
        (after / self.log.name).write_bytes(self.log.read_bytes()[: moment.log_length])
        (after / "jobs.db.notify").mkdir(mode=0o700)
        for lock in moment.locks:
            (after / "jobs.db.notify" / lock).touch()

    def restart(self) -> None:
        self.close()
        self.folder = self._after_crash

    def save(self) -> None:
        self._backup.unlink(missing_ok=True)
        with closing(sqlite3.connect(self.path)) as live, closing(sqlite3.connect(self._backup)) as backup:
            live.backup(backup)

    def go_back(self) -> None:
        with closing(sqlite3.connect(self.path)) as live, closing(sqlite3.connect(self._backup)) as backup:
            backup.backup(live)

    @property
    def _backup(self) -> Path:
        return self.folder.with_name("backup.db")

    def check(self) -> None:
        assert self.sql("pragma integrity_check") == [("ok",)]
        super().check()

    def sql(self, text: str, *parameters: object) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            return database.execute(text.replace("{s}", "main"), parameters).fetchall()

    @property
    def _after_crash(self) -> Path:
        return self.folder.with_name(f"after-crash-{self._crashes}")

    def _open(self) -> SqliteStore:
        return SqliteStore(
            self.path, create=True, synchronous="normal", clock=self.clock, random_part=lambda: self.random_part()
        )


TABLES = (
    "jobs", "counts", "attempts", "dead_letters", "queues", "supervisors", "schedules", "extras", "key_holders", "key_waiters",
    "reports", "snoozes", "job_tags", "turns", "job_groups", "group_shares",
)  # fmt: skip
NUMBERED = ("jobs", "attempts", "supervisors")


class PostgresClock(Clock):
    """Of a store whose `clock()` reads a table that this one writes to."""

    def __init__(self) -> None:
        self._table: Callable[[int], None] | None = None
        super().__init__()

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        self._now = now
        self.write()

    def __deepcopy__(self, memo: object) -> PostgresClock:
        return self

    def write(self) -> None:
        if self._table is not None:
            self._table(self.microseconds)

    def write_to(self, table: Callable[[int], None]) -> None:
        self._table = table
        self.write()


class PostgresFactory(StoreFactory):
    """A schema of its own. A crash cuts every connection at once, as the end of all processes does."""

    max_notifications = 200
    notify_takes = 5.0
    _numbers = itertools.count()

    def __init__(
        self, folder: Path, limits: PostgresLimits = DEFAULT_LIMITS, on: Server | None = None, schema: str = ""
    ) -> None:
        """`limits` are those of the stores that are opened; a test may set others later."""
        super().__init__(folder)
        self.clock: PostgresClock = PostgresClock()
        self.limits = limits
        self.schema = schema or f"jobs {os.getpid()} {next(self._numbers)}"
        self.server = on or server()
        self.admin = self.server.connect()

    def sql(self, text: str, *parameters: object) -> psycopg.Cursor:
        return self.admin.execute(text.replace("{s}", f'"{self.schema}"'), parameters)

    def close(self) -> None:
        super().close()
        self.sql(f"drop schema if exists {{s}}, {self._backup} cascade")
        self.admin.close()

    def kill(self, store: Store) -> None:
        assert isinstance(store, PostgresStore)
        self._opened.remove(store)
        processes = cut_as_killed(store)
        while self.sql("select 1 from pg_stat_activity where pid = any(%s)", processes).fetchone():
            time.sleep(0.002)

    def crash(self) -> None:
        for store in list(self._opened):
            self.kill(store)

    def restart(self) -> None:
        assert not self._opened

    def save(self) -> None:
        self.sql(f"drop schema if exists {self._backup} cascade")
        self.sql(f"create schema {self._backup}")
        for table in TABLES:
            self.sql(f"create table {self._backup}.{table} as select * from {{s}}.{table}")
        for table in NUMBERED:
            self.sql(
                f"create table {self._backup}.{table}_ids as select last_value, is_called from {{s}}.{table}_id_seq"
            )

    def go_back(self) -> None:
        for store in self._opened:
            store.connection.flush()
        with self.admin.transaction():
            self.sql("set local session_replication_role = replica")
            for table in TABLES:
                self.sql(f"delete from {{s}}.{table}")
                self.sql(f"insert into {{s}}.{table} overriding system value select * from {self._backup}.{table}")
            for table in NUMBERED:
                self.sql(
                    f"select setval('{{s}}.{table}_id_seq', last_value, is_called) from {self._backup}.{table}_ids"
                )

    @property
    def _backup(self) -> str:
        return f'"{self.schema} backup"'

    def _open(self) -> PostgresStore:
        store = PostgresStore(
            self.server.url, schema=self.schema, create=True, limits=self.limits, random_part=lambda: self.random_part()
        )
        if not self.sql("select to_regclass(%s)", f'"{self.schema}".test_clock').fetchone()[0]:
            self.replace_clock()
        return store

    def replace_clock(self) -> None:
        """Let the store that there is read the time from `clock`."""
        self.sql("create table {s}.test_clock as select 0::bigint as now")
        self.clock.write_to(self._write_clock)
        self.sql(STEPPED_CLOCK)

    def _write_clock(self, now: int) -> None:
        """Statements from before the step are executed at the time before it, even if they have not been sent yet."""
        for store in self._opened:
            store.connection.flush()
        self.sql("update {s}.test_clock set now = %s", now)


STEPPED_CLOCK = """create or replace function {s}.clock() returns bigint language sql stable
  as 'select now from {s}.test_clock'"""


def cut_as_killed(store: PostgresStore) -> list[int]:
    """Do as the kernel does when a process is killed: close the connections and the lock. Returns the server's processes."""
    listener = store.notifier._listener
    drivers = [it for it in (store.connection.session._driver, listener and listener.connection) if it is not None]
    processes = [driver.pgconn.backend_pid for driver in drivers]
    lines = [socket.socket(fileno=os.dup(driver.fileno())) for driver in drivers]
    if listener is not None:
        listener.stop()
    for line in lines:
        with line:
            line.shutdown(socket.SHUT_RDWR)
    store.close()
    return processes


def drop_as_killed(store: SqliteStore) -> None:
    """Do as the kernel does when a process is killed: close the database, the locks and the socket, and remove nothing."""
    store.connection._sqlite.close()
    store.connection._write_lock._queue_lock.close()
    store.connection._write_lock._write_lock.close()
    store.notifier.unbind()
    store.owner_lock.release()


UNREADABLE_OPTIONS = (
    "[1]", "null", "7", '{"a": 1, "b": 2, "c": 3}', "[null,null,7]", '["x",null,null]', "[true,null,null]", "[-1,null,null]",
    "[1.5,null,null]", "[1001,null,null]", "[[1],null,null]", '[null,"x",null]', "[null,[],null]", "[null,[5],null]",
    "[null,-1,null]", "[null,1e300,null]", "[null,null,[1,2,3]]", "[null,null,[1,2,3,4,5,6]]", '[null,null,["a","b","c","d"]]',
    '[null,null,[1,2,3,"often"]]', "[null,null,[1,2,3,null]]", '[null,null,[-1,2,3,"full"]]', '[null,null,[1,0,3,"full"]]',
    '[null,null,[1,2,1e99,"full"]]', "[null,null,[1,2,3,-1]]", '[null,null,[1,[2],3,"full"]]',
)  # fmt: skip
PAST_ALL_LIMITS = {
    "token": 2**63 - 1,
    "retries": 2**31 - 1,
    "expired_count": 2**31 - 1,
    "due_at": -(2**63),
    "created_at": 2**63 - 1,
}
"""Values that another program may write into a job with plain SQL, if nothing refuses them."""

FACTORIES: dict[str, type[StoreFactory]] = {
    "memory": MemoryFactory,
    "sqlite": SqliteFactory,
    "postgresql": PostgresFactory,
}
"""Every test of the suite, and the model, runs over each of them."""
ON_POSTGRESQL = pytest.mark.parametrize("factory", ["postgresql"], indirect=True)
IN_SQL = pytest.mark.parametrize("factory", ["sqlite", "postgresql"], indirect=True)
NEAR_AND_FAR = pytest.mark.parametrize("factory", ["near", "far"], indirect=True)
"""As if its server were on this machine, or on another: there, a statement that can wait goes along with the next query."""


def resolve(handler: str, queue: str) -> Policy:
    return POLICY


def put(store: Store, *handlers: str, **options: object) -> list[int]:
    """Enqueue a job for each handler ("mail" if none is named)."""
    return store.enqueue([EnqueueRow(handler, "{}", **options) for handler in handlers or ("mail",)])  # type: ignore[arg-type]


def take(store: Store, limit: int = 10, queue: str = "default", **rule: int) -> list[Lease]:
    """Claim with everything allowed, but for the limits in `rule`."""
    rules = {"retries_first": limit, "max_retries_claimed": limit, "urgent": 100} | rule
    return store.claim([ClaimRequest(queue, limit, **rules)], TTL, resolve)


def take_one(store: Store) -> Lease:
    (lease,) = take(store, 1)
    return lease


def success(lease: Lease, result: str | None = None, took: float | None = None) -> Outcome:
    return Outcome(lease, Kind.SUCCEEDED, result=result, took=took, state=JobState.SUCCEEDED)


def failure(lease: Lease, cause: Cause = Cause.EXCEPTION, **known: object) -> Failure:
    return Failure(cause, type="ValueError", message="no", traceback="Traceback", **known)  # type: ignore[arg-type]


def again(lease: Lease, delay: float = 10.0, **known: object) -> Outcome:
    """The outcome of a failed attempt that is to be retried."""
    return Outcome(
        lease, Kind.FAILED, failure=failure(lease, **known), state=JobState.SCHEDULED, delay=delay, counted=True
    )  # fmt: skip


def dead(lease: Lease, dead_letter: bool = True, **known: object) -> Outcome:
    return Outcome(lease, Kind.FAILED, failure=failure(lease, **known), state=JobState.FAILED, dead_letter=dead_letter)


def release(lease: Lease, delay: float = 0.0) -> Outcome:
    state = JobState.SCHEDULED if delay else JobState.READY
    return Outcome(lease, Kind.RELEASED, state=state, delay=delay)


def waiting(store: Store, served: frozenset[str] | None = None) -> dict[str, Waiting]:
    return store.look(served, 0).waiting


def next_due(store: Store) -> float | None:
    return store.look(None, 0).next_due


def promote(store: Store, limit: int) -> int:
    """Make scheduled jobs that are due ready; return how many."""
    before = _scheduled(store)
    store.look(None, limit)
    return before - _scheduled(store)


def _scheduled(store: Store) -> int:
    return sum(queue["scheduled"] for queue in store.stats()["queues"])


def make_retries(factory: StoreFactory, store: Store, *handlers: str, **options: object) -> list[int]:
    """Make jobs that have failed once, each due a second after the one before, all due now. Nothing else may be waiting."""
    ids = put(store, *handlers, **options)
    leases = take(store, len(ids))
    assert store.settle([again(lease, delay=ids.index(lease.id) + 1.0) for lease in leases]) == []
    factory.clock.step(len(ids) + 1.0)
    assert promote(store, 1000) == len(ids)
    return ids


def make_dead(store: Store, *handlers: str, dead_letter: bool = True) -> list[int]:
    ids = put(store, *handlers)
    leases = [lease for lease in take(store, 1000) if lease.id in ids]
    assert store.settle([dead(lease, dead_letter) for lease in leases]) == []
    return ids


def state_of(store: Store, id: int) -> str:
    job = store.get(id)
    assert job is not None
    return str(job["state"])


def states(store: Store, ids: Sequence[int]) -> list[str]:
    return [state_of(store, id) for id in ids]


def dead_letters(store: Store, limit: int = 10) -> list[DeadLetter]:
    return store.claim_dead_letters(limit, TTL)
