"""The end of a forkserver, and of the time that the backend waits for it."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any

from supervisor.workers.interface import Timeouts
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
        backend._orphans = SimpleNamespace(end=lambda running: None)  # type: ignore[assignment]
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
