"""The positions by which hot paths read leases and outcomes."""

from __future__ import annotations

from supervisor.jobs import Lease, Outcome
from supervisor.stores import records


def test_positions_in_a_lease_are_those_of_its_fields() -> None:
    for name in ("ID", "TOKEN", "HANDLER", "QUEUE", "PAYLOAD", "HEADERS", "PRIORITY", "TIER", "POLICY"):
        assert Lease._fields[getattr(records, name)] == name.lower()


def test_positions_in_an_outcome_are_those_of_its_fields() -> None:
    for name in ("LEASE", "RESULT", "TOOK"):
        assert Outcome._fields[getattr(records, f"OUTCOME_{name}")] == name.lower()
