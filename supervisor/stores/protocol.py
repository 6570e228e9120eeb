"""The Store protocol: the promises of every store, in one protocol for each role.

A store is used from one thread at a time. Times in rows are microseconds since the epoch by the store's own clock;
durations that callers give are seconds. Methods take and return batches. Every method that writes opens a transaction of its
own, unless one is open (`transaction`): then it joins that one, so that settles and the next claim share a commit.

An id is stale if the token or the state of its job no longer matches: then nothing of the job was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from supervisor.config.settings import DlqSettings, RetentionSettings
from supervisor.events import MAX_COUNTED, Event
from supervisor.jobs import JobState, Lease, Outcome
from supervisor.stores.groups import Shares
from supervisor.stores.job_limits import Allowance, JobLimits
from supervisor.stores.job_reports import JobReport
from supervisor.stores.limited_claims import LimitedClaim
from supervisor.stores.oldest import OldestReady
from supervisor.stores.problems import Problem
from supervisor.stores.records import (
    ClaimRequest,
    DeadLetter,
    EnqueueRow,
    ExpiredLease,
    Look,
    OperatorResult,
    Presence,
    PruneRun,
    Resolve,
)
from supervisor.stores.schedules import Change, ScheduleRow
from supervisor.stores.search import MAX_FAILURES, USUAL, FoundJobs, JobFilter, SearchLimits
from supervisor.stores.sinks import Sinks


class Enqueues(Protocol):
    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        """Store all rows or none. Return the ids in order, once all are durable. Supervisors are notified; one that wakes finds
        the rows."""

    def notify(self) -> None:
        """Wake the supervisors that share this store, after a commit of anything but new rows. A store may do nothing."""


class Ownership(Protocol):
    """The row of this supervisor in the store, identified by the name of its owner, and the notifications to it."""

    def join(self, owner: str, host: str, pid: int, sinks: Sinks = frozenset()) -> int | None:
        """Register this owner, with the names of its sinks: every dead letter that it makes or claims is owed to them; without
        sinks, those that it makes are owed to the sinks of all others, and delivered at once if there are none. Return a file descriptor that the forkserver and the workers must inherit,
        or None: the owner is not gone while any process has the descriptor open."""

    def leave(self) -> None:
        """Remove the row that `join` made. Leases still held are left to recovery."""

    def announce(self, presence: Presence) -> None:
        """Write the presence to the owner's row. A store may leave this out while another session has locked that row."""

    def watch_owners(self, on_gone: Callable[[str], None]) -> None:
        """From now on call `on_gone`, on the writer's thread, with each owner of this machine that `expired_leases` finds gone
        and removes. It may be called again for an owner, and is called at least once before all trace of that owner is removed."""

    def notification_fd(self) -> int | None:
        """Return a file descriptor that is readable after another process has notified. If it is None, the caller has to poll."""

    def clear_notifications(self) -> None:
        """Read one notification, or all: the descriptor stays readable while there are more."""


class Claims(Protocol):
    def look(self, served: frozenset[str] | None, limit: int, stay: bool = False) -> Look:
        """Make up to `limit` due scheduled jobs ready; nobody is notified of these. Then return the number of ready jobs by queue,
        without paused and empty queues and, unless `served` is None, without queues that are not in it. If thousands of queues have
        ready jobs, a store may return the numbers of some only: first those behind the last queue that jobs were claimed from since
        the last call, or behind the last one returned then if there were none; the same ones if that call was to `stay`."""

    def claim(self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve) -> list[Lease]:
        """Make ready jobs in_flight for this owner, each with a new token, the deadline now + ttl, no start mark, and its policy,
        which is kept in the row. The leases of each request are in the order of ClaimRequest, in a tier by priority, then age.
        A store may return fewer if payloads are large, but at least one."""

    def make_due(self, handlers: Collection[str], within: float, limit: int) -> int:
        """Make due now up to `limit` of the jobs of these handlers that are scheduled for the next `within` seconds, have been claimed
        before, have no retries and do not snooze: they were released since their handler was missing. Return how many."""


class LimitedClaims(Protocol):
    """Claims of a supervisor that has limits. A store without them lacks this role: see `config.kafka_contradictions`."""

    def allowance(self, limits: JobLimits, served: frozenset[str] | None) -> Allowance:
        """Return what these limits allow, in the served queues."""

    def claim_limited(
        self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve, allowance: Allowance, room: int
    ) -> LimitedClaim:
        """Claim as `claim` does, as far as the limits of `allowance` allow it, and at most `room` jobs under limits. No more jobs are
        in flight, and no more are claimed within a time, than they allow, whatever other supervisors with the same limits do.
        Ready jobs of handlers and groups that have reached their limits are blocked: they are held back until they are claimed by such
        a call, or made ready by `release_held`."""

    def release_held(self, limits: JobLimits | None, served: frozenset[str] | None, limit: int) -> frozenset[str]:
        """Make up to `limit` jobs ready that were held back in served queues for what is not among these `limits`. Return their queues:
        empty if there was none."""


class Settles(Protocol):
    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        """Write decided outcomes; return the stale ids. A settle may be repeated: an outcome under the token of the job's last
        settle changes nothing, and is not stale. The expired_count changes as `retry.expired_count_change` returns. With `seen`,
        the deadline must still be that one too. A job that snoozes is counted in `snoozes`.
        Raises RowRefused if a row of the batch can't be stored, RowsLocked (of jobs) if it would have to wait for a lock."""

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        """Set the deadlines of `leases` to now + ttl, and start marks for `started`, which need not be among them; return the
        stale ids. A job whose row another session has locked may be left unchanged, and is not stale."""

    def set_group_shares(self, shares: Shares, queues: frozenset[str] | None) -> None:
        """Set the shares of all groups in these queues, or in all if it is None, for jobs that become ready from now on: see
        `supervisor.stores.groups`."""

    def newly_ready(self) -> frozenset[str]:
        """Return the queues in which calls since the last one have made blocked jobs ready, or scheduled: they waited for others, which
        have ended."""

    def keep_reports(self, reports: Sequence[JobReport]) -> None:
        """Keep the reports of jobs whose last claim they are of; the time of the progress is now. What is None is left as it is.
        The report of a job whose row another session has locked may be left out."""

    def snoozes(self, leases: Sequence[Lease]) -> dict[int, int]:
        """Return how often each of these jobs has snoozed since it was enqueued or made fresh, without those that never have, and
        without those that are not in flight under this lease any more: a settle that is repeated has counted its own snoozes."""

    def held(self) -> list[tuple[int, int]]:
        """Return (id, token) of every lease that this owner has in the store."""

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        """Return the full leases that this owner has in the store for these jobs."""


class Repairs(Protocol):
    def repair(self) -> str:
        """Correct what other programs have made wrong by plain SQL, so that jobs are not claimed or not waited for: the counts of
        unfinished jobs, and jobs in flight without a lease. Let jobs go on that waited for others which ended while rows were locked.
        Return text about what was wrong, empty if nothing was."""


class Recovers(Protocol):
    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        """Return leases of other owners that have expired, or whose owner is provably gone: the first `limit` in the order of
        `place`, or the first behind `after`."""

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        """`settle` for expired leases: `seen` is required; a release (nothing counted) adds 1 to the job's expired_count, and
        another 1 if the job has a start mark."""


class DeadLetterQueue(Protocol):
    def claim_dead_letters(self, limit: int, ttl: float, sinks: Sinks | None = None) -> list[DeadLetter]:
        """Claim, for `ttl` seconds, pending dead letters that are due, oldest first, if any of `sinks` (by default all sinks of this
        owner) has not accepted them. A claim postpones the due time, so that nobody else claims them meanwhile. A store may return
        fewer if payloads are large, but at least one."""

    def mark_accepted(self, dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
        """Record that `sink` has accepted the dead letters; they are delivered once all sinks that they are owed to have. The claim
        ends if only sinks of other owners lack them. Return the stale ids. Raises RowsLocked (of dead letters) if it would have to
        wait for a lock."""

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        """Make the dead letters due after `delay` seconds, since some sink has not accepted them; return the stale ids."""


class Queries(Protocol):
    def clock(self) -> float:
        """Return seconds since the epoch by the clock that decides which jobs are due."""

    def stats(self) -> dict[str, Any]:
        """Return the object that `status --json` prints: `queues`, `supervisors`, `sinks` and `stuck`."""

    def sinks(self) -> list[dict[str, Any]]:
        """Return the `sinks` of `stats`. Unlike that, it costs the same however many queues there are."""

    def oldest_ready(self, limit: int) -> list[OldestReady]:
        """Return, for the queues and tiers with most ready jobs, `limit` at most, how long the job has waited that was due first.
        Paused queues are left out. Of each only the first jobs of the lowest priorities are looked at: see `stores.oldest`."""

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        """Return the work that --drain waits for, without zeros: the numbers of `ready`, `in_flight`, `blocked` and `scheduled` jobs in
        served, unpaused queues, of pending `dead_letters` that wait for a sink of this owner, and of
        `dead_letters_for_other_sinks`. `scheduled` are only the jobs of `handlers` that are due by `latest` (seconds, as `clock`);
        None is no limit. Where rows are counted, the count may stop at `most`."""

    def get(self, id: int) -> dict[str, Any] | None:
        """Return the job as `jobs show --json` prints it, or None if there is no such job."""

    def get_many(self, ids: list[int]) -> tuple[int, list[dict[str, Any]]]:
        """Return how many of the first of these ids were read, at least one, and the jobs that exist among them, as `get` does. A
        store may read few at once if they are large."""

    def counts_by_state(self, ids: Sequence[int]) -> dict[str | None, int]:
        """Return how many of these jobs are in each state, by its name; None is for jobs that do not exist."""

    def ended(self, ids: Sequence[int]) -> list[int]:
        """Return, in their order, the ids whose job has ended, and those that no job has."""

    def list_jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        handler: str | None = None,
        dead_letter: str | None = None,
        limit: int = 100,
        brief: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Return an iterator over jobs, the newest first; `dead_letter` is "pending", "delivered" or "any" (either of them). The call
        finds the jobs; the iterator reads them, some at a time, and leaves out those that are deleted meanwhile. With `brief`,
        payload, headers and result may be left out, and all errors but the last."""

    def find_jobs(
        self, where: JobFilter, *, before: str | None = None, limit: int = 100, limits: SearchLimits = USUAL
    ) -> FoundJobs:
        """Find one page of jobs, read as `list_jobs` does with `brief`: those with the highest ids first, or those that finished
        last if `where.by_finish`. `before` is the `next` of the page before. Raises ValueError if it is no such cursor."""

    def failures(self, limit: int, among: int = MAX_FAILURES) -> list[dict[str, Any]]:
        """Return the first `limit` groups of the `among` newest failed jobs by `handler`, and by `type` and `cause` of their last
        error, the largest first: each also with `count`, `last_at`, `example_id` and `message`, those of its newest job."""

    def paused(self) -> frozenset[str]: ...


class OperatorCommands(Protocol):
    """Commands change many jobs in batches, with a commit for each: a call that raises StoreUnavailable may have changed some;
    the same call refuses these when it is repeated. Supervisors are notified of each change but `prune`. With `only`, jobs in
    other states are refused: they have changed since they were found."""

    def cancel(self, ids: Sequence[int], *, only: Collection[JobState] | None = None) -> OperatorResult: ...

    def retry(
        self, ids: Sequence[int], force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult:
        """Make scheduled jobs due now, and failed and cancelled ones fresh; with `force` also succeeded ones, and those with a
        pending dead letter."""

    def redrive(
        self, ids: Sequence[int] | None, force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult:
        """Make dead letters fresh, all of them if `ids` is None; pending ones only with `force`. Other jobs are refused."""

    def delete(
        self, ids: Sequence[int], force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult: ...

    def move(self, ids: Sequence[int], queue: str, *, only: Collection[JobState] | None = None) -> OperatorResult:
        """Put waiting jobs into a queue. They keep their priority, their tier and their age."""

    def purge(self, force: bool = False, ids: Sequence[int] | None = None) -> OperatorResult:
        """Delete dead letters, all of them if `ids` is None; pending ones only with `force`. Other jobs are refused."""

    def drop_sink(self, sink: str) -> int:
        """Let pending dead letters wait for `sink` no longer. Those that wait for no other are delivered if some sink has them;
        otherwise they wait for the other sinks of running supervisors, and are delivered if there are none. Return how many waited for
        it. A supervisor that has this sink adds it again to each that it claims."""

    def pause(self, queue: str, paused: bool) -> None: ...

    def prune(self, retention: RetentionSettings, limit: int, run: PruneRun | None = None) -> int:
        """Delete up to `limit` terminal jobs past their retention, never one with a pending dead letter. Return how many. It looks
        at a limited number of jobs, behind those that earlier calls with the same `run` have passed."""


@runtime_checkable
class Schedules(Protocol):
    """The state of schedules, which all supervisors of the store share: see `schedules.policy`."""

    def schedules(self) -> list[ScheduleRow]:
        """Return all rows, by name."""

    def change_schedules(self, names: Sequence[str], change: Change, *, wait: bool = False) -> list[list[int]]:
        """Call `change` with the time and the rows of these schedules, under a lock of the rows: nobody else changes them meanwhile.
        Write what it returns and enqueue its jobs in the same transaction, and return the ids of the jobs of each change. A schedule
        without a row gets one, which counts from now on. Without `wait`, rows that another session has locked are left out."""


class Store(
    Enqueues,
    Ownership,
    Claims,
    LimitedClaims,
    Settles,
    Repairs,
    Recovers,
    DeadLetterQueue,
    Queries,
    OperatorCommands,
    Schedules,
    Protocol,
):
    url: str

    def transaction(self, *, single: bool = False, brief: bool = False) -> AbstractContextManager[None]:
        """Commit all calls inside together, or none. Raises StoreUnavailable if the transaction can't begin or commit. `single`
        promises that a claim, if there is one, is the last call, so that a store may commit with the claim's own statement. With
        `brief`, it raises StoreContended after a moment rather than wait for locks of other sessions."""

    def close(self) -> None: ...


@runtime_checkable
class Describes(Protocol):
    """A store that a check looks at without joining it."""

    def describe(self, dlq: DlqSettings) -> list[str]:
        """Return lines for people: what the store has, and what it can't do."""

    def obstacles(self) -> list[str]:
        """Return what keeps supervisors from using it, and what to do."""


@runtime_checkable
class WithRights(Protocol):
    """A store on a server that gives each role rights of its own."""

    def missing_rights(self) -> list[str]:
        """Return the `grant` statements that this role needs to run jobs, without those that it has."""


@runtime_checkable
class Limited(Protocol):
    """A store that can't do everything: the calls in `limits` raise Unsupported. The texts are what to do instead."""

    limits: Mapping[str, str]


@runtime_checkable
class Reports(Protocol):
    """A store in which something happens that no call to it has caused."""

    def report_to(self, emit: Callable[[Event], None]) -> None:
        """From now on call `emit`, on any thread, with each event of the store."""

    def problems(self) -> list[Problem]:
        """Return what the store can't do although it is available. It may be called on any thread."""

    def about(self) -> Mapping[str, Any]:
        """Return what the store knows of its supervisor, by the names of `supervisors.ABOUT`. It may be called on any thread."""
