"""Serve HTTP from the loop of the supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.config.settings import HttpSettings
from supervisor.errors import ConfigError
from supervisor.http.access import MAX_HEADERS
from supervisor.http.rates import group
from supervisor.text.os_errors import reason
from supervisor.text.rate_limit import RateLimit, times

MAX_CONNECTIONS = 100
"""More get the status 503 and are closed: a supervisor has descriptors for workers to keep."""
MAX_UNANSWERED = 150
"""More connections are closed at once."""
MAX_OF_ONE_ADDRESS = 50
"""So that no other machine can use up all connections. This machine may, since a proxy on it stands for many."""
REQUEST_SECONDS = 10.0
"""A connection that has not sent a complete request by then, or has taken nothing of an answer for as long, is closed."""
CLOSE_SECONDS = 1.0

_logger = logging.getLogger("supervisor")


class HttpServer:
    """Listens from its construction on, and answers from `start` on. Raises ConfigError if the address can't be used."""

    def __init__(self, settings: HttpSettings) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        logging.getLogger("uvicorn.error").addFilter(_FEW_WARNINGS)
        self._socket = _bound(settings)
        self.address = settings.listen._replace(port=int(self._socket.getsockname()[1]))
        """With the port that the system has chosen if the config has port 0."""
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    def start(self, app: ASGIApp) -> asyncio.Task[None]:
        """Answer with `app` until `close`. The task ends then, or with the error of a fault of the server."""
        config = uvicorn.Config(
            app, http=_Connection, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, limit_concurrency=MAX_CONNECTIONS, backlog=MAX_CONNECTIONS, h11_max_incomplete_event_size=MAX_HEADERS,
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


class _FewWarnings(logging.Filter):
    """Lets each warning of uvicorn, which clients cause, through once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = RateLimit(time.monotonic)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING or self._limit.allow(record.msg) is not None


_FEW_WARNINGS = _FewWarnings()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the supervisor."""
        yield


class _Listener(socket.socket):
    """A listening socket that closes a connection which it can't accept, since no descriptor is left or a firewall forbids it: asyncio
    would report the error as a fault, which ends the supervisor. For that it keeps a descriptor."""

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._reserved = _descriptor()
        self._reports = RateLimit(time.monotonic)

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            raise
        except OSError as error:
            if (held := self._reports.allow("")) is not None:
                _logger.warning("HTTP: can't accept a connection: %s%s", reason(error), times(held))
            self._refuse()
            raise BlockingIOError from None

    def _refuse(self) -> None:
        """Close the next connection: otherwise the loop would be woken by it again and again."""
        _close(self._reserved)
        with suppress(OSError):
            super().accept()[0].close()
        self._reserved = _descriptor()

    def close(self) -> None:
        super().close()
        _close(self._reserved)
        self._reserved = None


def _descriptor() -> int | None:
    with suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


class _Connection(H11Protocol):
    """A connection that is closed unless each request is complete in time and its answer is read: uvicorn limits only
    the silence between two requests."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.group = group(self.client[0]) if self.client else ""
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._expect_request()
        if self._is_too_many():
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._reading is not None:
            self._reading.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or close the connection if h11 allows no such answer: another one has begun, or it would be to HEAD."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the application answers comes too late
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading(self.transport.get_write_buffer_size() + 1)

    def resume_writing(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        super().resume_writing()

    def _expect_reading(self, unread: int) -> None:
        """Close a connection whose client takes nothing of an answer that is not complete, such as a stream."""
        if (left := self.transport.get_write_buffer_size()) < unread:
            self._reading = self.loop.call_later(REQUEST_SECONDS, self._expect_reading, left)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self, unread: int = 0) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._close_unless_used, unread)

    def _close_unless_used(self, unread: int) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            return  # a request is answered; this begins again then
        left = self.transport.get_write_buffer_size()
        if left and (not unread or left < unread):  # it reads the answer, slowly
            self._expect_request(left)
        else:
            self.transport.abort()

    def _is_too_many(self) -> bool:
        if len(self.connections) > MAX_UNANSWERED:
            return True
        if not self.group or (self.client and ip_address(self.client[0].partition("%")[0]).is_loopback):
            return False
        return [getattr(each, "group", "") for each in self.connections].count(self.group) > MAX_OF_ONE_ADDRESS


def _bound(settings: HttpSettings) -> socket.socket:
    host, port = settings.listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = _Listener(family)
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
