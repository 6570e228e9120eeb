"""The interface between the pool and the operating system: `parent/` implements it with processes, tests with scripted ones.

Every call is made, and every callback comes, on the supervisor's loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from supervisor.events import WorkerLogged, WorkerOutput
from supervisor.jobs import Lease, Outcome
from supervisor.plugins.reports import SourceReport

if TYPE_CHECKING:
    from supervisor.workers.loop_reports import LoopState


class State(Enum):
    """The state of a worker."""

    STARTING = "starting"  # ordered, and not ready
    READY = "ready"  # it takes jobs
    RETIRING = "retiring"  # it takes no more jobs, and exits after the one that it runs
    EXITED = "exited"  # it exited without a job, and is replaced once its status is known, which may call for a delay
    ENDING = "ending"  # it was killed, or exited while it ran a job, and is replaced at once


class Reply(NamedTuple):
    """The outcome of one job, as its worker reports it. `took` is seconds; `result` is JSON text.

    `kind` is "ok", "failed", "rejected", "retry", "snoozed", "timeout" or "unknown". `error` is None for "ok"; otherwise it has `type`,
    `message` and `traceback`, and may have `after` (seconds), `retryable`, `stderr`, `peak_memory` (bytes), and the limit of a snooze:
    `most` and `until`, as in SnoozeLimit.
    """

    job_id: int
    kind: str
    took: float
    result: str | None
    error: Mapping[str, Any] | None


class OutputLines(NamedTuple):
    """Lines in a row that were written to "stdout" or "stderr", and the job that wrote them, if known."""

    stream: str
    job_id: int | None
    lines: Sequence[str]


class WorkerRecord(NamedTuple):
    """A record of `logging`. The last fields are those of the job that ran, if any."""

    level: int
    level_name: str
    logger: str
    message: str
    traceback: str = ""
    job_id: int | None = None
    handler: str | None = None
    attempt: int | None = None

    @property
    def text(self) -> str:
        return f"{self.level_name} {self.logger}: {self.message}\n{self.traceback}".rstrip("\n")


class WorkerProgress(NamedTuple):
    """The progress of a job, as its worker reports it. `number` grows with each report of the worker, since they may overtake each
    other."""

    job_id: int
    attempt: int
    number: int
    done: int | float
    total: int | float | None
    message: str | None


Written = OutputLines | WorkerRecord | WorkerProgress


def writer_of(written: Written, recent: Iterable[Lease]) -> Lease | None:
    """Return which of the jobs that a worker has run, the last one first, has written this; None if that is unknown."""
    return next((lease for lease in recent if lease.id == written.job_id), None)


def output_event(
    number: int, pid: int, written: OutputLines | WorkerRecord, lease: Lease | None
) -> WorkerOutput | WorkerLogged:
    """Return the event for what a worker wrote; `lease` is that of the job."""
    if isinstance(written, WorkerRecord):  # its code may have made up the job
        about = (None, None, None) if lease is None else (lease.id, lease.handler, lease.attempt)
        return WorkerLogged(number, pid, *written[:-3], *about)
    return WorkerOutput(number, pid, *written, None if lease is None else lease.handler)


def where_it_hangs(doing: str) -> str:
    """Return why a worker may be late to be ready."""
    if doing:
        return f"{doing} has not ended"
    return "it has begun no hook and may wait for a lock that was held when it was forked"


@dataclass(frozen=True, slots=True)
class ExitReport:
    """The end of a worker process. If it could not be started, `pid` is 0 and `start_error` is the reason. `peak_memory` is bytes;
    `stack` is its Python stack, if that was requested; `stuck` is where it waits in the kernel, if it has not exited yet;
    `survivors` are processes below it that the supervisor may not kill, as text for people; `doing` is that of the process."""

    pid: int
    exit_code: int | None = None
    signal: str | None = None
    peak_memory: int | None = None
    oom_suspected: bool = False
    stack: str | None = None
    stderr: str | None = None
    start_error: str | None = None
    stuck: str | None = None
    survivors: tuple[str, ...] = ()
    doing: str = ""

    @property
    def how(self) -> str:
        named = self.doing and self.exit_code != 0 and self.start_error is None
        return f"{self._how} during {self.doing}" if named else self._how

    @property
    def _how(self) -> str:
        if self.start_error is not None:
            return f"could not be started: {self.start_error}"
        if self.stuck is not None:
            return f"stuck in the kernel: {self.stuck}"
        if self.signal is not None:
            return f"killed by {self.signal}"
        return "status unknown" if self.exit_code is None else f"exited with status {self.exit_code}"


class WorkerProcess(Protocol):
    """One worker process, from the order to fork it until it is reaped. `doing` is what it does besides its jobs, before the first
    or after the last one, as text for people: a hook with its plugin, for example."""

    @property
    def doing(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def async_jobs(self) -> AsyncJobs:
        """The jobs of an async worker."""

    @property
    def loop_state(self) -> LoopState:
        """The last reports of an async worker about its loop."""

    def send(self, frame: int, leases: Sequence[Lease]) -> None:
        """Write one permit byte (`frame`, 0-255) for each job, then the frame. Never wait; ignore an exit of the process."""

    def reclaim(self) -> Mapping[int, int]:
        """Take every permit that the worker has not taken; return their numbers by frame."""

    def untaken(self) -> int:
        """Return how many permits the worker has not taken yet."""

    def drain(self) -> None:
        """Read what the worker has written up to now; its listener has every reply before this returns."""

    def correct(self, right: int) -> None:
        """Of the replies that are being received, only so many were for jobs sent: count the others for none."""

    def kill(self, *, with_stack: bool = False) -> None:
        """Send SIGKILL to the whole group and tree, after a request for the Python stack if wanted; `ended` follows. Idempotent."""

    def retire(self, *, cancelled: bool = False) -> None:
        """Let the worker finish its jobs and exit, or drop the order if it was not sent yet; `ended` follows. If its job was
        `cancelled`, ask that to end."""

    def cpu_seconds(self) -> float | None:
        """Return the seconds of CPU time that the process has used; None once it has exited."""

    def memory(self) -> int | None:
        """Return the resident bytes of the process; None once it has exited."""


class AsyncJobs(Protocol):
    """The jobs of an async worker. Each is sent in a frame of its own, with a permit that is the number of the frame."""

    def send_job(self, lease: Lease) -> int:
        """Send the job; return the number of its frame."""

    def cancel(self, frame: int, *, of_job: bool = False) -> int:
        """Cancel the task of this frame, if it runs; `of_job` if its job was cancelled. Return the number of this order."""

    def untaken_frames(self, sent: Collection[int]) -> set[int]:
        """Return the frames, of those in `sent`, whose permits the worker has not taken."""

    def reclaim_frames(self, wanted: Collection[int], sent: Collection[int]) -> set[int]:
        """Take the permits of the wanted frames that the worker has not taken, and return these frames."""


class WorkerListener(Protocol):
    """The receiver of one worker's events: its slot. All replies come before `exited`, if that comes, and `ended` is the last.

    `ended` comes a second time, when the process has exited, if SIGKILL could not end it for seconds: the first report has `stuck`
    then, and the process does no more.
    """

    def ready(self) -> None: ...
    def replied(self, replies: Sequence[Reply]) -> None: ...
    def heartbeat(self) -> None: ...
    def output(self, written: Written) -> None: ...

    def warn(self, message: str) -> None:
        """Log what is wrong with the process; `message` continues a sentence that it begins."""

    def channel_broken(self, why: str) -> None:
        """Kill the worker, which has closed one of its channels, or written something to it that is not a message."""

    def not_ready(self, why: str) -> None:
        """Kill the worker, which did not become ready in time."""

    def exited(self) -> None:
        """The process has exited and is being reaped; the report follows with `ended`."""

    def ended(self, report: ExitReport) -> None: ...


class WorkerBackend(Protocol):
    """A forkserver and the workers forked from it, as the pool uses them."""

    def fork(self, number: int, listener: WorkerListener, concurrency: int = 0) -> WorkerProcess:
        """Order a new worker and return at once; `ready` or `ended` follows. Raises OSError if no channels can be opened.
        `concurrency` is that of an async worker."""


class BackendListener(Protocol):
    """The receiver of the events of the forkserver that concern no single worker."""

    def forkserver_started(self, backend: WorkerBackend, pid: int, reports: Sequence[SourceReport]) -> None: ...
    def forkserver_exited(self, pid: int, how: str) -> None:
        """The workers keep running; the backend starts another forkserver. `pid` is 0 if it could not even be started."""

    def forkserver_output(self, written: Written) -> None:
        """Receive what imports wrote or logged."""


class PoolListener(Protocol):
    """The receiver of the pool's events: the engine."""

    def jobs_ended(self, outcomes: list[Outcome]) -> None: ...
    def job_wrote(self, lease: Lease, written: Written) -> None: ...
    def jobs_reclaimed(self, leases: list[Lease]) -> None:
        """Receive jobs that were sent and not started, to be sent again. The pool may be in the middle of its workers."""

    def workers_changed(self) -> None:
        """A worker may have room for jobs, or has ended."""

    def plugins_reported(self, reports: Sequence[SourceReport]) -> None: ...


class Timer(Protocol):
    """The event loop, as far as the pool needs it."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The settings of every worker. `plugins` are relative to `base`; `variables` are added to the environment. `heartbeat` is the
    seconds between heartbeats; `heartbeats` has those of single handlers, which go before their decorators'. `import_timeout`
    is seconds for one plugin, `result_limit` is bytes, or 0 to keep no result. `owner_fd` is a descriptor that workers keep open. `descriptor_limit` is
    their soft limit; by default that of this process. Log records below `log_level` are left out. `payloads` of handlers, in JSON, are
    checked once the plugins are imported, and so are those of `schedules`, by name. `interruptions` are as in Hello, and `resources` has `nice` and `rlimits` of single
    handlers."""

    plugins: Sequence[str]
    import_timeout: float
    start: str
    heartbeat: float
    heartbeats: Mapping[str, float]
    result_limit: int
    owner: str
    owner_fd: int | None = None
    descriptor_limit: int | None = None
    log_level: str = "info"
    base: str = "."
    variables: Mapping[str, str] = field(default_factory=dict)
    payloads: Sequence[tuple[str, str]] = ()
    interruptions: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schedules: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The limits, in seconds, of the backend's waits for a process."""

    worker_ready: float = 30.0  # without imports; a worker may hang on a lock that was held at the fork, or in a hook
    forkserver_answer: float = 10.0  # a forkserver that does not answer an order is replaced
    forkserver_stop: float = 5.0
    kill: float = 5.0  # a process that waits for a disk or a network file system does not exit at once, even on SIGKILL
    closed_channel: float = 1.0  # for the exit after a channel is closed; a worker that runs on has closed it itself
    stack: float = 0.250  # for the stack that was requested before SIGKILL


USUAL_TIMEOUTS = Timeouts()
