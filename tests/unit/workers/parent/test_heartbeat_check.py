"""A heartbeat pipe brings dots, and few at a time; anything else is a job that writes into it."""

from __future__ import annotations

import pytest

from supervisor.workers.parent.heartbeat_check import MOST, HeartbeatCheck


def test_dots_are_heartbeats() -> None:
    beats = HeartbeatCheck()
    assert [beats.fault(b"." * count) for count in (1, 3, MOST, 1)] == [None] * 4


@pytest.mark.parametrize("data", [b"x", b"..x..", b". ", b"\n", b"\x00" * MOST])
def test_anything_else_is_rubbish(data: bytes) -> None:
    assert "expected heartbeats" in (HeartbeatCheck().fault(data) or "")


def test_what_gathered_while_nobody_read_is_no_flood_but_twice_as_much_at_once_is() -> None:
    beats = HeartbeatCheck()
    crowd = b"." * (MOST + 1)
    assert beats.fault(crowd) is None
    assert beats.fault(b".") is None
    assert beats.fault(crowd) is None
    assert "floods" in (beats.fault(crowd) or "")
