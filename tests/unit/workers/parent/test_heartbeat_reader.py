"""A heartbeat pipe brings dots, and few at a time; whatever else comes was written by a job."""

from __future__ import annotations

import pytest

from supervisor.workers.parent.heartbeat_reader import MAX_BYTES, HeartbeatCheck


def test_dots_are_heartbeats() -> None:
    check = HeartbeatCheck()
    assert [check.fault(b"." * count) for count in (1, 3, MAX_BYTES, 1)] == [None] * 4


@pytest.mark.parametrize("data", [b"x", b"..x..", b". ", b"\n", b"\x00" * MAX_BYTES])
def test_anything_else_is_a_fault(data: bytes) -> None:
    assert "expected heartbeats" in (HeartbeatCheck().fault(data) or "")


def test_heartbeats_that_gathered_are_no_flood_but_as_many_twice_in_a_row_are() -> None:
    check = HeartbeatCheck()
    many = b"." * (MAX_BYTES + 1)
    assert check.fault(many) is None
    assert check.fault(b".") is None
    assert check.fault(many) is None
    assert "floods" in (check.fault(many) or "")
