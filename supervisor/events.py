"""Events of a supervisor: small values, emitted to a bus. The log, the metrics, plugins and tests subscribe to it. Durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from types import MappingProxyType
from typing import Any, NamedTuple

from supervisor.bus import Bus as Bus
from supervisor.bus import Event as Event
from supervisor.bus import Subscriber as Subscriber
from supervisor.jobs import ExpiredJob, Lease, Outcome
from supervisor.text.units import counted


class SupervisorStarted(NamedTuple):
    owner: str
    host: str
    pid: int
    store: str


class SupervisorStopping(NamedTuple):
    reason: str


MAX_COUNTED = 10_000  # rows that have to be counted one by one are counted up to here: so many means "or more"


class SupervisorStopped(NamedTuple):
    code: int
    remaining: dict[str, int]
    excluded: Mapping[str, int] = MappingProxyType({})
    missing_handlers: Sequence[str] = ()
    blocked: str = ""

    @property
    def left(self) -> str:
        """Return the remaining jobs and dead letters as text for people."""
        return ", ".join(
            f"{n:,}{' or more' if n == MAX_COUNTED else ''} {kind.replace('_', ' ')}"
            for kind, n in self.remaining.items()
        )

    @property
    def left_out(self) -> str:
        """Return the jobs that the user has excluded from a drain as text for people."""
        return ", ".join(f"{n:,} {kind.replace('_', ' ')}" for kind, n in self.excluded.items())


class PluginLoaded(NamedTuple):
    source: str
    handlers: tuple[str, ...]
    hooks: tuple[str, ...]


class PluginFailed(NamedTuple):
    """A plugin could not be loaded. The other plugins are used."""

    source: str
    line: int | None
    error: str
    traceback: str

    @property
    def text(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"plugin {where} did not load: {self.error}"


class PluginWarning(NamedTuple):
    source: str
    message: str


class ConfigWarning(NamedTuple):
    message: str


class HookFailed(NamedTuple):
    hook: str
    plugin: str
    error: str
    traceback: str

    @property
    def text(self) -> str:
        return f"hook {self.hook} of plugin {self.plugin} failed: {self.error}"


class HookWarning(NamedTuple):
    """A hook in the supervisor does not return, has returned late, or has kept the supervisor from running."""

    hook: str
    plugin: str
    message: str


class ForkserverStarted(NamedTuple):
    pid: int


class ForkserverExited(NamedTuple):
    """The forkserver has exited. `pid` is 0 if it could not be started."""

    pid: int
    how: str


class WorkerStarted(NamedTuple):
    number: int
    pid: int


class WorkersScaled(NamedTuple):
    """The number of workers has changed within its limits, which `key` of the config gives."""

    key: str
    before: int
    now: int
    why: str


NORMAL_EXITS = frozenset({"stopped", "nice", "max_age", "max_jobs", "max_memory"})
INTENDED_KILLS = frozenset({"shutdown", "lease_lost", "cancelled"})


class WorkerExited(NamedTuple):
    """A worker has exited. `cause` is the name of the reason to kill it, "crash", or one of NORMAL_EXITS. `how` is the limit that it
    has reached, the fault for which it was killed, or else its status. `pid` is 0 if it could not be started.
    `job_id` and `handler` are those of the job that the worker was running, if any, for `after` seconds.
    """

    number: int
    pid: int
    cause: str
    how: str
    job_id: int | None
    handler: str | None = None
    after: float | None = None


class WorkerOutput(NamedTuple):
    """Lines that a worker wrote to `stdout` or `stderr` while the job ran (None: between jobs). Number 0 is the forkserver."""

    number: int
    pid: int
    stream: str
    job_id: int | None
    lines: Sequence[str]
    handler: str | None = None


class WorkerLogged(NamedTuple):
    """A worker, or the forkserver (number 0), has logged a record with `logging`, while the job ran (None: between jobs)."""

    number: int
    pid: int
    level: int
    level_name: str
    logger: str
    message: str
    traceback: str
    job_id: int | None
    handler: str | None
    attempt: int | None


class WorkerWarning(NamedTuple):
    """Something is wrong with a worker, or with what its job has left."""

    number: int
    pid: int
    message: str


class QueueDepths(NamedTuple):
    """The ready jobs of the served, unpaused queues, as (fresh, retries), just before a claim. A queue that is left out has none; with
    `more`, it has as many as seen before."""

    waiting: Mapping[str, tuple[int, int]]
    more: bool = False


class JobsClaimed(NamedTuple):
    leases: Sequence[Lease]


class JobStarted(NamedTuple):
    """A worker has begun a job. There is no such event for a job that ends within milliseconds."""

    lease: Lease
    pid: int


class JobsSettled(NamedTuple):
    """The store has accepted these outcomes, which are decided (`state`, `delay`, `counted`, `dead_letter`). `age` is the
    seconds since it wrote them: a `delay` counts from then."""

    outcomes: Sequence[Outcome]
    age: float = 0.0


class JobsStale(NamedTuple):
    """The store refused these leases, or their outcomes: the token is no longer that of the job. `what` names the call that was
    refused. Leases of cancelled jobs are not among them, unless the refused call is a settle."""

    leases: Sequence[Lease]
    what: str


class JobsLocked(NamedTuple):
    """Another client of the database has locked the rows of these jobs: their outcomes are kept until they can be settled."""

    leases: Sequence[Lease]


class JobsReleased(NamedTuple):
    leases: Sequence[Lease]
    reason: str


class JobCancelled(NamedTuple):
    """A job was cancelled while it ran here: its worker has been killed, or will be after the grace of its handler."""

    lease: Lease
    pid: int


class JobsExpired(NamedTuple):
    """These jobs were cancelled, since they had not started when their time to do so was over."""

    jobs: Sequence[ExpiredJob]


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


class SinkMissing(NamedTuple):
    """Pending dead letters, at most MAX_COUNTED, wait for a sink that no running supervisor has. `configured`: the config has it."""

    sink: str
    pending: int
    configured: bool = False

    @property
    def message(self) -> str:
        at_least = "at least " if self.pending >= MAX_COUNTED else ""
        return f"{at_least}{counted(self.pending, 'pending dead letter', 'wait')} for sink {self.sink}, which no running supervisor has"

    @property
    def what_to_do(self) -> str:
        if self.configured:
            return "the config has it, so start or restart a supervisor, which publishes to it: supervisor run"
        return f"start one that has it, or drop it with: supervisor dlq drop-sink {quote(self.sink)}"

    @property
    def text(self) -> str:
        return f"{self.message}: {self.what_to_do}"


class SinkCutOff(NamedTuple):
    """A call of a sink had not returned at the end of the supervisor, which exits without it."""

    sink: str
    text: str


class DeadLettersStale(NamedTuple):
    """The claim on these dead letters had ended, or was about to. `what` is the "claim", so `sink` was not called, or its "acceptance"."""

    sink: str
    ids: Sequence[int]
    what: str


class StoreBecameUnavailable(NamedTuple):
    error: str


class StoreLost(NamedTuple):
    """The database file was deleted, moved, replaced, truncated or overwritten. The supervisor exits, since others would not see what it writes."""

    error: str


class StoreAvailableAgain(NamedTuple):
    unavailable_for: float


class StoreCallFailed(NamedTuple):
    """The store is available and one kind of call fails, since a right is missing, for example. `meanwhile` is the effect."""

    purpose: str
    error: str
    meanwhile: str

    @property
    def text(self) -> str:
        return f"the store fails to {self.purpose}: {self.error}; meanwhile {self.meanwhile}"


class StoreCallSucceeded(NamedTuple):
    """A kind of call that has failed (StoreCallFailed) for `failed_for` seconds was done."""

    purpose: str
    failed_for: float


class StoreRepaired(NamedTuple):
    """`wrong` is what was wrong, and is repaired now: another program had changed rows by plain SQL, or jobs waited for others that had
    ended while rows were locked."""

    wrong: str


class SignalReceived(NamedTuple):
    """A signal to the supervisor, such as `SIGTERM`, and its effect as text for people."""

    signal: str
    effect: str


class LoopGap(NamedTuple):
    """The supervisor itself did not run for `seconds`, which count neither for heartbeats nor for timeouts."""

    seconds: float


class ClockStepped(NamedTuple):
    """The wall clock was set forward or, if `seconds` is negative, back."""

    seconds: float


class ConfigReloaded(NamedTuple):
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    plugin_files: tuple[str, ...] = ()  # that have changed; all plugins were imported anew
    handlers_added: tuple[str, ...] = ()
    handlers_removed: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        parts = [*self.changed, *(f"plugin file {file}" for file in self.plugin_files)]
        lists = {
            "handlers added": self.handlers_added,
            "handlers removed, whose jobs wait until one has them again": self.handlers_removed,
            "a restart is needed for": self.needs_restart,
        }
        return "; ".join([
            ", ".join(parts) or "nothing changed", *(f"{what}: {', '.join(names)}" for what, names in lists.items() if names)
        ])  # fmt: skip


class ConfigRefused(NamedTuple):
    errors: tuple[str, ...]
    by_plugin: bool = False  # one that is served does not load any more


class StatusDumped(NamedTuple):
    status: dict[str, Any]


class Dropped(NamedTuple):
    """A bounded queue overflowed, and `number` events or log lines were dropped."""

    queue: str
    number: int
