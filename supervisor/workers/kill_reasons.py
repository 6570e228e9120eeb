"""The reasons to kill a worker, each with the failure of the job that it runs."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.jobs import Cause


class KillReason(NamedTuple):
    """`cause`, `type` and `message` are those of the running job's failure; with no cause the job is released."""

    name: str
    cause: Cause | None = None
    type: str = ""
    message: str = ""


def timed_out(timeout: float) -> KillReason:
    return KillReason("timeout", Cause.TIMEOUT, "Timeout", f"still running after its timeout of {timeout:g}s; killed")


def heartbeat_lost(age: float) -> KillReason:
    message = f"no heartbeat for {age:.1f}s and no CPU time used; killed"
    return KillReason("heartbeat_lost", Cause.HEARTBEAT_LOST, "HeartbeatLost", message)


def broken_channel(why: str) -> KillReason:
    return KillReason("crash", Cause.CRASH, "WorkerCrashed", f"its worker broke a channel: {why}; killed")


SHUTDOWN = KillReason("shutdown")
LINGERING = KillReason("lingering")
"""It did not exit after its last job."""
LEASE_LOST = KillReason("lease_lost")
