"""The ways for a worker to be killed: one small value each, its message built here."""

from __future__ import annotations

from supervisor.jobs import Cause


class KillReason:
    """Why a worker is being killed: a cause to blame its running job with, or none if the job goes free."""

    __slots__ = ("cause", "message", "name")

    def __init__(self, name: str, cause: Cause | None, message: str) -> None:
        self.name = name
        self.cause = cause
        self.message = message


def timed_out(timeout: float) -> KillReason:
    return KillReason("timeout", Cause.TIMEOUT, f"still running after its timeout of {timeout:g}s; killed")


def heartbeat_lost(age: float) -> KillReason:
    return KillReason(
        "heartbeat_lost", Cause.HEARTBEAT_LOST, f"no heartbeat for {age:.1f}s and no CPU time used; killed"
    )


def broken_channel(why: str) -> KillReason:
    return KillReason("crash", Cause.CRASH, f"broke its channel: {why}; killed")


SHUTDOWN = KillReason("shutdown", None, "the supervisor is stopping")
LINGERING = KillReason("lingering", None, "it did not end after its last job")
LEASE_LOST = KillReason("lease_lost", None, "the lease passed to another owner")
