"""The outcome of the job that was running when its worker ended."""

from __future__ import annotations

import socket

from supervisor.jobs import Cause, Failure, Kind, Lease, Outcome
from supervisor.workers.interface import ExitReport
from supervisor.workers.kill_reasons import KillReason

HOST = socket.gethostname()


def outcome_at_exit(
    lease: Lease, reason: KillReason | None, report: ExitReport, *, ran: float, heartbeat_age: float
) -> Outcome:
    """A failed attempt; a release if the reason has no cause. `ran` and `heartbeat_age` are seconds."""
    if reason is None:
        how = f"its worker {'was ' if report.signal else ''}{report.how}"
        reason = KillReason("crash", Cause.CRASH, "WorkerCrashed", how)
    if reason.cause is None:
        return Outcome(lease, Kind.RELEASED, took=ran)
    failure = Failure(
        reason.cause, type=reason.type, message=reason.message, attempt=lease.attempt, exit_code=report.exit_code,
        signal=report.signal, peak_memory=report.peak_memory, oom_suspected=report.oom_suspected,
        heartbeat_age=max(0.0, heartbeat_age), stack=report.stack, stderr=report.stderr, host=HOST, pid=report.pid,
    )  # fmt: skip
    return Outcome(lease, Kind.FAILED, took=ran, failure=failure)
