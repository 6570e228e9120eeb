"""The reports of an async worker about its loop: its jobs may write to the same pipe."""

from __future__ import annotations

import pytest

from supervisor.workers.loop_reports import TURNS, Blocked, LoopState, encode_blocks, encode_read
from supervisor.workers.parent.heartbeat_reader import HeartbeatCheck


@pytest.fixture
def state() -> LoopState:
    times = [100.0]
    return LoopState(lambda: times.append(times[-1] + 100.0) or times[-2])  # type: ignore[func-returns-value]


def test_reports_may_come_in_pieces_and_between_heartbeats(state: LoopState) -> None:
    check = HeartbeatCheck(state.receive)
    line = encode_blocks(7, 2.5)
    assert [check.fault(part) for part in (b"." + line[:4], b"..", line[4:])] == [None] * 3
    assert state.blocked == Blocked(7, 197.5)
    assert check.fault(encode_blocks(None, 1.0) + b".") is None
    assert state.blocked is not None and state.blocked.job_id is None
    assert check.fault(TURNS) is None
    assert state.blocked is None


def test_an_order_to_cancel_is_read_once_the_worker_reports_it(state: LoopState) -> None:
    for number, frame in enumerate((30, 40, 50, 60), start=1):
        state.order_sent(frame, number)
    state.task_ended(30)
    assert state.receive(encode_read(3)) is None
    assert state.read_at == {40: 200.0, 50: 200.0}
    state.task_ended(40)
    assert state.receive(encode_read(1 << 60)) is None
    assert state.read_at == {50: 200.0, 60: 300.0}


def test_no_report_reaches_back_to_before_the_worker(state: LoopState) -> None:
    assert state.receive(encode_blocks(7, 1e12)) is None
    assert state.blocked == Blocked(7, 100.0)
    assert state.receive(encode_blocks(7, -1e12)) is None
    assert state.blocked is not None and state.blocked.since < 1000


@pytest.mark.parametrize(
    "data",
    [
        b"x\n",
        b"[]\n",
        b"\n",
        b'["blocks"]\n',
        b'["blocks", "7", 1]\n',
        b'["blocks", 7, 1e400]\n',
        b'["blocks", 7, null]\n',
        b'["read", null]\n',
        b"[" * 50_000 + b"\n",
        b"\xff\n",
        b"x" * 200,
    ],
)
def test_anything_else_is_a_fault(state: LoopState, data: bytes) -> None:
    assert "expected heartbeats or reports" in (HeartbeatCheck(state.receive).fault(data) or "")
    assert state.blocked is None
