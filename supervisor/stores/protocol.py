"""The Store protocol: the promises of every store, in one protocol for each role.

A store is used from one thread at a time. Times in rows are microseconds since the epoch by the store's own clock;
durations that callers give are seconds. Methods take and return batches. Every method that writes opens a transaction of its
own, unless one is open (`transaction`): then it joins that one, so that settles and the next claim share a commit.

An id is stale if the token or the state of its job no longer matches: then nothing of the job was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from supervisor.config.settings import RetentionSettings
from supervisor.events import MAX_COUNTED
from supervisor.jobs import JobState, Lease, Outcome
from supervisor.stores.records import (
    ClaimRequest,
    DeadLetter,
    EnqueueRow,
    ExpiredLease,
    Look,
    OperatorResult,
    Presence,
    Resolve,
)


class Enqueues(Protocol):
    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        """Return the ids in order, once all rows are durable; otherwise none is, and it raises. Supervisors are notified: any
        that wakes finds the rows."""

    def notify(self) -> None:
        """Wake the supervisors that share this store, after a commit of anything but new rows; may do nothing."""


class Ownership(Protocol):
    """A supervisor's own row in the store, by its owner's name, and the notifications that it gets."""

    def join(self, owner: str, host: str, pid: int) -> int | None:
        """Register this owner. Returns a file descriptor that the forkserver and the workers must inherit, or None: the owner is
        not gone while any process holds its open description."""

    def leave(self) -> None:
        """Remove the row that `join` made. Leases still held are left to recovery."""

    def announce(self, presence: Presence) -> None:
        """Write the presence to the owner's row. A store may leave this out while another session has locked that row."""

    def watch_owners(self, on_gone: Callable[[str], None]) -> None:
        """From now on call `on_gone`, on the writer's thread, with each owner of this machine that `expired_leases` finds dead
        and forgets."""

    def notification_fd(self) -> int | None:
        """A file descriptor that is readable after another process has notified; None if there is none, so poll."""

    def clear_notifications(self) -> None:
        """Take off one notification, or all: the descriptor stays readable while there are more."""


class Claims(Protocol):
    def look(self, served: frozenset[str] | None, limit: int) -> Look:
        """Make up to `limit` scheduled jobs that are due ready; then return the ready jobs by queue, without paused queues and,
        unless None, only of the queues in `served`; empty queues are left out. Nobody is notified of the jobs made ready."""

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        """Ready jobs become in_flight for this owner: token + 1, deadline now + ttl, start mark cleared, policy resolved and
        kept in the row. For each request, sorted in the order of ClaimRequest, and within a tier by priority, then age. A store
        may return fewer where payloads are large, but at least one."""


class Settles(Protocol):
    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        """Write decided outcomes; returns the stale ids. A settle repeated under a token that it itself settled is success, as
        long as no later token of the job was settled and the job was not deleted.
        The expired_count goes to 0 unless the cause is lease_expired. With `seen`, the deadline must still be that one too.
        Raises RowRefused if a row of the batch can't be stored, RowsLocked (of jobs) if it would have to wait for a lock."""

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        """Set new deadlines for `leases`, and start marks for `started` (which may be empty, or not among the first); returns the
        stale ids. A job whose row another session has locked may be left as it is, and is not stale."""

    def held(self) -> list[tuple[int, int]]:
        """(id, token) of every lease that is this owner's by the store."""

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        """The leases in full of the jobs among these that are this owner's by the store."""


class Repairs(Protocol):
    def repair(self) -> str:
        """Put right what other programs have made wrong by plain SQL, so that jobs are not claimed or waited for: the counts of
        unfinished jobs, and jobs in flight without a lease. Returns what was wrong, for people; empty if nothing was."""


class Recovers(Protocol):
    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        """Leases of others that have expired, or whose owner is provably dead; never this owner's. The first `limit` by
        `place`, or the first behind `after`."""

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        """`settle` for expired leases: `seen` is required; a release (nothing counted) adds one to the job's expired_count."""


class DeadLetterQueue(Protocol):
    def claim_dead_letters(self, limit: int, ttl: float) -> list[DeadLetter]:
        """Claim, for `ttl` seconds, pending dead letters that are due, oldest first. A claim puts off the due time, so that nobody
        else claims them meanwhile. A store may return fewer where payloads are large, but at least one."""

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str, wanted: frozenset[str]) -> list[int]:
        """Note that `sink` has them; they are delivered once all `wanted` sinks have. Returns the stale ids. Raises RowsLocked (of
        dead letters) if it would have to wait for a lock."""

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        """Offer them again after `delay` seconds, since some sink has not accepted them; returns the stale ids."""


class Queries(Protocol):
    def clock(self) -> float:
        """Seconds since the epoch by the clock that due times are counted by."""

    def stats(self) -> dict[str, Any]:
        """The object that `status --json` prints: `queues` and `supervisors`."""

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        """The work that keeps --drain from ending: counts of `ready`, `in_flight`, `scheduled` (only due by `latest`, as `clock`
        has it, and only of `handlers`, unless None) of served, unpaused queues, and of pending `dead_letters`; zeros left out.
        Where it counts rows it may stop at `most`."""

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
        """The newest first; `dead_letter` is "pending", "delivered" or "any" (the jobs that are dead letters)."""

    def paused(self) -> frozenset[str]: ...


class OperatorCommands(Protocol):
    """Many jobs are changed in batches, a commit each: a call that ends in StoreUnavailable may have changed some, and the same
    call again refuses these. Supervisors are notified of each change but `prune`."""

    def cancel(self, ids: Sequence[int]) -> OperatorResult: ...

    def retry(self, ids: Sequence[int], force: bool = False) -> OperatorResult:
        """Make scheduled jobs due now, and failed and cancelled ones fresh; with `force` succeeded ones too."""

    def redrive(self, ids: Sequence[int] | None, force: bool = False) -> OperatorResult:
        """Make dead letters fresh, all of them if `ids` is None; any other job is refused, with `force` too."""

    def delete(self, ids: Sequence[int], force: bool = False) -> OperatorResult: ...

    def purge(self, force: bool = False) -> OperatorResult: ...

    def pause(self, queue: str, paused: bool) -> None: ...

    def prune(self, retention: RetentionSettings, limit: int) -> int:
        """Delete up to `limit` terminal jobs past their retention, never one with a pending dead letter; returns how many."""


class Store(
    Enqueues, Ownership, Claims, Settles, Repairs, Recovers, DeadLetterQueue, Queries, OperatorCommands, Protocol
):
    url: str

    def transaction(self, *, single: bool = False) -> AbstractContextManager[None]:
        """One commit around all calls inside; all or nothing. Raises StoreUnavailable if it can't begin or commit.
        `single`: if jobs are claimed in it, that comes last, so that it may be committed with the claim."""

    def close(self) -> None: ...
