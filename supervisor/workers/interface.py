"""The seam between the books and the operating system: what the pool sees of its children.

`children.py` implements it with real processes; tests and simulations implement it with scripted ones. All calls are made,
and all callbacks come, on the supervisor's loop thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from supervisor.jobs import Lease
from supervisor.plugins.reports import SourceReport


class Reply(NamedTuple):
    """One outcome as the worker told it; `took` is seconds. `kind` is "ok", "failed", "rejected", "retry" or "unknown".

    `error` (all but "ok") has `type`, `message`, `traceback`, and may have `after` (seconds) and `retryable`.
    """

    job_id: int
    kind: str
    took: float
    result: str | None
    error: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a child ended. `peak_memory` is bytes; `stack` is the Python stack of a hung child if it was asked for.

    One that was never born has `pid` 0 and says why in `unborn`.
    """

    pid: int
    exit_code: int | None = None
    signal: str | None = None
    peak_memory: int | None = None
    oom_suspected: bool = False
    stack: str | None = None
    stderr: str | None = None
    start_error: str | None = None

    @property
    def how(self) -> str:
        if self.start_error is not None:
            return f"could not be started: {self.start_error}"
        if self.signal is not None:
            return f"killed by {self.signal}"
        return "status unknown" if self.exit_code is None else f"exited with status {self.exit_code}"


class WorkerProcess(Protocol):
    """One worker process, from the order to fork it until it is seen dead."""

    number: int
    pid: int | None

    def send(self, frame: int, leases: Sequence[Lease]) -> None:
        """Put one permit byte (`frame`, 0-255) per job, then the frame. Never blocks; a dead child is not an error here."""

    def reclaim(self) -> Mapping[int, int]:
        """Take every permit that the worker has not taken yet; gives how many were taken back, by frame."""

    def untaken(self) -> int:
        """How many permits the worker has not taken yet."""

    def drain(self) -> None:
        """Read what the worker has written up to now; replies are delivered to the listener before this returns."""

    def kill(self, *, with_stack: bool = False) -> None:
        """SIGKILL the whole group and tree, after asking for the Python stack if wanted; `died` follows. Idempotent."""

    def retire(self) -> None:
        """Let it finish what it has and exit in good order, or drop it if it was not ordered yet; `died` follows."""

    def cpu_seconds(self) -> float | None:
        """CPU time of the process so far; None once it is gone."""

    def memory(self) -> int | None:
        """Resident bytes; None once it is gone."""


class WorkerListener(Protocol):
    """What the children tell. `exited` may come first, `died` is the last word of a child; both after all its replies."""

    def ready(self, process: WorkerProcess) -> None: ...
    def replied(self, process: WorkerProcess, replies: Sequence[Reply]) -> None: ...
    def heartbeat(self, process: WorkerProcess) -> None: ...
    def output(self, process: WorkerProcess | None, stream: str, job_id: int | None, lines: Sequence[str]) -> None:
        """What was written to "stdout" or "stderr", as lines; by the nursery's imports if `child` is None."""

    def channel_broken(self, process: WorkerProcess, why: str) -> None:
        """It wrote rubbish into its channel, or closed it; it is being killed."""

    def exited(self, process: WorkerProcess) -> None:
        """It is dead, and is being reaped: what is known of its death follows."""

    def ended(self, process: WorkerProcess, death: ExitReport) -> None: ...
    def forkserver_exited(self, pid: int, how: str) -> None:
        """Its workers live on; a new nursery is being started by the children's side."""

    def forkserver_started(self, backend: WorkerBackend, pid: int, reports: Sequence[SourceReport]) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What every worker is told at its birth; seconds and bytes. `plugins` are relative to `base`; `heartbeats` by handler
    go before what their @handler says. `variables` are added to the environment."""

    plugins: Sequence[str]
    import_timeout: float
    start: str
    heartbeat: float
    heartbeats: Mapping[str, float]
    result_limit: int
    owner: str
    owner_fd: int | None = None
    base: str = "."
    variables: Mapping[str, str] = field(default_factory=dict)


class WorkerBackend(Protocol):
    """The nursery and what it forks."""

    async def start(self) -> Sequence[SourceReport]:
        """Start the nursery; gives what it found once the plugins are imported."""

    def fork(self, number: int) -> WorkerProcess:
        """Order a new worker at once; `ready`, or `died`, follows."""

    async def stop(self) -> None:
        """End the nursery and what landed there; all children must be dead already, or are killed."""
