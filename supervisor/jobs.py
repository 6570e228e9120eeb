"""Jobs, leases and outcomes: plain data, no I/O.

    enqueue ──► scheduled ──due──► ready ──claim──► in_flight ──┬──► succeeded
                    ▲                ▲                          ├──► failed     (dead letter: pending ──► delivered)
                    │                └────── release ───────────┤
                    └──────── retry (backoff), snooze ──────────┘
                blocked (it waits for other jobs) ──► scheduled or ready
                blocked, scheduled, ready, in_flight ──cancel──► cancelled
                succeeded, failed, cancelled ──redrive (operator)──► ready

A job leaves `in_flight` only under the fencing token of its last claim. `succeeded`, `failed` and `cancelled` are
terminal: only an operator's redrive changes them.

Leases and outcomes are named tuples. On the hottest paths (claim, frames, outcomes, settle, metrics) their fields are read by
an index, since that is faster than by name: LEASE_ID and the constants beside it name these indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from supervisor import parents
from supervisor.text.printable import printable

MAX_TAGS = 20
MAX_RETRIES = 1000
MAX_PROGRESS = 1 << 62
MAX_PROGRESS_MESSAGE = 200  # characters
LOGGER = "job"
"""The name of the logger of `Job.log`."""


class JobState(StrEnum):
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    """It waits for other jobs: for those before it in the order of its key, or for its parents."""
    READY = "ready"
    IN_FLIGHT = "in_flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class Cause(StrEnum):
    """The reasons for which an attempt fails. REJECTED: the handler raised Reject. REFUSED: the store refused the outcome.
    EXPIRED: the job had not started when its time to do so was over. PARENT_FAILED: a job that it waited for ended without success."""

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CRASH = "crash"
    HEARTBEAT_LOST = "heartbeat_lost"
    MEMORY_LIMIT = "memory_limit"
    LEASE_EXPIRED = "lease_expired"
    REJECTED = "rejected"
    UNKNOWN_HANDLER = "unknown_handler"
    REFUSED = "refused"
    EXPIRED = "expired"
    PARENT_FAILED = "parent_failed"


class Tier(IntEnum):
    """The kind of a claimable job: new, or to be retried. A fresh job is urgent if its priority is `retry.urgent` or more."""

    FRESH = 0
    RETRY = 1


class Backoff(NamedTuple):
    """A curve of delays, in seconds. `jitter` is "full", "none", or the maximum of seconds that are added to a delay."""

    base: float = 0.5
    factor: float = 2.0
    max: float = 30.0
    jitter: str | float = "full"


class Policy(NamedTuple):
    """The limits of one job, resolved when it is claimed: from the job, else `handlers:`, else the decorator, else `queues:`,
    else `retry:`.

    Times are seconds; None is no limit.
    """

    max_retries: int = 3
    backoff: Backoff = Backoff()
    timeout: float | None = 300.0
    heartbeat_timeout: float | None = 30.0


class Progress(NamedTuple):
    """How far a job has come, as it reported itself."""

    done: int | float
    total: int | float | None = None
    message: str | None = None


class JobReporter(Protocol):
    """The receiver of what jobs report of themselves: the worker, or a command that runs a handler."""

    def progressed(self, job: Job) -> None:
        """Receive a new `last_progress`. It may be called a million times a second."""

    def logged(self, job: Job, level: int, message: str) -> None: ...


class Job:
    """The argument of a handler. `id` is the same at every attempt: use it as the idempotency key."""

    __slots__ = (
        "_cancelled", "_progress", "attempt", "handler", "headers", "id", "max_retries", "payload", "priority", "queue",
    )  # fmt: skip

    _cancelled: bool
    """Set only once the job is cancelled."""
    _progress: Progress
    """Set only once the job has reported it."""
    _reporter: ClassVar[JobReporter | None] = None

    def __init__(
        self,
        id: int,
        handler: str,
        payload: Any = None,
        attempt: int = 1,
        queue: str = "default",
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        max_retries: int | None = None,
    ) -> None:
        self.id = id
        self.handler = handler
        self.payload = payload
        self.attempt = attempt
        self.queue = queue
        self.headers: Mapping[str, Any] = headers if headers is not None else {}
        self.priority = priority
        self.max_retries = max_retries

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled while it runs. Its worker is killed after the handler's `cancel_grace`."""
        return getattr(self, "_cancelled", False)

    @property
    def parents(self) -> dict[int, Any]:
        """The results of the jobs that it waited for (`after`), by id in the same order: None for one that has not succeeded; a job
        that was deleted meanwhile is left out. Raises ParentResultsTooLarge if they have more than 1 MB together."""
        return parents.results_of(self.id, self.headers)

    @property
    def parent_ids(self) -> list[int]:
        """The jobs that it waited for, without those that were deleted meanwhile."""
        return list(parents.given_in(self.headers).get("ids", ()))

    @property
    def failed_parents(self) -> list[int]:
        """The jobs of `parent_ids` that failed for good, were cancelled or were deleted."""
        return list(parents.given_in(self.headers).get("failed", ()))

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report how far the job has come, for `supervisor status` and `jobs show`. It may be called as often as you like, from any
        thread of the worker; what is shown is up to two seconds old. `message` is cut at 200 characters.

        Raises TypeError or ValueError if `done` or `total` is no number, or is negative or not finite.
        """
        self._progress = Progress(
            _amount("done", done),
            None if total is None else _amount("total", total),
            None if message is None else printable(str(message)[:MAX_PROGRESS_MESSAGE])[:MAX_PROGRESS_MESSAGE],
        )
        if Job._reporter is not None:
            Job._reporter.progressed(self)

    @property
    def last_progress(self) -> Progress | None:
        """The progress that this attempt has reported last."""
        return getattr(self, "_progress", None)

    def log(self, message: str, *arguments: Any, level: int = logging.INFO) -> None:
        """Log a message of the job, whatever plugins have configured. The arguments are put into it as `logging` does."""
        if Job._reporter is None:
            logging.getLogger(LOGGER).log(level, message, *arguments)
        else:
            Job._reporter.logged(self, level, _message(message, arguments))

    def __repr__(self) -> str:
        return f"Job(id={self.id}, handler={self.handler!r}, attempt={self.attempt}, queue={self.queue!r})"


def report_jobs_to(reporter: JobReporter | None) -> JobReporter | None:
    """Have all jobs of this process report to the `reporter`; return the one before."""
    before, Job._reporter = Job._reporter, reporter
    return before


def _message(message: Any, arguments: tuple[Any, ...]) -> str:
    """Return the message with its arguments. As with `logging`, no mistake in them fails the job."""
    try:
        return str(message) % arguments if arguments else str(message)
    except Exception as error:
        return f"unreadable log message {str(message)!r}: {type(error).__name__}: {error}"


def _amount(name: str, value: Any) -> int | float:
    if type(value) is int and 0 <= value <= MAX_PROGRESS:
        return value
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        amount = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"progress: {name}: expected a number, got {value!r}") from None
    if not 0 <= amount <= MAX_PROGRESS:
        raise ValueError(f"progress: {name}: expected a number from 0 to 2**62, got {value!r}")
    return int(amount) if amount.is_integer() else amount


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to enqueue. `delay` and `timeout` are seconds; `at` is an aware datetime; give at most one of `delay` and `at`.

    `unique`, `key`, `group`, `after`, `tags` and `expires`, each with its own options, are explained at `Client.enqueue`.

    `queue=None` is the queue that the configuration gives the handler, else "default". `max_retries`, `timeout` and
    `backoff` override every other setting for this job alone; `timeout=0` means no limit.
    """

    handler: str
    payload: Any = None
    queue: str | None = None
    priority: int = 0
    delay: float | None = None
    at: datetime | None = None
    max_retries: int | None = None
    timeout: float | None = None
    backoff: Backoff | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    unique: str | None = None
    unique_while: str | float = "unfinished"
    on_conflict: str = "skip"
    key: str | None = None
    on_failure: str = "pass"
    group: str | None = None
    after: Sequence[int] = ()
    on_parent_failed: str = "cancel"
    tags: Sequence[str] = ()
    expires: str | float | None = None


class Lease(NamedTuple):
    """A claim on one job: the job may be settled under this `token` only.

    `payload` and `headers` are JSON text as stored, never decoded in the supervisor. `due_at` and `created_at` are
    microseconds since the epoch by the store's clock. `expired_count` grows with each lease of the job in a row that ended
    without an outcome: by 2 if the job had a start mark, else by 1.
    """

    id: int
    token: int
    handler: str
    queue: str
    payload: str
    headers: str | None
    retries: int
    priority: int
    tier: int
    due_at: int
    created_at: int
    policy: Policy
    expired_count: int = 0

    @property
    def attempt(self) -> int:
        return self.retries + 1


class ExpiredJob(NamedTuple):
    """A job that was cancelled, since it had not started when its time to do so was over."""

    id: int
    handler: str
    queue: str


LEASE_ID: Final = 0
LEASE_TOKEN: Final = 1
LEASE_HANDLER: Final = 2
LEASE_QUEUE: Final = 3
LEASE_PAYLOAD: Final = 4
LEASE_HEADERS: Final = 5
LEASE_RETRIES: Final = 6
LEASE_PRIORITY: Final = 7
LEASE_TIER: Final = 8
LEASE_DUE_AT: Final = 9
LEASE_POLICY: Final = 11
LEASE_EXPIRED_COUNT: Final = 12


@dataclass(frozen=True, slots=True)
class Failure:
    """Everything known about one failed attempt. `at` is microseconds since the epoch, set by the store if 0.

    `peak_memory` is the largest memory of the worker, in bytes; `heartbeat_age` is the seconds since its last heartbeat;
    `stack` is the Python stack of a hung worker; `stderr` is the end of what the job wrote to it.
    """

    cause: Cause
    type: str = ""
    message: str = ""
    traceback: str = ""
    attempt: int = 0
    at: int = 0
    exit_code: int | None = None
    signal: str | None = None
    peak_memory: int | None = None
    oom_suspected: bool = False
    heartbeat_age: float | None = None
    stack: str | None = None
    stderr: str | None = None
    host: str | None = None
    pid: int | None = None

    def record(self) -> dict[str, Any]:
        """Return the failure as a dict of JSON values, by the names of the fields."""
        return {**asdict(self), "cause": self.cause.value}


class Kind(StrEnum):
    """The ways in which an attempt ends. SNOOZED: the handler asked to be run again later, by Snooze."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"
    SNOOZED = "snoozed"


class SnoozeLimit(NamedTuple):
    """How often a job may snooze, and the time (microseconds since the epoch) past which it may not; None is no limit. `failure` is that
    of the attempt if it is past the limit."""

    most: int | None
    until: int | None
    failure: Failure


class Outcome(NamedTuple):
    """The result of one attempt and, once decided, the change that the store makes to the job.

    The fields up to `retry_after` (seconds) come from the worker, or from the way in which its process ended. `retry.decide`
    fills those from `state` to `dead_letter`. `state` is the next state of the job: SUCCEEDED, FAILED, SCHEDULED for `delay`
    seconds, or READY at once. `counted` adds one to the retries of the job. `dead_letter` makes it a dead letter:
    a delivered one if the supervisor has no sinks.
    `seen` is set by recovery only: the deadline of the lease as observed, which must be unchanged for the settle to be accepted.
    `snooze` is the limit of a snooze, whose delay is in `retry_after`.
    """

    lease: Lease
    kind: Kind
    result: str | None = None
    took: float | None = None
    failure: Failure | None = None
    retryable: bool = True
    retry_after: float | None = None
    state: JobState | None = None
    delay: float = 0.0
    counted: bool = False
    dead_letter: bool = False
    seen: int | None = None
    snooze: SnoozeLimit | None = None


OUTCOME_LEASE: Final = 0
OUTCOME_KIND: Final = 1
OUTCOME_RESULT: Final = 2
OUTCOME_TOOK: Final = 3
OUTCOME_FAILURE: Final = 4
OUTCOME_STATE: Final = 7
