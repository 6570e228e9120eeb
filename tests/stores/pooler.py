"""A pooler in front of a PostgreSQL server, which answers some requests itself."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tests.stores.postgres_server import Server

READY_IDLE = b"Z\x00\x00\x00\x05I"
HEADER = 5
"""The number of bytes of the type and the length of a message."""
COMMITTED = b"COMMIT\0"
SYNC, QUERY, FLUSH = b"SQH"
ENDS_REQUEST = (SYNC, QUERY, FLUSH, *b"cfpX")
"""The types of the messages after which a client waits for an answer, or goes: also CopyDone, CopyFail, Password, Terminate."""


class Answer(NamedTuple):
    """An error that a client receives, and whether it ends the session."""

    data: bytes
    is_final: bool


def fatal(state: str, message: str) -> Answer:
    """Return the error by which a server or a pooler ends a session."""
    return Answer(_error_response("FATAL", state, message), is_final=True)


def refusal(state: str, message: str) -> Answer:
    """Return the error by which a server refuses a request; the session goes on, outside a transaction."""
    return Answer(_error_response("ERROR", state, message), is_final=False)


def _error_response(severity: str, state: str, message: str) -> bytes:
    fields = f"S{severity}\0V{severity}\0C{state}\0M{message}\0\0".encode()
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields


Script = Callable[[bytes, socket.socket], Answer | None]


class Pooler:
    """Passes everything on, but for what `script` does: it is given a whole request of a client and the server's socket, and returns
    the answer, or None to pass the request on. `first` is the same for the first message, which has the parameters; without
    `passes_options` the options are dropped from it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._door = socket.create_server(("127.0.0.1", 0))
        self.script: Script = lambda sent, server: None
        self.first = self.script
        self.passes_options = True
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self._door.getsockname()
        return f"postgresql://postgres@{host}:{port}/postgres?sslmode=disable&gssencmode=disable"

    def close(self) -> None:
        self._door.close()

    def lose_answer_to_commit(self, answer: Answer) -> None:
        """The server commits, and is lost: its answer to one commit is replaced by this one."""

        def lose(sent: bytes, server: socket.socket) -> Answer | None:
            if b"commit\0" not in sent:
                return None
            self.script = lambda sent, server: None
            server.sendall(sent)
            received = b""
            while COMMITTED not in received:
                received += _received(server)
            return answer

        self.script = lose

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(f"{self._server.folder}/.s.PGSQL.5432")
            Session(self, client, server).run()


class Session:
    """Passes on what a client and its server send, and answers as the scripts of the pooler say."""

    def __init__(self, pooler: Pooler, client: socket.socket, server: socket.socket) -> None:
        self._pooler, self._client, self._server = pooler, client, server
        self._requests = Requests()
        self._is_first, self._is_failed = True, False

    def run(self) -> None:
        """Raises OSError once one end is closed."""
        ends = select.poll()  # `select.select` refuses descriptors from 1024 on
        for end in (self._client, self._server):
            ends.register(end, select.POLLIN)
        while True:
            readable = [fd for fd, _ in ends.poll()]
            if self._server.fileno() in readable:
                self._client.sendall(_received(self._server))
                continue
            for request in self._requests.ended_with(_received(self._client)):
                self._handle(request)

    def _handle(self, request: Request) -> None:
        if self._is_failed:
            self._end_failure(request)
            return
        pooler, is_first = self._pooler, self._is_first
        self._is_first = False
        script = pooler.first if is_first else pooler.script
        answer = None if request.is_bare_flush else script(request.data, self._server)
        if answer is None:
            self._server.sendall(
                _without_options(request.data) if is_first and not pooler.passes_options else request.data
            )
            return
        self._client.sendall(answer.data)
        if answer.is_final:
            _close_after(self._client)
        self._end_failure(request)

    def _end_failure(self, request: Request) -> None:
        """After an error a server skips all messages up to the next Sync."""
        self._is_failed = request.end not in (SYNC, QUERY)
        if not self._is_failed:
            self._client.sendall(READY_IDLE)


class Request(NamedTuple):
    """Messages that a server answers together, and the type of the last one; None for the first message of a session."""

    data: bytes
    end: int | None

    @property
    def is_bare_flush(self) -> bool:
        return self.end == FLUSH and len(self.data) == HEADER


class Requests:
    """Joins what a client sends to whole requests."""

    def __init__(self) -> None:
        self._data, self._parsed = b"", 0
        self._begun = False

    def ended_with(self, data: bytes) -> list[Request]:
        """Return the requests that are complete with this data."""
        self._data += data
        ended = []
        while (message := self._next_message()) is not None:
            kind, self._parsed = message
            if kind is None or kind in ENDS_REQUEST:
                ended.append(Request(self._data[: self._parsed], kind))
                self._data, self._parsed = self._data[self._parsed :], 0
        return ended

    def _next_message(self) -> tuple[int | None, int] | None:
        """Return the type and the end of the next message if it is complete. The first message has no type."""
        length_at = self._parsed + self._begun
        end = length_at + int.from_bytes(self._data[length_at : length_at + 4], "big")
        if len(self._data) < max(length_at + 4, end):
            return None
        kind = self._data[self._parsed] if self._begun else None
        self._begun = True
        return kind, end


def _close_after(client: socket.socket) -> None:
    """Read what the client sends until it closes; then raise OSError. A socket that is closed with unread data resets the
    connection."""
    client.shutdown(socket.SHUT_WR)
    while True:
        _received(client)


def _received(end: socket.socket) -> bytes:
    """Raises OSError once the other end is closed."""
    data = end.recv(65536)
    if not data:
        raise ConnectionResetError
    return data


def _without_options(first: bytes) -> bytes:
    version, words = first[4:8], first[8:].rstrip(b"\0").split(b"\0")
    kept = [b"\0".join(pair) for pair in zip(words[::2], words[1::2], strict=True) if pair[0] != b"options"]
    body = version + b"\0".join(kept) + b"\0\0"
    return (len(body) + 4).to_bytes(4, "big") + body
