"""The end of a nursery and of the patience with it."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.workers.parent import backend as module
from supervisor.workers.parent.backend import ForkserverBackend


class Link:
    ready = True
    pid = 4711
    started = 0.0
    killed = False

    def stop(self) -> None: ...
    def release_in_copy(self) -> None: ...

    def kill(self) -> None:
        self.killed = True


def test_a_nursery_that_ends_in_the_turn_in_which_the_patience_does_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT", 0.05)
    link: Any = Link()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        options: Any = SimpleNamespace(owner="me")
        listener: Any = SimpleNamespace(forkserver_exited=lambda pid, how: None)
        backend = ForkserverBackend(options, listener, loop)
        backend._forkserver = link
        backend._orphans = SimpleNamespace(finish=lambda: None)  # type: ignore[assignment]
        reading, writing = os.pipe()

        def end() -> None:
            loop.remove_reader(reading)
            backend.forkserver_ended(link, "exited with status 0", None)

        def stand_still() -> None:
            os.write(writing, b"x")
            time.sleep(0.1)  # past the patience: both are found in the next turn

        loop.add_reader(reading, end)
        stopping = asyncio.ensure_future(backend.stop())
        await asyncio.sleep(0)
        loop.call_soon(stand_still)
        await stopping
        os.close(reading)
        os.close(writing)

    asyncio.run(scene())
    assert not link.killed
