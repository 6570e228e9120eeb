"""What happened, as small values. The code emits; whoever cares subscribes: logs, metrics, plugins, tests.

Times are the supervisor's wall clock in seconds where there are any; run times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from supervisor.jobs import Lease, Outcome


class SupervisorStarted(NamedTuple):
    owner: str
    host: str
    pid: int
    store: str


class SupervisorStopping(NamedTuple):
    reason: str


MAX_COUNTED = 10_000
"""Where rows would have to be counted one by one, no more are than these: there may be more."""


class SupervisorStopped(NamedTuple):
    code: int
    remaining: dict[str, int]

    @property
    def left(self) -> str:
        """What remains, for a person to read."""
        return ", ".join(
            f"{n}{' or more' if n == MAX_COUNTED else ''} {what.replace('_', ' ')}"
            for what, n in self.remaining.items()
        )


class PluginLoaded(NamedTuple):
    source: str
    handlers: tuple[str, ...]
    hooks: tuple[str, ...]


class PluginFailed(NamedTuple):
    """A plugin that could not be loaded; the rest serve."""

    source: str
    line: int | None
    error: str
    traceback: str


class PluginWarning(NamedTuple):
    source: str
    message: str


class HookFailed(NamedTuple):
    hook: str
    plugin: str
    error: str
    traceback: str


class ForkserverStarted(NamedTuple):
    pid: int


class ForkserverExited(NamedTuple):
    """`pid` is 0 if it could not even be started."""

    pid: int
    how: str


class WorkerStarted(NamedTuple):
    number: int
    pid: int


NORMAL_EXITS = frozenset({"stopped", "max_jobs", "max_memory"})


class WorkerExited(NamedTuple):
    """`cause` is why the supervisor killed it, or "crash", or, for an orderly end, one of NORMAL_EXITS. `pid` is 0 if it
    could not even be started.

    `handler` and `after` (seconds it had been running) are those of the job it died at, if it died at one.
    """

    number: int
    pid: int
    cause: str
    how: str
    job_id: int | None
    handler: str | None = None
    after: float | None = None


class WorkerOutput(NamedTuple):
    """Lines that a worker wrote to `stdout` or `stderr` while the job ran (None: between jobs). Number 0 is the nursery."""

    number: int
    pid: int
    stream: str
    job_id: int | None
    lines: Sequence[str]
    handler: str | None = None


class QueueDepths(NamedTuple):
    """Ready jobs of the served, unpaused queues as (fresh, retries), seen just before a claim or when asked.

    A queue that is left out has none.
    """

    waiting: Mapping[str, tuple[int, int]]


class JobsClaimed(NamedTuple):
    leases: Sequence[Lease]


class JobStarted(NamedTuple):
    """Sent when a worker is seen to have begun it; not for jobs of a batch that end before they are seen."""

    lease: Lease
    pid: int


class JobsSettled(NamedTuple):
    """Outcomes that the store has taken, decided (`state`, `delay`, `counted`, `letter`). `age`: seconds since it was given
    them, from which a `delay` counts."""

    outcomes: Sequence[Outcome]
    age: float = 0.0


class JobsStale(NamedTuple):
    """Outcomes or leases that the store refused: the token is no longer the job's. Leases of jobs that were cancelled are not
    among them."""

    leases: Sequence[Lease]
    what: str


class JobsLocked(NamedTuple):
    """Somebody else has the rows of these jobs locked in the store: their outcomes are kept until they can be settled."""

    leases: Sequence[Lease]


class JobsReleased(NamedTuple):
    leases: Sequence[Lease]
    reason: str


class JobCancelled(NamedTuple):
    """While it ran here: its worker is killed."""

    lease: Lease
    pid: int


class LeasesRecovered(NamedTuple):
    outcomes: Sequence[Outcome]


class DeadLettersPublished(NamedTuple):
    sink: str
    ids: Sequence[int]


class DeadLettersFailed(NamedTuple):
    sink: str
    ids: Sequence[int]
    error: str
    retry_in: float


class DeadLettersStale(NamedTuple):
    """Dead letters that were claimed anew meanwhile: a `claim` that ended before `sink` was asked, or its `acceptance`."""

    sink: str
    ids: Sequence[int]
    what: str


class StoreBecameUnavailable(NamedTuple):
    error: str


class StoreAvailableAgain(NamedTuple):
    unavailable_for: float


class PruneRefused(NamedTuple):
    """What is past its retention stays in the store, which does not let go of it: a foreign key of somebody else's, say."""

    error: str


class LoopGap(NamedTuple):
    """The supervisor itself stood still (suspended, stopped): it counts neither for heartbeats nor for timeouts."""

    seconds: float


class ClockStepped(NamedTuple):
    """The wall clock was set, forward or (negative) back."""

    seconds: float


class ConfigReloaded(NamedTuple):
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


class ConfigRefused(NamedTuple):
    errors: tuple[str, ...]


class StatusDumped(NamedTuple):
    status: dict[str, Any]


class Dropped(NamedTuple):
    """A bounded queue overflowed: so many events or log lines were dropped."""

    queue: str
    number: int


Event = Any
Subscriber = Callable[[Event], None]


class Bus:
    """Hands each event to its subscribers, in the order of their subscription. A subscriber must be quick and must not raise."""

    __slots__ = ("_by_type", "_subscriptions")

    def __init__(self) -> None:
        self._subscriptions: list[tuple[Subscriber, tuple[type[Any], ...]]] = []
        self._by_type: dict[type[Any], tuple[Subscriber, ...]] = {}

    def subscribe(self, subscriber: Subscriber, *types: type[Any]) -> None:
        """Hand it each event of these types; every event, if no type is given."""
        self._subscriptions.append((subscriber, types))
        self._by_type = {}

    def emit(self, event: Event) -> None:
        kind = type(event)
        if (subscribers := self._by_type.get(kind)) is None:
            subscribers = self._by_type[kind] = tuple(
                subscriber for subscriber, types in self._subscriptions if not types or kind in types
            )
        for subscriber in subscribers:
            subscriber(event)
