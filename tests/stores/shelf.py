"""One place where jobs are, opened as often as a test likes, and the few verbs that most tests need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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

    def _open(self) -> Store:
        raise NotImplementedError


class MemoryShelf(Shelf):
    bell_holds = 65_536

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._first = MemoryStore(self.clock)

    def _open(self) -> Store:
        return self._first.sibling()


class SqliteShelf(Shelf):
    @property
    def path(self) -> Path:
        return self.folder / "jobs.db"

    def _open(self) -> SqliteStore:
        return SqliteStore(self.path, create=True, synchronous="normal", clock=self.clock)


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
