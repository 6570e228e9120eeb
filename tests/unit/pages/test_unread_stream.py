"""A client that reads nothing of a stream is closed, and one that reads slowly is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from supervisor.config.settings import HttpSettings
from supervisor.config.types import Address
from supervisor.http import server
from supervisor.http.server import HttpServer

CHUNK = b"x" * 65_536


@pytest.mark.parametrize("reads", [False, True])
def test_a_stream_that_is_not_read_ends(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    limit = 1.5 if reads else 0.2
    monkeypatch.setattr(server, "REQUEST_SECONDS", limit)
    ended = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            await asyncio.sleep(0)
        ended.set()

    async def main() -> None:
        serving = HttpServer(HttpSettings(listen=Address("127.0.0.1", 0), token=None))
        serving.start(stream)
        reader, writer = await asyncio.open_connection(*serving.address, limit=2**20)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if reads:
            for _ in range(20):
                await reader.read(2**20)
                await asyncio.sleep(limit / 10)
            assert not ended.is_set()
        else:
            async with asyncio.timeout(10):
                await ended.wait()
        writer.transport.abort()
        await serving.close()

    asyncio.run(main())
