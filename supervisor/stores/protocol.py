"""The Store protocol: what every store promises, and nothing about how.

A store is used from one thread at a time. Times in rows are microseconds since the epoch by the store's own clock;
durations that callers give are seconds. All methods take and give batches. Every write method opens a transaction of its
own unless one is open (`transaction()`), in which case it joins that: so settles and the next claim share a commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from supervisor.events import MAX_COUNTED
from supervisor.jobs import Backoff, JobState, Lease, Outcome, Policy

Candidate = TypeVar("Candidate")


class StoreError(Exception):
    """The store refused: the request can't succeed as it stands. The message is for the user."""


class StoreUnavailable(StoreError):
    """The store can't be reached or is locked: the same call may succeed later, and nothing of it was done."""


class StoreContended(StoreUnavailable):
    """A lock of somebody else's was in the way for too long, or two waited for each other. The same calls made again at once
    pass by rows that are locked, and wait for none; what waits all the same waits for a lock on more than rows."""


class StoreBroken(StoreUnavailable):
    """The store answers and takes nothing, until somebody mends it: a right is missing, say. A supervisor goes on as if it
    were away; a program is told at once."""


class StoreMissing(StoreError):
    """There is no store yet where it should be; whoever may create it makes one."""


class StoreUnsure(StoreError):
    """The answer was lost on the way: it was done, all of it, or it was not. It is not tried again."""


class RowRefused(StoreError):
    """A row of the batch can't be stored, whatever is tried; nothing of the batch was done."""


class RowsLocked(StoreError):
    """Others hold the rows of these ids: nothing of this call was done, and its transaction goes on. Without them it may be
    made at once."""

    def __init__(self, message: str, ids: frozenset[int]) -> None:
        super().__init__(message)
        self.ids = ids


class EnqueueRow(NamedTuple):
    """A job as it goes into the store: validated, `payload` and `headers` already JSON text.

    At most one of `delay` (seconds from the store's now) and `at` (microseconds since the epoch).
    """

    handler: str
    payload: str
    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    at: int | None = None
    max_retries: int | None = None
    timeout: float | None = None
    backoff: Backoff | None = None
    headers: str | None = None


class Waiting(NamedTuple):
    """Jobs of one served, unpaused queue that are ready now."""

    fresh: int
    retries: int


class Look(NamedTuple):
    """What a supervisor sees before it claims: `waiting` by queue, and the seconds until the next job is due."""

    waiting: dict[str, Waiting]
    next_due: float | None


def by_queue_and_tier(leases: Sequence[Sequence[Any]]) -> Mapping[tuple[str, int], int]:
    """How many there are of each (queue, tier). Rows of a lease do as well; most batches are of one kind."""
    queues, tiers = {lease[3] for lease in leases}, {lease[8] for lease in leases}
    if len(queues) == len(tiers) == 1:
        return {(queues.pop(), tiers.pop()): len(leases)}
    return Counter([(lease[3], lease[8]) for lease in leases])


class ClaimRequest(NamedTuple):
    """What to claim from one queue: up to `limit` jobs; first the urgent ones (fresh, of priority `urgent` or more),
    then up to `retries_first` retries, then fresh, then retries to fill up; never more than `retries_most` retries."""

    queue: str
    limit: int
    retries_first: int
    max_retries_claimed: int
    urgent: int

    def retries_wanted(self, fresh: int) -> int:
        """How many retries there may be at most among the picked, with so many fresh candidates."""
        return min(self.max_retries_claimed, self.limit, max(self.retries_first, self.limit - fresh))

    def pick(self, fresh: Sequence[Candidate], urgent: int, retries: Sequence[Candidate]) -> list[Candidate]:
        """What to claim, in order, of the first `limit` candidates of each tier; the first `urgent` of the fresh are."""
        retries = retries[: self.retries_wanted(len(fresh))]
        urgent = min(urgent, self.limit)
        first = min(self.retries_first, self.limit - urgent)
        order = [*fresh[:urgent], *retries[:first], *fresh[urgent:]]
        return [*order[: self.limit], *retries[first:]][: self.limit]


class ExpiredLease(NamedTuple):
    """A lease whose owner is gone or whose deadline has passed. `owner_gone` means provably dead: recover at once.

    `deadline` is as seen: recovery names it, so a lease extended meanwhile is left alone. `lapses` counts the leases in a
    row that ended without a start mark. The lease is without payload and headers, which may be heavy.
    """

    lease: Lease
    deadline: int
    started: bool
    expired_count: int
    owner: str
    owner_gone: bool

    @property
    def place(self) -> tuple[bool, int, int]:
        """In the order of recovery: whose owner is gone, then the longest expired."""
        return not self.owner_gone, self.deadline, self.lease.id


class DeadLetter(NamedTuple):
    """A dead letter claimed for publishing under `token`. `job` is what `supervisor jobs show --json` prints."""

    id: int
    token: int
    tries: int
    accepted: frozenset[str]
    job: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Presence:
    """What a supervisor tells of itself; written with a commit that happens anyway, or by itself at least every ttl/3.

    `workers` is a list of the objects that `status --json` prints; `idle` counts workers with nothing to do; `ttl` is how many
    seconds its leases last, if it says so.
    """

    state: str
    workers: Sequence[Mapping[str, Any]] = ()
    idle: int = 0
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds that a terminal job is kept after it ended, 0 for not at all; None keeps it."""

    succeeded: float | None = 86_400.0
    cancelled: float | None = 7 * 86_400.0
    failed: float | None = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    lists: bool = True
    cancels: bool = True
    prioritises: bool = True


Resolve = Callable[[str, str], Policy]
"""The policy of a handler's jobs in a queue."""


class Store(Protocol):
    """See the module. Stale ids are those whose token or state no longer matched: nothing of theirs was changed."""

    capabilities: Capabilities
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
