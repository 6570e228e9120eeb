"""The values that callers and stores exchange, and the forms in which every store keeps and shows a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, overload

import orjson

from supervisor.errors import StoreError
from supervisor.jobs import LEASE_QUEUE, LEASE_TIER, Backoff, ExpiredJob, Failure, JobState, Lease, Outcome, Policy
from supervisor.stores.codes import CODES
from supervisor.stores.extras import Extras, by_place
from supervisor.stores.limits import MAX_TIME
from supervisor.text.printable import printable

MAX_TEXT_BYTES = 16 * 1024
MAX_ATTEMPTS_KEPT = 50
_HEAD = MAX_TEXT_BYTES // 4

Candidate = TypeVar("Candidate")

Resolve = Callable[[str, str], Policy]
"""The policy of a handler's jobs in a queue."""


class EnqueueRow(NamedTuple):
    """A job as it goes into the store: it is validated, and `payload` and `headers` are JSON text.

    At most one of `delay` (seconds from the store's now) and `at` (microseconds since the epoch) is given.
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
    extras: Extras | None = None

    def with_parents(self, ids: list[int]) -> EnqueueRow:
        """Return the row with the ids of its parents; `ids` are those of the rows before it in the batch."""
        if self.extras is None or not self.extras.after:
            return self
        return self._replace(extras=self.extras._replace(after=by_place(self.extras.after, ids)))


class EnqueueBatch(Sequence[EnqueueRow]):
    """Rows to enqueue, most of which differ only in their payload.

    Row n is `kinds[places[n]]` with `payloads[n]`. A tuple for each row would cost more than half of the time that it takes to
    make the batch, mostly in the garbage collector.

    `unsure` is set by a store that may have stored the rows although it raised StoreUnavailable: it is (ids, created_at), by which
    the store recognises the rows at the next try.
    """

    __slots__ = ("kinds", "payloads", "places", "unsure")

    def __init__(self, rows: Iterable[EnqueueRow] = ()) -> None:
        self.kinds: list[EnqueueRow] = []
        self.places: list[int] = []
        self.payloads: list[str] = []
        self.unsure: tuple[Sequence[int], int] | None = None
        for row in rows:
            self.append(row)

    @classmethod
    def of(cls, rows: Iterable[EnqueueRow]) -> EnqueueBatch:
        return rows if isinstance(rows, cls) else cls(rows)

    def append(self, row: EnqueueRow) -> int:
        """Append a row, and return the index of its kind."""
        place = self.places[-1] if self.places else 0
        if not self.kinds or not _are_alike(row, self.kinds[place]):
            place = len(self.kinds)
            self.kinds.append(row)
        self.places.append(place)
        self.payloads.append(row.payload)
        return place

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[EnqueueRow]:
        return map(self._row, self.places, self.payloads)

    @overload
    def __getitem__(self, at: int) -> EnqueueRow: ...
    @overload
    def __getitem__(self, at: slice) -> EnqueueBatch: ...
    def __getitem__(self, at: int | slice) -> EnqueueRow | EnqueueBatch:
        if isinstance(at, slice):
            part = EnqueueBatch()
            part.kinds, part.places, part.payloads = self.kinds, self.places[at], self.payloads[at]
            return part
        return self._row(self.places[at], self.payloads[at])

    def _row(self, place: int, payload: str) -> EnqueueRow:
        kind = self.kinds[place]
        return kind if payload is kind.payload else kind._replace(payload=payload)


_BEFORE_PAYLOAD = slice(EnqueueRow._fields.index("payload"))
_BEHIND_PAYLOAD = slice(EnqueueRow._fields.index("payload") + 1, None)


def _are_alike(one: EnqueueRow, other: EnqueueRow) -> bool:
    return one[_BEFORE_PAYLOAD] == other[_BEFORE_PAYLOAD] and one[_BEHIND_PAYLOAD] == other[_BEHIND_PAYLOAD]


class Waiting(NamedTuple):
    """The number of jobs of one served, unpaused queue that are ready now."""

    fresh: int
    retries: int


class Look(NamedTuple):
    """The jobs that wait, as seen before a claim: `waiting` by queue. `next_due` is the seconds until the next scheduled job is
    due (0 if it is due now), or None if no job is scheduled. `newly_ready` are the queues and tiers that had no ready job before
    this look made jobs ready, also of queues that are not served. With `more` there are ready jobs in further queues: `waiting`
    has those behind `behind`, in order, where the first one comes behind the last one. `expired` are the jobs that this look has
    cancelled; if more have expired, nothing waits before a further look has cancelled them too."""

    waiting: dict[str, Waiting]
    next_due: float | None
    newly_ready: frozenset[tuple[str, int]] = frozenset()
    more: bool = False
    behind: str = ""
    expired: Sequence[ExpiredJob] = ()


class ClaimRequest(NamedTuple):
    """A request for up to `limit` jobs of one queue: first the urgent ones (fresh, of priority `urgent` or more),
    then up to `retries_first` retries, then fresh ones, then retries to fill up; never more than `max_retries_claimed` retries."""

    queue: str
    limit: int
    retries_first: int
    max_retries_claimed: int
    urgent: int

    def retries_wanted(self, fresh: int) -> int:
        """Return the maximum of retries among the picked, if there are `fresh` fresh candidates."""
        return min(self.max_retries_claimed, self.limit, max(self.retries_first, self.limit - fresh))

    def pick(self, fresh: Sequence[Candidate], urgent: int, retries: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates to claim, in order. `fresh` and `retries` have `limit` at most; the first `urgent` are urgent."""
        retries = retries[: self.retries_wanted(len(fresh))]
        urgent = min(urgent, self.limit)
        first = min(self.retries_first, self.limit - urgent)
        order = [*fresh[:urgent], *retries[:first], *fresh[urgent:]]
        return [*order[: self.limit], *retries[first:]][: self.limit]


class ExpiredLease(NamedTuple):
    """A lease whose deadline has passed, or whose owner is provably gone (`owner_gone`), so that it is recovered at once.

    `deadline` is as seen: recovery names it, so that a lease that was extended meanwhile is left alone. `started` is whether
    the job has a start mark. The lease has no payload and no headers, which may be large.
    """

    lease: Lease
    deadline: int
    started: bool
    owner: str
    owner_gone: bool

    @property
    def place(self) -> tuple[bool, int, int]:
        """The place in the order of recovery: leases of owners that are gone first, then the longest expired."""
        return not self.owner_gone, self.deadline, self.lease.id


def by_queue_and_tier(leases: Sequence[Sequence[Any]]) -> Mapping[tuple[str, int], int]:
    """Return the number of leases, or rows of leases, for each (queue, tier). Most batches have only one."""
    queues, tiers = {lease[LEASE_QUEUE] for lease in leases}, {lease[LEASE_TIER] for lease in leases}
    if len(queues) == len(tiers) == 1:
        return {(queues.pop(), tiers.pop()): len(leases)}
    return Counter([(lease[LEASE_QUEUE], lease[LEASE_TIER]) for lease in leases])


def code_of_state(outcome: Outcome) -> int:
    """Return the code of the state to which the outcome takes its job. Raises StoreError if the outcome is not decided."""
    if outcome.state is None:
        raise StoreError(f"job {outcome.lease.id}: an outcome must be decided before it is settled")
    return CODES[outcome.state]


def require_seen(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.seen is None:
            raise StoreError(f"job {outcome.lease.id}: recovery must name the deadline that it saw")


# --- dead letters, owners and operators


class DeadLetter(NamedTuple):
    """A dead letter claimed for publishing under `token`. `job` is the object that `supervisor jobs show --json` prints."""

    id: int
    token: int
    tries: int
    accepted: frozenset[str]
    job: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Presence:
    """The state of a supervisor; written with a commit that happens anyway, or by itself at least every ttl/3.

    `workers` is a list of the objects that `status --json` prints; `idle` is the number of workers with nothing to do; `ttl` is
    how many seconds its leases last, if that is known; `about` is what it knows of itself, as JSON (see `stores.supervisors`).
    """

    state: str
    workers: Sequence[Mapping[str, Any]] = ()
    idle: int = 0
    ttl: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


class OperatorResult(NamedTuple):
    """The jobs that a command changed, each with its state before, and the reason for each id that it refused."""

    changed: dict[int, JobState]
    refused: dict[int, str]


Place = tuple[int, int]
"""Of an ended job in the order of pruning: when it ended, and its id."""


@dataclass(slots=True)
class PruneRun:
    """How far one run through the jobs past their retention has come, by code of state; `more` is whether it has not ended."""

    passed: dict[int, Place] = field(default_factory=dict)
    more: bool = True


# --- the forms in which failures, policies and times are kept


def failure_record(failure: Failure, lease: Lease, now: int) -> dict[str, Any]:
    """Return the failure as stores keep it: with attempt and time, and with texts cut, and escaped for any store."""
    kept = replace(failure, attempt=failure.attempt or lease.attempt, at=failure.at or now)
    return {key: cut(printable(value)) if isinstance(value, str) else value for key, value in kept.record().items()}


def readable_attempt(text: str, at: int | None = None) -> dict[str, Any]:
    """A failure as it is kept, with the time `at` if that is kept apart. What another program has put in its place is shown as its
    message: one bad row must not hold up others."""
    try:
        record = orjson.loads(text)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        record = {"message": text}
    at = record.get("at") if at is None else at
    return {
        "attempt": 0,
        "cause": "unreadable",
        **record,
        "at": at if isinstance(at, int) and abs(at) <= MAX_TIME else 0,
    }


def cut(text: str) -> str:
    """Return at most 16 KB of UTF-8: a quarter of it from the beginning of the text, the rest from its end."""
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
    """The default if another program has put something else in its place: one bad row must not hold up others."""
    try:
        max_retries, backoff, timeout, heartbeat_timeout = orjson.loads(text)
        return Policy(max_retries, Backoff(*backoff), timeout, heartbeat_timeout)
    except (ValueError, TypeError):
        return Policy()


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


def own_options(options: str | None) -> dict[str, Any]:
    """Return the options of `options_text` by name, in seconds; what the job does not have itself is None."""
    max_retries, timeout, backoff = (None, None, None) if options is None else orjson.loads(options)
    curve = None if backoff is None else Backoff(*backoff)._asdict()
    return {"max_retries": max_retries, "timeout": timeout, "backoff": curve}


def own_max_retries(options: str | None, policy: Policy | None) -> int | None:
    """The job's own limit, else that of the policy it was last claimed under, else None."""
    own: int | None = None if options is None else orjson.loads(options)[0]
    return policy.max_retries if own is None and policy is not None else own


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
