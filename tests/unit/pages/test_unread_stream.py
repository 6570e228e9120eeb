"""A client that reads nothing of a stream is closed, and one that reads slowly is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from supervisor.config.settings import HttpSettings
from supervisor.config.types import Address
from supervisor.http import server
from supervisor.http.server import HttpServer

CHUNK = b"x" * 65_536


class Stream:
    """An endless stream to one client. `is_paused` is whether the server waits for the client to read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_paused = False
        self.ended = asyncio.Event()
        for name, paused in (("pause_writing", True), ("resume_writing", False)):
            monkeypatch.setattr(server._Connection, name, self._noted(getattr(server._Connection, name), paused))

    def _noted(self, call: Callable[[Any], None], paused: bool) -> Callable[[Any], None]:
        def noted(connection: Any) -> None:
            self.is_paused = paused
            call(connection)

        return noted

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            await asyncio.sleep(0)
        self.ended.set()

    @asynccontextmanager
    async def requested(self) -> AsyncIterator[asyncio.StreamReader]:
        serving = HttpServer(HttpSettings(listen=Address("127.0.0.1", 0), token=None))
        serving.start(self)
        reader, writer = await asyncio.open_connection(*serving.address, limit=2**20)
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            yield reader
        finally:
            writer.transport.abort()
            await serving.close()

    async def until_paused(self) -> None:
        while not self.is_paused and not self.ended.is_set():
            await asyncio.sleep(0)


class Ahead:
    """The clock of the loop, which is ahead of the real one by some seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + self.seconds)


def test_a_stream_that_is_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ahead, stream = Ahead(monkeypatch), Stream(monkeypatch)
        async with stream.requested():
            while not stream.ended.is_set():
                await stream.until_paused()
                ahead.seconds += server.REQUEST_SECONDS
                while stream.is_paused and not stream.ended.is_set():
                    await asyncio.sleep(0)

    asyncio.run(main())


def test_a_stream_that_is_read_slowly_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads nothing for half of the time limit, again and again."""

    async def main() -> None:
        ahead, stream = Ahead(monkeypatch), Stream(monkeypatch)
        async with stream.requested() as reader:
            for _ in range(20):
                await stream.until_paused()
                ahead.seconds += server.REQUEST_SECONDS / 2
                while stream.is_paused and not stream.ended.is_set():
                    await reader.read(2**20)
            assert not stream.ended.is_set()

    asyncio.run(main())
