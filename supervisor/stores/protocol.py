"""The Store protocol: what every store promises, and nothing about how.

A store is used from one thread at a time. Times in rows are microseconds since the epoch by the store's own clock;
durations that callers give are seconds. All methods take and give batches. Every write method opens a transaction of its
own unless one is open (`transaction()`), in which case it joins that: so settles and the next claim share a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from supervisor.events import MAX_COUNTED
from supervisor.jobs import JobState, Lease, Outcome
from supervisor.stores.records import (
    ClaimRequest,
    DeadLetter,
    EnqueueRow,
    ExpiredLease,
    Look,
    Presence,
    Resolve,
    Retention,
    Waiting,
)


class Store(Protocol):
    """See the module. Stale ids are those whose token or state no longer matched: nothing of theirs was changed."""

    url: str
    on_owner_gone: Callable[[str], None]
    """Called on the writer's thread with each owner of this machine that `lapsed` has found dead and forgotten."""

    def transaction(self, *, single: bool = False) -> AbstractContextManager[None]:
        """One commit around everything called inside; all or nothing. Raises StoreUnavailable if it can't begin or commit.
        `single`: if jobs are claimed in it, that comes last, so that it may be committed with the claim."""

    def reader(self) -> Store:
        """A sibling that only asks (`stats`, `get`, `list_jobs`, `remaining`, ...), for another thread."""

    def close(self) -> None: ...

    # clients
    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        """Ids in order, once all rows are durable; or none is, and it raises. Rings: whoever wakes finds them."""

    def notify(self) -> None:
        """Wake the supervisors that share this store, after a commit of anything but new rows; may do nothing."""

    # a supervisor's life
    def join(self, owner: str, host: str, pid: int) -> int | None:
        """Register this owner. Gives a file descriptor whose open description the nursery and workers must inherit (while
        any holder lives the owner is not gone), or None."""

    def leave(self) -> None:
        """Remove what join made. Leases still held are left to recovery."""

    def notification_fd(self) -> int | None:
        """A file descriptor that is readable after another process rang; None if there is none, so poll."""

    def clear_notifications(self) -> None:
        """Take a ring off the bell, or all: it stays readable while there are more."""

    def announce(self, presence: Presence) -> None:
        """May be left out while somebody has locked the row that it goes to."""

    # the hot path
    def promote(self, limit: int) -> int:
        """Move up to `limit` due jobs from scheduled to ready; gives how many were moved."""

    def waiting(self, served: frozenset[str] | None) -> dict[str, Waiting]:
        """Ready jobs by queue, without paused queues and, unless None, only of those served; empty queues are left out."""

    def look(self, served: frozenset[str] | None, limit: int) -> Look:
        """`promote`, then what `waiting` and `next_due` say."""

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        """Ready jobs become in_flight for this owner: token + 1, deadline now + ttl, start mark cleared, policy resolved and
        kept in the row. Within a take, sorted in the order of Take, and within a tier by priority, then age. A store may
        give fewer where payloads are heavy, but at least one."""

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        """Write decided outcomes; gives the stale ids. A settle repeated under a token that it itself settled is success, as
        long as no later token of the job was settled and the job was not deleted.
        Lapses go to 0 unless the cause is lease_expired. With `seen`, the deadline must still be that one too.
        Raises RowRefused if a row of the batch can't be stored, RowsLocked (of jobs) if it would have to wait for somebody."""

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        """New deadlines for the first, start marks for the second (which may be empty, or not among the first). A job whose row
        somebody else has locked may be left as it is, and is not stale."""

    def held(self) -> list[tuple[int, int]]:
        """(id, token) of every lease that the store says is this owner's."""

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        """The leases in full of those of these jobs that the store says are this owner's."""

    # recovery
    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        """Leases of others that have expired, or whose owner is provably dead; never this owner's. The first `limit` by
        `place`, or the first behind `after`."""

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        """`settle` for lapsed leases: `seen` is required; a release (nothing counted) adds one to the job's lapses."""

    # dead letters
    def claim_dead_letters(self, limit: int, ttl: float) -> list[DeadLetter]:
        """Pending letters that are due and not claimed by a live claim, oldest first, claimed for `ttl` seconds. A store may
        give fewer where payloads are heavy, but at least one."""

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str, wanted: frozenset[str]) -> list[int]:
        """`sink` has them; delivered once all `wanted` have. Gives the stale ids. Raises RowsLocked (of letters) if it would have
        to wait for somebody."""

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        """Not accepted by some sink: offered again after `delay` seconds; gives the stale ids."""

    # asking
    def clock(self) -> float:
        """Seconds since the epoch by the clock that due times are counted by."""

    def next_due(self) -> float | None:
        """Seconds until the next scheduled job is due (0 if it is now); None if there is none."""

    def stats(self) -> dict[str, Any]:
        """What `status --json` prints: `queues` and `supervisors`."""

    def remaining(self, served: frozenset[str] | None, latest: float | None, most: int = MAX_COUNTED) -> dict[str, int]:
        """What keeps --drain from ending: counts of `ready`, `in_flight`, `scheduled` (only due by `latest`, as `clock` has
        it, unless None) of served, unpaused queues, and of pending `dead_letters`; zeros left out. Where it counts rows it may
        stop at `most`."""

    def get(self, id: int) -> dict[str, Any] | None:
        """The job as `jobs show --json` prints it."""

    def list_jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        handler: str | None = None,
        dead_letter: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Newest first; `letter` is "pending", "delivered" or "any" (the jobs that are dead letters)."""

    # the operator's verbs: each gives the ids it changed; what it refuses is in the other half, id -> why. Many jobs are
    # changed in batches, a commit each: one that ends in StoreUnavailable may have changed some, and tried again refuses those.
    def cancel(self, ids: Sequence[int]) -> tuple[list[int], dict[int, str]]: ...
    def retry(self, ids: Sequence[int]) -> tuple[list[int], dict[int, str]]: ...
    def redrive(self, ids: Sequence[int] | None, force: bool = False) -> tuple[list[int], dict[int, str]]: ...
    def delete(self, ids: Sequence[int], force: bool = False) -> tuple[list[int], dict[int, str]]: ...
    def purge(self, force: bool = False) -> tuple[list[int], dict[int, str]]: ...
    def pause(self, queue: str, paused: bool) -> None: ...
    def paused(self) -> frozenset[str]: ...

    def prune(self, retention: Retention, limit: int) -> int:
        """Delete up to `limit` terminal jobs past their retention, never one with a pending letter; gives how many."""


class TransactionalEnqueue(Protocol):
    """Enqueues inside transactions of its callers, on connections of theirs to the store's database. From any thread."""

    def enqueue(self, connection: Any, rows: Sequence[EnqueueRow]) -> list[int]:
        """Ids in order; the jobs exist if and when the caller's transaction commits, and supervisors wake then. Raises
        StoreError, before anything is done, for a connection that can't be used."""
