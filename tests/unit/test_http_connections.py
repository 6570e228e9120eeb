"""How many connections one address may have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from supervisor.http.server import MAX_OF_ONE_ADDRESS, MAX_UNANSWERED, _Connection


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
