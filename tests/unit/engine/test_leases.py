"""The leases that a supervisor holds, by job and token."""

from __future__ import annotations

from typing import Any

from supervisor.engine.leases import Leases
from tests.unit.fakes import make_lease


def test_the_new_lease_of_a_job_is_held_when_its_old_one_is_dropped() -> None:
    nothing: Any = None
    leases = Leases(nothing, nothing, 30.0)
    old = make_lease(1)
    new = old._replace(token=2)
    leases.add([old])
    leases.add([new])
    leases.drop([old])
    assert (leases.holds(old), leases.holds(new), len(leases)) == (False, True, 1)
    assert leases.bytes == len(new.payload)
    leases.drop([new])
    assert (leases.holds(new), len(leases), leases.bytes) == (False, 0, 0)
