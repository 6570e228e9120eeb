"""What a job is: plain data, no I/O.

    enqueue ──► scheduled ──due──► ready ──claim──► in_flight ──┬──► succeeded
                    ▲                ▲                          ├──► failed     (dead letter: pending ──► delivered)
                    │                └────── release ───────────┤
                    └──────── retry (backoff) ──────────────────┘
                scheduled, ready, in_flight ──cancel──► cancelled
                succeeded, failed, cancelled ──redrive (operator)──► ready

A job leaves `in_flight` only under the fencing token of its last claim. `succeeded`, `failed` and `cancelled` are
terminal: only an operator's redrive changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

MAX_RETRIES = 1000


class JobState(StrEnum):
    SCHEDULED = "scheduled"
    READY = "ready"
    IN_FLIGHT = "in_flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class Cause(StrEnum):
    """Why an attempt failed."""

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CRASH = "crash"
    HEARTBEAT_LOST = "heartbeat_lost"
    LEASE_EXPIRED = "lease_expired"
    REJECTED = "rejected"
    UNKNOWN_HANDLER = "unknown_handler"
    REFUSED = "refused"


class Tier(IntEnum):
    """Where a claimable job waits. An urgent job is a fresh one whose priority reaches `retry.urgent` of its queue."""

    FRESH = 0
    RETRY = 1


class Backoff(NamedTuple):
    """A curve of delays; seconds. `jitter` is "full", "none" or the width in seconds added above the ceiling."""

    base: float = 0.5
    factor: float = 2.0
    max: float = 30.0
    jitter: str | float = "full"


class Policy(NamedTuple):
    """What bounds one job, resolved at its claim: job, then `handlers:`, then decorator, then `queues:`, then `retry:`.

    Times are seconds; None is no limit.
    """

    max_retries: int = 3
    backoff: Backoff = Backoff()
    timeout: float | None = 300.0
    heartbeat_timeout: float | None = 30.0


class Job:
    """What a handler is given. `id` is the same at every attempt: use it as the idempotency key."""

    __slots__ = ("attempt", "handler", "headers", "id", "payload", "priority", "queue")

    def __init__(
        self,
        id: int,
        handler: str,
        payload: Any = None,
        attempt: int = 1,
        queue: str = "default",
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> None:
        self.id = id
        self.handler = handler
        self.payload = payload
        self.attempt = attempt
        self.queue = queue
        self.headers: Mapping[str, Any] = headers if headers is not None else {}
        self.priority = priority

    def __repr__(self) -> str:
        return f"Job(id={self.id}, handler={self.handler!r}, attempt={self.attempt}, queue={self.queue!r})"


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to enqueue. `delay` and `timeout` are seconds; `at` is an aware datetime; at most one of `delay` and `at`.

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


class Lease(NamedTuple):
    """A claim on one job: it may be settled under this `token` only.

    `payload` and `headers` are JSON text as stored, never decoded in the parent. `due_at` and `created_at` are
    microseconds since the epoch by the store's clock. A plain tuple: this is the hot path.
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

    @property
    def attempt(self) -> int:
        return self.retries + 1


@dataclass(frozen=True, slots=True)
class Failure:
    """Everything known about one failed attempt. `at` is microseconds since the epoch, set by the store if 0.

    `peak_memory` is bytes of the worker over its life, `heartbeat_age` seconds; `stack` is the Python stack of a hung
    child, `stderr` the tail of what the job wrote there.
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
        """The failure as plain JSON values, all but `at` as they stand."""
        return {**asdict(self), "cause": self.cause.value}


class Kind(StrEnum):
    """What became of one attempt."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"


class Outcome(NamedTuple):
    """What became of one attempt, and, once decided, what the store is to make of it.

    The first part is told by the worker or its death; `state`, `delay` and `counted` are filled by the one retry path
    (`retry.decide`). `state` is where the job goes: SUCCEEDED, FAILED, SCHEDULED after `delay` seconds, or READY at
    once. `counted` adds one to its retries. `letter` asks for a pending dead letter. `seen` is set by recovery only:
    the lease deadline as observed, which must still stand for the settle to be accepted.
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
