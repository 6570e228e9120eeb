"""The heart of a worker beats whatever a job has left of the process."""

from __future__ import annotations

import os
from typing import Any

import pytest

from supervisor.workers.child import main as worker
from supervisor.workers.child.main import Heartbeat


class Stop(BaseException):
    """Ends a loop that has no end."""


class NoStack:
    def arm(self) -> None:
        raise MemoryError

    dump_after: Any = None


def no_memory(*_: object, **__: object) -> Any:
    raise MemoryError


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def sleeps(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    left = iter(range(times))

    def sleep(seconds: float) -> None:
        if next(left, None) is None:
            raise Stop

    monkeypatch.setattr(worker, "sleep", sleep)


def test_it_beats_without_room_for_a_number(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    monkeypatch.setattr(worker, "monotonic", no_memory)
    sleeps(monkeypatch, 2)
    with pytest.raises(Stop):
        Heartbeat(pipe[1], 0.2, 0.2, NoStack()).run()  # type: ignore[arg-type]
    assert os.read(pipe[0], 10) == b"..."


def test_it_beats_without_room_for_what_would_suppress_an_error(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    monkeypatch.setattr("contextlib.suppress", no_memory)
    sleeps(monkeypatch, 2)
    with pytest.raises(Stop):
        Heartbeat(pipe[1], 0.0, 0.2, NoStack()).run()  # type: ignore[arg-type]
    assert os.read(pipe[0], 10) == b"..."
