"""A cancelled job may end within its grace; only then is its worker killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from supervisor.jobs import Lease, Policy
from supervisor.workers.blame import LEASE_LOST
from supervisor.workers.cancel import cancel, kill_if_running
from supervisor.workers.interface import State

LEASE = Lease(7, 1, "h", "default", "null", None, 0, 0, 0, 0, 0, Policy())


class Here:
    """A pool with one slot that runs a job, its process and its timer, which note their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.current: Lease | None = LEASE
        self.state = State.READY
        self.pool = self.process = self
        self.due: Callable[[], None] = lambda: None

    def replace_used_up(self, _slot: Any) -> None:
        self.calls.append("replace")
        self.state = State.RETIRING

    def retire(self, *, cancelled: bool) -> None:
        self.calls.append(("retire", cancelled))

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.calls.append(("later", delay))
        self.due = lambda: callback(*arguments)

    def kill(self, _slot: Any, reason: Any) -> None:
        self.calls.append(reason)

    def cancel(self, grace: float | None) -> None:
        cancel(cast(Any, self), cast(Any, self), grace, cast(Any, self))


def test_without_a_grace_the_worker_is_killed_at_once() -> None:
    here = Here()
    here.cancel(None)
    assert here.calls == [LEASE_LOST]


def test_with_a_grace_the_job_is_asked_and_its_worker_gets_no_other_one() -> None:
    here = Here()
    here.cancel(2.0)
    assert here.calls == ["replace", ("retire", True), ("later", 2.0)]
    here.due()
    assert here.calls[-1] is LEASE_LOST


@pytest.mark.parametrize("end", ["the job has ended", "the worker is being killed already"])
def test_nothing_is_killed_after_the_grace_if_the_job_does_not_run_any_more(end: str) -> None:
    here = Here()
    here.cancel(2.0)
    if "job" in end:
        here.current = None
    else:
        here.state = State.ENDING
    here.due()
    assert LEASE_LOST not in here.calls


def test_a_job_that_another_supervisor_has_is_killed_at_once_though_it_was_asked() -> None:
    here = Here()
    here.cancel(2.0)
    kill_if_running(cast(Any, here), cast(Any, here), LEASE)
    assert here.calls[-1] is LEASE_LOST
