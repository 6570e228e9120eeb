"""What people see of a job, and what is kept of a failure: the same in every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import orjson

from supervisor.errors import StoreError
from supervisor.jobs import Backoff, Failure, JobState, Lease, Outcome, Policy
from supervisor.text.printable import printable
from supervisor.text.strict_json import NotJSON, decode

OperatorResult = tuple[list[int], dict[int, str]]

MAX_TEXT_BYTES = 16 * 1024
MAX_ATTEMPTS_KEPT = 50
_HEAD = MAX_TEXT_BYTES // 4
NO_SUCH_JOB = "no such job"
_PENDING_DEAD_LETTER = "its dead letter is pending: not every sink has it yet ({} to do it all the same)"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Shown(NamedTuple):
    """A job as any store knows it. Times are microseconds since the epoch; the texts are JSON as stored, or rubbish."""

    id: int
    handler: str
    payload: str
    queue: str
    priority: int
    state: str
    retries: int
    max_retries: int | None
    due_at: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    result: str | None
    headers: str | None
    errors: Sequence[Mapping[str, Any]]
    dead_letter: str | None


def job_dict(job: Shown) -> dict[str, Any]:
    """The object that `supervisor jobs show --json` prints."""
    return {
        "id": job.id,
        "handler": job.handler,
        "payload": readable(job.payload),
        "queue": job.queue,
        "priority": job.priority,
        "state": job.state,
        "attempt": job.retries + 1,
        "retries": job.retries,
        "max_retries": job.max_retries,
        "due_at": iso(job.due_at),
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
        "result": None if job.result is None else readable(job.result),
        "headers": {} if job.headers is None else readable(job.headers),
        "errors": [{**error, "at": iso(error["at"])} for error in job.errors],
        "dead_letter": job.dead_letter,
    }


def iso(microseconds: int | None) -> str | None:
    """ISO 8601 in UTC with microseconds; a time that the calendar can't hold is shown as the nearest it can."""
    if microseconds is None:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        moment = (datetime.max if microseconds > 0 else datetime.min).replace(tzinfo=UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def readable(text: str) -> Any:
    """The value of JSON `text`; the text itself if it isn't strict JSON (someone else put it there)."""
    try:
        return decode(text)
    except NotJSON:
        return text


def failure_record(failure: Failure, lease: Lease, now: int) -> dict[str, Any]:
    """The failure as it is kept: attempt and time filled in, long texts cut, every text one that any store takes."""
    kept = replace(failure, attempt=failure.attempt or lease.attempt, at=failure.at or now)
    return {key: cut(printable(value)) if isinstance(value, str) else value for key, value in kept.record().items()}


def cut(text: str) -> str:
    """At most 16 KB of UTF-8, its beginning and, more of it, its end."""
    data = text.encode()
    if len(data) <= MAX_TEXT_BYTES:
        return text
    mark = f"\n[... {len(data) - MAX_TEXT_BYTES} bytes cut ...]\n"
    head = data[:_HEAD].decode(errors="ignore")
    tail = data[_HEAD - MAX_TEXT_BYTES + len(mark) :].decode(errors="ignore")
    return head + mark + tail


def policy_text(policy: Policy) -> str:
    return orjson.dumps((policy.max_retries, tuple(policy.backoff), policy.timeout, policy.heartbeat_timeout)).decode()


def policy_of(text: str | bytes) -> Policy:
    max_retries, backoff, timeout, heartbeat_timeout = orjson.loads(text)
    return Policy(max_retries, Backoff(*backoff), timeout, heartbeat_timeout)


def options_text(row: EnqueueRow) -> str | None:
    """A job's own overrides of its policy, or None if it has none."""
    if row.max_retries is None and row.timeout is None and row.backoff is None:
        return None
    return orjson.dumps((row.max_retries, row.timeout, row.backoff and tuple(row.backoff))).decode()


@lru_cache(1024)
def overlaid(policy: Policy, options: str) -> Policy:
    """`policy` with a job's own overrides laid over it."""
    max_retries, timeout, backoff = orjson.loads(options)
    if max_retries is not None:
        policy = policy._replace(max_retries=max_retries)
    if timeout is not None:
        policy = policy._replace(timeout=timeout or None)
    if backoff is not None:
        policy = policy._replace(backoff=Backoff(*backoff))
    return policy


def own_max_retries(options: str | None, policy: Policy | None) -> int | None:
    """The job's own limit, else that of the policy it was last claimed under, else None."""
    own: int | None = None if options is None else orjson.loads(options)[0]
    if own is None and policy is not None:
        own = policy.max_retries
    return own


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def require_seen(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.seen is None:
            raise StoreError(f"job {outcome.lease.id}: recovery must name the deadline that it saw")


# Why an operator's verb can't be done to a job in this state, with this letter ("pending", "delivered" or None); None: it can.


def refuse_cancel(state: JobState, dead_letter: str | None) -> str | None:
    return f"already {state.value}" if state.terminal else None


def refuse_retry(state: JobState, dead_letter: str | None) -> str | None:
    if state is JobState.SCHEDULED:
        return None
    return refuse_redrive(state, dead_letter, force=False, way="supervisor dlq redrive --force")


def refuse_redrive(state: JobState, dead_letter: str | None, force: bool, way: str = "--force") -> str | None:
    if not state.terminal:
        return f"{state.value.replace('_', ' ')}: it is going to run anyway"
    return _refuse_pending(dead_letter, force, way)


def refuse_delete(state: JobState, dead_letter: str | None, force: bool) -> str | None:
    return "in flight: cancel it first" if state is JobState.IN_FLIGHT else _refuse_pending(dead_letter, force)


def _refuse_pending(dead_letter: str | None, force: bool, way: str = "--force") -> str | None:
    return _PENDING_DEAD_LETTER.format(way) if dead_letter == "pending" and not force else None


Candidate = TypeVar("Candidate")


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


Resolve = Callable[[str, str], Policy]
"""The policy of a handler's jobs in a queue."""
