"""The heartbeat of a worker goes on whatever a job has left of the process."""

from __future__ import annotations

import os
from typing import Any

import pytest

from supervisor.workers.child import heartbeat
from supervisor.workers.child.heartbeat import Heartbeat


class Stop(BaseException):
    """Ends a loop that has no end."""


class StackWithoutMemory:
    def arm(self) -> None:
        raise MemoryError


def no_memory(*_: object, **__: object) -> Any:
    raise MemoryError


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def stop_after_sleeps(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    left = iter(range(times))

    def sleep(seconds: float) -> None:
        if next(left, None) is None:
            raise Stop

    monkeypatch.setattr(heartbeat, "sleep", sleep)


def test_a_worker_without_memory_for_a_number_sends_heartbeats(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    monkeypatch.setattr(heartbeat, "monotonic", no_memory)
    stop_after_sleeps(monkeypatch, 2)
    with pytest.raises(Stop):
        Heartbeat(pipe[1], 0.2, 0.2, StackWithoutMemory()).run()  # type: ignore[arg-type]
    assert os.read(pipe[0], 10) == b"..."


def test_a_worker_without_memory_to_suppress_an_error_sends_heartbeats(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    monkeypatch.setattr("contextlib.suppress", no_memory)
    stop_after_sleeps(monkeypatch, 2)
    with pytest.raises(Stop):
        Heartbeat(pipe[1], 0.0, 0.2, StackWithoutMemory()).run()  # type: ignore[arg-type]
    assert os.read(pipe[0], 10) == b"..."
