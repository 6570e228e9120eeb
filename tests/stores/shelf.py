"""One place where jobs are, opened as often as a test likes, and the few verbs that most tests need."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome, Policy
from supervisor.stores.base import EnqueueRow, Letter, Store, Take
from supervisor.stores.memory import MemoryStore
from supervisor.stores.sqlite import SqliteStore

POLICY = Policy(max_retries=3, timeout=5.0)
TTL = 30.0


class Clock:
    """Seconds since the epoch; steps only when told to, in both directions."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def step(self, seconds: float) -> None:
        self.now += seconds

    @property
    def microseconds(self) -> int:
        return round(self.now * 1e6)


class Shelf:
    bell_holds = 1000
    """More rings than that a bell doesn't take."""
    durable = True
    """Whether its jobs outlive the processes that use them: see `kill` and `crash`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self._opened: list[Store] = []

    def open(self) -> Store:
        self._opened.append(store := self._open())
        return store

    def joined(self, owner: str) -> Store:
        store = self.open()
        store.join(owner, "host", 4711)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.leave()
            store.close()
        self._opened = []

    def kill(self, store: Store) -> None:
        """The process of this store dies as by kill -9; the others live on."""
        raise NotImplementedError

    def crash(self) -> None:
        """All processes die at this moment. What is open goes on, and counts for nothing, until `restart`."""
        raise NotImplementedError

    def restart(self) -> None:
        """From here on everything that is opened finds what the crash left."""
        raise NotImplementedError

    def check(self) -> None:
        """Fails if what is kept beside the jobs for speed doesn't agree with them."""

    def _open(self) -> Store:
        raise NotImplementedError


class MemoryShelf(Shelf):
    bell_holds = 65_536
    durable = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._first = MemoryStore(self.clock)

    def _open(self) -> Store:
        return self._first.sibling()


class Moment(NamedTuple):
    """How long the log is, and whose locks there are."""

    log_length: int
    locks: list[str]


class SqliteShelf(Shelf):
    """A crash copies the files as they are, without what SQLite tidies up when it is closed, and goes on with the copy."""

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
        return Moment(self.log.stat().st_size, [lock.name for lock in self.folder.glob("jobs.db.bells/*.lock")])

    def crash(self) -> None:
        self._copy(self.moment())

    def crash_in_the_commit_after(self, before: Moment, share: float) -> bool:
        """Of what the log has grown by since, only this share has reached the file, and what follows a commit has not been
        done. Gives whether the commit is whole all the same."""
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
        (after / "jobs.db.bells").mkdir(mode=0o700)
        for lock in moment.locks:
            (after / "jobs.db.bells" / lock).touch()

    def restart(self) -> None:
        self.close()
        self.folder = self._after_crash

    def check(self) -> None:
        database = sqlite3.connect(self.path)
        with closing(database):
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
            kept, counted = (database.execute(f"{query} order by 1, 2, 3").fetchall() for query in COUNTS)
            assert kept == counted

    @property
    def _after_crash(self) -> Path:
        return self.folder.with_name(f"after-crash-{self._crashes}")

    def _open(self) -> SqliteStore:
        return SqliteStore(self.path, create=True, synchronous="normal", clock=self.clock)


COUNTS = (
    "select state, queue, tier, n from counts where n != 0",
    "select state, queue, tier, count(*) from jobs group by state, queue, tier",
)


def drop_as_killed(store: SqliteStore) -> None:
    """What the kernel does when a process dies: it closes the database, the lock and the bell, and removes nothing."""
    store._connection.close()
    store._turnstile._gate.close()
    store._turnstile._turn.close()
    store.bells._socket.close()
    os.close(store.bells._lock)


SHELVES: dict[str, type[Shelf]] = {"memory": MemoryShelf, "sqlite": SqliteShelf}
"""Every test of the suite, and the model, runs over each."""


def resolve(handler: str, queue: str) -> Policy:
    return POLICY


def put(store: Store, *handlers: str, **options: object) -> list[int]:
    """Enqueue a job for each handler ("mail" if none is named)."""
    return store.enqueue([EnqueueRow(handler, "{}", **options) for handler in handlers or ("mail",)])  # type: ignore[arg-type]


def take(store: Store, limit: int = 10, queue: str = "default", **rule: int) -> list[Lease]:
    """Claim with everything allowed, unless `rule` says otherwise."""
    rules = {"retries_first": limit, "retries_most": limit, "urgent": 100} | rule
    return store.claim([Take(queue, limit, **rules)], TTL, resolve)


def take_one(store: Store) -> Lease:
    (lease,) = take(store, 1)
    return lease


def success(lease: Lease, result: str | None = None, took: float | None = None) -> Outcome:
    return Outcome(lease, Kind.SUCCEEDED, result=result, took=took, state=JobState.SUCCEEDED)


def failure(lease: Lease, cause: Cause = Cause.EXCEPTION, **known: object) -> Failure:
    return Failure(cause, type="ValueError", message="no", traceback="Traceback", **known)  # type: ignore[arg-type]


def again(lease: Lease, delay: float = 10.0, **known: object) -> Outcome:
    """A failed attempt that is to be retried."""
    return Outcome(
        lease, Kind.FAILED, failure=failure(lease, **known), state=JobState.SCHEDULED, delay=delay, counted=True
    )  # fmt: skip


def dead(lease: Lease, letter: bool = True, **known: object) -> Outcome:
    return Outcome(lease, Kind.FAILED, failure=failure(lease, **known), state=JobState.FAILED, letter=letter)


def release(lease: Lease, delay: float = 0.0) -> Outcome:
    state = JobState.SCHEDULED if delay else JobState.READY
    return Outcome(lease, Kind.RELEASED, state=state, delay=delay)


def make_retries(shelf: Shelf, store: Store, *handlers: str, **options: object) -> list[int]:
    """Jobs that have failed once, each due a second after the one before, all due now. Nothing else may be waiting."""
    ids = put(store, *handlers, **options)
    leases = take(store, len(ids))
    assert store.settle([again(lease, delay=ids.index(lease.id) + 1.0) for lease in leases]) == []
    shelf.clock.step(len(ids) + 1.0)
    assert store.promote(1000) == len(ids)
    return ids


def make_dead(store: Store, *handlers: str, letter: bool = True) -> list[int]:
    ids = put(store, *handlers)
    leases = [lease for lease in take(store, 1000) if lease.id in ids]
    assert store.settle([dead(lease, letter) for lease in leases]) == []
    return ids


def state_of(store: Store, id: int) -> str:
    job = store.get(id)
    assert job is not None
    return str(job["state"])


def states(store: Store, ids: Sequence[int]) -> list[str]:
    return [state_of(store, id) for id in ids]


def letters(store: Store, limit: int = 10) -> list[Letter]:
    return store.dead_letters(limit, TTL)
