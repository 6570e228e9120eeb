"""The reasons to kill a worker, and the outcome of the job that was running when its worker ended."""

from __future__ import annotations

import socket
from typing import NamedTuple

from supervisor.jobs import Cause, Failure, Kind, Lease, Outcome
from supervisor.retry import SUSPECT as SUSPECT_COUNT
from supervisor.workers.interface import ExitReport, Reply
from supervisor.workers.wire_protocol import STATUS_LOWERED

HOST = socket.gethostname()
STUCK = "was not ended by SIGKILL: it is stuck in the kernel ({}), does no more, and exits once the wait there is over"
SURVIVES = "has left {} running, which the supervisor may not kill; the worker was killed while it ran {}"


class KillReason(NamedTuple):
    """A reason to kill a worker. The other fields are those of the job's failure; without a cause the job is released."""

    name: str
    cause: Cause | None = None
    type: str = ""
    message: str = ""


def timed_out(timeout: float) -> KillReason:
    return KillReason("timeout", Cause.TIMEOUT, "Timeout", f"still running after its timeout of {timeout:g}s; killed")


def heartbeat_lost(age: float) -> KillReason:
    message = f"no heartbeat for {age:.1f}s and no CPU time used; killed"
    return KillReason("heartbeat_lost", Cause.HEARTBEAT_LOST, "HeartbeatLost", message)


def blocked_loop(reason: KillReason, seconds: float, waited: str) -> KillReason:
    """Return the reason to kill a worker whose job has blocked its loop. `reason` is that of the job which should have been cancelled: the
    job `waited`, or the same one if that is empty."""
    blocked = f"blocked the event loop of its worker for {seconds:.1f}s"
    after = f"{blocked}, past the end of the timeout of {waited}" if reason.cause is Cause.TIMEOUT else blocked
    message = after if waited else f"{reason.message.removesuffix('; killed')}, and {blocked}"
    return reason._replace(message=f"{message}; killed")


def past_memory_limit(size: int, limit: int, *, blamed: bool = True) -> KillReason:
    """Return the reason to kill a worker of so many bytes. If its job is not `blamed`, the job is released."""
    message = f"its worker had {size / 1e6:.0f}MB, workers.max_memory_hard is {limit / 1e6:g}MB; killed"
    return KillReason("memory_limit", Cause.MEMORY_LIMIT if blamed else None, "MemoryLimit", message)


def broken_channel(why: str) -> KillReason:
    return KillReason("crash", Cause.CRASH, "WorkerCrashed", f"its worker broke a channel: {why}; killed")


def not_ready(why: str) -> KillReason:
    return KillReason("not_ready", message=why)


SHUTDOWN = KillReason("shutdown")
LINGERING = KillReason("lingering")
"""The worker did not exit after its last job."""
LEASE_LOST = KillReason("lease_lost")
CANCELLED = KillReason("cancelled")
BESIDE = KillReason("beside")
"""Another job of the same async worker was to be killed."""
SUSPECT = KillReason("suspect")
"""An async worker has crashed that ran this job and others."""


def suspected(lease: Lease) -> Lease:
    """Return the lease of a job that may have crashed its worker, as one of a suspect: it runs again under it, in a smaller group."""
    return lease._replace(expired_count=lease.expired_count + SUSPECT_COUNT)


def outcome_of_cancelled(lease: Lease, reason: KillReason, reply: Reply, pid: int) -> Outcome:
    """Return the outcome of an async job that was cancelled for a reason to kill it, and has ended by that."""
    if reason.cause is None:
        return Outcome(lease, Kind.RELEASED, took=reply.took)
    message = f"{reason.message.removesuffix('; killed')}; cancelled"
    trace = str((reply.error or {}).get("traceback", ""))
    failure = Failure(
        reason.cause, type=reason.type, message=message, traceback=trace, attempt=lease.attempt, host=HOST, pid=pid
    )
    return Outcome(lease, Kind.FAILED, took=reply.took, failure=failure)


class ExitCause(NamedTuple):
    """The first two facts of the event of a worker's exit: see WorkerExited."""

    cause: str
    how: str


def exit_cause(
    report: ExitReport, reason: KillReason | None, reached: ExitCause | None, *, retiring: bool, idle: bool
) -> ExitCause:
    """Return why a worker has exited. `reached` is the limit for which it was to exit, if it was `retiring`; `idle`
    is whether it ran no job."""
    if reason is SUSPECT:
        return ExitCause(
            "crash", f"{report.how}; any of its jobs may have done this, so they run again in smaller groups"
        )
    if reason is not None:
        return ExitCause(reason.name, reason.message or report.how)
    if idle and report.exit_code == STATUS_LOWERED:
        return ExitCause("nice", "it may not raise its priority again after its job")
    if retiring and (report.exit_code == 0 or report.start_error is not None):
        return reached or ExitCause("stopped", report.how)
    return ExitCause("crash", report.how)


def outcome_at_exit(
    lease: Lease, reason: KillReason | None, report: ExitReport, *, ran: float, heartbeat_age: float
) -> Outcome:
    """Return a failed attempt, or a release if the reason has no cause. `ran` and `heartbeat_age` are seconds."""
    if reason is None:
        how = f"its worker {'was ' if report.signal else ''}{report.how}"
        if report.signal == "SIGXCPU":
            how += ": its CPU time is past rlimits.cpu"
        reason = KillReason("crash", Cause.CRASH, "WorkerCrashed", how)
    if reason.cause is None:
        return Outcome(lease, Kind.RELEASED, took=ran)
    message = reason.message if report.stuck is None else f"{reason.message}; its process is {report.how}"
    message += "".join(f"; {survivor} goes on, since the supervisor may not kill it" for survivor in report.survivors)
    failure = Failure(
        reason.cause, type=reason.type, message=message, attempt=lease.attempt, exit_code=report.exit_code,
        signal=report.signal, peak_memory=report.peak_memory, oom_suspected=report.oom_suspected,
        heartbeat_age=max(0.0, heartbeat_age), stack=report.stack, stderr=report.stderr, host=HOST, pid=report.pid,
    )  # fmt: skip
    return Outcome(lease, Kind.FAILED, took=ran, failure=failure)
