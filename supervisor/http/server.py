"""Serve HTTP from the loop of the supervisor."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.config.settings import HttpSettings
from supervisor.errors import ConfigError
from supervisor.text.os_errors import reason

MAX_CONNECTIONS = 100
"""More get the status 503 and are closed: a supervisor has descriptors for workers to keep."""
MAX_HEADERS = 16_384  # bytes of the request line and all headers
REQUEST_SECONDS = 10.0
"""A connection that has not sent its first request by then is closed, and so is one that has waited for as long for the next."""
CLOSE_SECONDS = 1.0


class HttpServer:
    """Listens from its construction on, and answers from `start` on. Raises ConfigError if the address can't be used."""

    def __init__(self, settings: HttpSettings) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._socket = _bound(settings)
        self.address = settings.listen._replace(port=int(self._socket.getsockname()[1]))
        """With the port that the system has chosen if the config has port 0."""
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    def start(self, app: ASGIApp) -> asyncio.Task[None]:
        """Answer with `app` until `close`. The task ends then, or with the error of a fault of the server."""
        config = uvicorn.Config(
            app, http=_Connection, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, limit_concurrency=MAX_CONNECTIONS, h11_max_incomplete_event_size=MAX_HEADERS,
            timeout_keep_alive=int(REQUEST_SECONDS), timeout_graceful_shutdown=int(CLOSE_SECONDS),
        )  # fmt: skip
        self._server = _Server(config)
        self._serving = asyncio.get_running_loop().create_task(self._server.serve([self._socket]))
        return self._serving

    async def close(self) -> None:
        """End open connections, and listen no more."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait((self._serving,), timeout=3 * CLOSE_SECONDS)
            self._serving.cancel()
        self._socket.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the supervisor."""
        yield


class _Connection(H11Protocol):
    """A connection that is closed unless its first request is complete in time: uvicorn has no limit for that."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._close_without_request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def _close_without_request(self) -> None:
        if self.cycle is None:
            self.transport.close()


def _bound(settings: HttpSettings) -> socket.socket:
    host, port = settings.listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        why = f"http.listen: can't listen on {settings.listen}: {reason(error)}"
        raise ConfigError([f"{why}; expected an address of this machine with a free port"]) from None
    listener.setblocking(False)
    return listener
