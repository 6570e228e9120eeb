"""The end of a forkserver, and of the time that the backend waits for it."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.workers.interface import Timeouts
from supervisor.workers.parent import backend as backend_module
from supervisor.workers.parent.backend import ForkserverBackend


class FakeForkserver:
    ready = True
    pid = 4711
    started = 0.0
    killed = False

    def stop(self) -> None: ...
    def release_in_copy(self) -> None: ...

    def kill(self) -> None:
        self.killed = True


def test_a_forkserver_that_exits_in_the_turn_in_which_its_time_is_up_is_not_killed() -> None:
    forkserver: Any = FakeForkserver()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        options: Any = SimpleNamespace(owner="me")
        listener: Any = SimpleNamespace(forkserver_exited=lambda pid, how: None)
        backend = ForkserverBackend(options, listener, loop, Timeouts(forkserver_stop=0.05))
        backend._forkserver = forkserver
        backend._orphans = SimpleNamespace(end=lambda running: False)  # type: ignore[assignment]
        reading, writing = os.pipe()

        def end() -> None:
            loop.remove_reader(reading)
            backend.forkserver_ended(forkserver, "exited with status 0", None)

        def stand_still() -> None:
            os.write(writing, b"x")
            time.sleep(0.1)  # longer than the timeout: both are found in the next turn

        loop.add_reader(reading, end)
        stopping = asyncio.ensure_future(backend.stop())
        await asyncio.sleep(0)
        loop.call_soon(stand_still)
        await stopping
        os.close(reading)
        os.close(writing)

    asyncio.run(scene())
    assert not forkserver.killed


def test_each_worker_that_is_ordered_keeps_a_descriptor_for_its_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []

    def no_channels(end: float) -> None:
        ends.append(end)
        raise OSError

    async def scene() -> None:
        options: Any = SimpleNamespace(owner="me")
        backend = ForkserverBackend(options, SimpleNamespace(), asyncio.get_running_loop())  # type: ignore[arg-type]
        monkeypatch.setattr(backend_module, "open_channels", no_channels)
        for number in range(3):
            with pytest.raises(OSError):
                backend.fork(number, SimpleNamespace())  # type: ignore[arg-type]
            backend._ordered[number] = SimpleNamespace()  # type: ignore[assignment]

    asyncio.run(scene())
    assert ends == [ends[0], ends[0] - 1, ends[0] - 2]


def test_the_loop_runs_while_orphans_that_do_not_exit_are_waited_for() -> None:
    looks: list[float] = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        options: Any = SimpleNamespace(owner="me")
        backend = ForkserverBackend(options, SimpleNamespace(), loop)  # type: ignore[arg-type]

        def end(running: object) -> bool:
            looks.append(loop.time())
            return len(looks) < 5

        backend._orphans = SimpleNamespace(end=end)  # type: ignore[assignment]
        turns: list[int] = []
        stopping = asyncio.ensure_future(backend.stop())
        while not stopping.done():
            turns.append(len(looks))
            await asyncio.sleep(0)
        assert {1, 2, 3, 4} <= {*turns}, "there are turns of the loop between two looks"

    asyncio.run(scene())
    assert len(looks) == 5
