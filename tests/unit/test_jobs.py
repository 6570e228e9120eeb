"""The indexes by which hot paths read leases and outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor import jobs


@pytest.mark.parametrize(("prefix", "kind", "number"), [("LEASE_", jobs.Lease, 12), ("OUTCOME_", jobs.Outcome, 6)])
def test_each_index_is_that_of_the_field_it_names(prefix: str, kind: Any, number: int) -> None:
    indexes = {name.removeprefix(prefix): index for name, index in vars(jobs).items() if name.startswith(prefix)}
    assert len(indexes) == number
    assert {name: kind._fields[index].upper() for name, index in indexes.items()} == {name: name for name in indexes}
