"""How many connections one address may have."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from supervisor.config.settings import HttpSettings
from supervisor.config.types import Address
from supervisor.http.server import MAX_OF_ONE_ADDRESS, MAX_UNANSWERED, HttpServer, _Connection


class Transport:
    def __init__(self, peer: str) -> None:
        self.peer, self.aborted = peer, False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (self.peer, 50_000), "sockname": ("10.0.0.1", 80)}.get(name, default)

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(
    ("peer", "most"),
    [("10.0.0.7", MAX_OF_ONE_ADDRESS), ("fe80::1%eth0", MAX_OF_ONE_ADDRESS), ("127.0.0.1", MAX_UNANSWERED), ("::1", MAX_UNANSWERED)],
)  # fmt: skip
def test_another_machine_can_not_use_up_the_connections(peer: str, most: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    async def main() -> None:
        state = ServerState()

        def connect(address: str) -> bool:
            connection, transport = (
                _Connection(uvicorn.Config(app, http=_Connection, ws="none"), state, {}),
                Transport(address),
            )
            connection.connection_made(transport)
            if transport.aborted:
                connection.connection_lost(OSError())
            return not transport.aborted

        assert [connect(peer) for _ in range(most + 2)] == [True] * most + [False] * 2
        assert connect("10.0.0.8") is (most == MAX_OF_ONE_ADDRESS)

    asyncio.run(main())


def test_an_address_of_ipv6_is_one_with_its_neighbours() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    async def main() -> None:
        state, refused = ServerState(), []
        for host in range(MAX_OF_ONE_ADDRESS + 1):
            transport = Transport(f"2001:db8:1:2::{host:x}")
            _Connection(uvicorn.Config(app, http=_Connection, ws="none"), state, {}).connection_made(transport)
            refused.append(transport.aborted)
        assert refused == [False] * MAX_OF_ONE_ADDRESS + [True]

    asyncio.run(main())


def test_a_connection_for_which_no_descriptor_is_left_is_closed_and_is_no_error() -> None:
    server = HttpServer(HttpSettings(listen=Address("127.0.0.1", 0)))
    clients = [socket.create_connection(server.address, timeout=10.0) for _ in range(2)]
    limits, opened = resource.getrlimit(resource.RLIMIT_NOFILE), []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (clients[-1].fileno() + 5, limits[1]))
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(BlockingIOError):
            server._socket.accept()
        assert clients[0].recv(1) == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in opened:
            os.close(descriptor)
    accepted, peer = server._socket.accept()
    assert peer == clients[1].getsockname()
    for each in (accepted, *clients, server._socket):
        each.close()
