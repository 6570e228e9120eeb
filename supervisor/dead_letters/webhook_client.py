"""Post to one server over HTTP/1.1, within a deadline that holds for the whole request. No redirect is followed."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MAX_ERROR_BODY = 500  # bytes of the answer that an error shows
MAX_BODY = 64_000  # bytes that are read so that the connection can be used again
BODY_SECONDS = 2.0  # for the body of an answer: its status counts without it
BOTH_WAYS = 2  # for socket.shutdown
NEVER = float("inf")


class Target(NamedTuple):
    host: str
    port: int
    address: str  # of the Host header
    path: str
    tls: ssl.SSLContext | None
    connect_timeout: float
    timeout: float

    @property
    def origin(self) -> str:
        """The URL without what may be secret: user, password, path and query."""
        return f"{'https' if self.tls else 'http'}://{self.address}"


class Answer(NamedTuple):
    status: int
    reason: str
    body: str
    location: str  # the server that a redirect leads to
    retry_after: float


class Connection:
    """A connection that is used by one thread, and cut off by another at the deadline of a request: a timeout of the socket alone
    would begin anew with each byte."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = Lock()
        self._http: HTTPConnection | None = None
        self._raw: socket.socket | None = None  # a second descriptor, since TLS takes over the first
        self._until = NEVER
        self._is_cut = False
        self._step = ""

    @property
    def until(self) -> float:
        """The deadline of the request under way, by the monotonic clock."""
        return self._until

    def cut_if_due(self) -> None:
        with self._lock:
            if self._until <= time.monotonic():
                self._cut()

    def cut(self) -> None:
        """Make the request under way fail soon, unless the name of the host is being resolved: then it fails after that."""
        with self._lock:
            self._cut()

    def _cut(self) -> None:
        self._is_cut, self._until = True, NEVER
        if self._raw is not None:
            with suppress(OSError):
                self._raw.shutdown(BOTH_WAYS)

    def post(self, body: bytes, headers: dict[str, str]) -> Answer:
        """Send the request and return the answer. Raises OSError and HTTPException."""
        with self._lock:
            self._is_cut, self._until = False, time.monotonic() + self._target.timeout
        try:
            answer, is_complete = self._exchange_anew(body, headers)
        except (OSError, HTTPException) as error:
            self.close()
            if self._is_cut or isinstance(error, TimeoutError):
                raise TimeoutError(self._step) from None
            raise
        finally:
            with self._lock:
                self._until = NEVER
        if self._is_cut or not is_complete:
            self.close()
        return answer

    def close(self) -> None:
        with self._lock:
            if self._http is not None:
                self._http.close()
            if self._raw is not None:
                self._raw.close()
            self._http = self._raw = None

    def _exchange_anew(self, body: bytes, headers: dict[str, str]) -> tuple[Answer, bool]:
        """Exchange on a new connection if the server has closed the one that was used before."""
        if self._http is not None:
            try:
                return self._exchange(body, headers)
            except ConnectionError:
                if self._is_cut:
                    raise
                self.close()
        return self._exchange(body, headers)

    def _exchange(self, body: bytes, headers: dict[str, str]) -> tuple[Answer, bool]:
        http = self._http or self._connect()
        self._step = f"no answer within {self._target.timeout:g}s"
        http.sock.settimeout(self._left())
        try:
            http.request("POST", self._target.path, body, {"Host": self._target.address, **headers})
        except (BrokenPipeError, ConnectionResetError):
            pass  # a server may refuse a large body before it has read it
        response = http.getresponse()
        limit = MAX_BODY if response.status < 300 else MAX_ERROR_BODY
        with self._lock:
            if self._is_cut:
                raise TimeoutError  # the headers may be cut short: their reader takes the end of the connection for their end
            self._until = min(self._until, time.monotonic() + BODY_SECONDS)
        text = _beginning(response, limit)
        answer = Answer(
            response.status, response.reason[:MAX_ERROR_BODY], text[:MAX_ERROR_BODY].decode(errors="replace"),
            _server(response.headers.get("Location", "")), _retry_after(response.headers.get("Retry-After", "")),
        )  # fmt: skip
        is_complete = response.isclosed() or response.length == 0
        response.close()
        return answer, is_complete and not response.will_close

    def _connect(self) -> HTTPConnection:
        target = self._target
        self._step = f"the name {target.host} was not resolved within {target.timeout:g}s"
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        self._step = f"no connection within {target.connect_timeout:g}s"
        sock = self._connected(found, time.monotonic() + target.connect_timeout)
        try:
            with self._lock:
                if self._is_cut:
                    raise TimeoutError
                self._raw = sock.dup()
            if target.tls is not None:
                self._step = f"no TLS handshake within {target.connect_timeout:g}s"
                sock.settimeout(min(target.connect_timeout, self._left()))
                sock = target.tls.wrap_socket(sock, server_hostname=target.host)
        except BaseException:
            sock.close()
            raise
        self._http = HTTPConnection(target.host, target.port)
        self._http.sock = sock
        return self._http

    def _connected(self, found: Sequence[Any], until: float) -> socket.socket:
        """Try one address after the other, each with its share of the time: the first may be one that never answers."""
        error: OSError = OSError(f"no address for {self._target.host}")
        for tried, (family, kind, protocol, _, address) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(max(0.01, min(until - time.monotonic(), self._left()) / (len(found) - tried)))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as failed:
                sock.close()
                error = failed
        raise error

    def _left(self) -> float:
        return max(0.01, self._until - time.monotonic()) if self._until != NEVER else 0.01


def _beginning(response: HTTPResponse, limit: int) -> bytes:
    """Return the beginning of the body, or less if it is cut short or cut off."""
    body = b""
    with suppress(OSError, HTTPException):
        while len(body) < limit and (more := response.read1(limit - len(body))):
            body += more
    return body


def _server(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
    except ValueError:
        return ""


def _retry_after(header: str) -> float:
    """Return the seconds that the server asks for, as a number or an HTTP date; 0 if it has neither."""
    try:
        if header.isascii() and header.isdecimal():
            return float(header)
        date = parsedate_to_datetime(header)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
