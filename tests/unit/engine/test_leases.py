"""The leases that a supervisor holds, by job and token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from supervisor.engine.leases import Leases
from tests.unit.fakes import make_lease


def test_the_new_lease_of_a_job_is_held_when_its_old_one_is_dropped() -> None:
    nothing: Any = None
    leases = Leases(nothing, nothing, 30.0, nothing)
    old = make_lease(1)
    new = old._replace(token=2)
    leases.add([old])
    leases.add([new])
    leases.drop([old])
    assert (leases.holds(old), leases.holds(new), len(leases)) == (False, True, 1)
    assert leases.bytes == len(new.payload)
    leases.drop([new])
    assert (leases.holds(new), len(leases), leases.bytes) == (False, 0, 0)


def test_a_running_job_gets_its_start_mark_once_unless_that_may_be_lost() -> None:
    nothing: Any = None
    one, two = make_lease(1), make_lease(2)
    running = [one]
    pool: Any = SimpleNamespace(running=lambda seconds: [(None, lease) for lease in running])
    leases = Leases(nothing, pool, 30.0, nothing)
    assert leases.to_mark(0.001) == [one]
    running.append(two)
    assert leases.to_mark(0.001) == [two]
    running[0] = one._replace(token=2)
    assert leases.to_mark(0.001) == [running[0]]
    leases.marks_lost()
    assert leases.to_mark(0.001) == running
