"""A pooler in front of a PostgreSQL server, which answers some messages itself."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.stores.postgres_server import Server

READY_IDLE = b"Z\x00\x00\x00\x05I"
"""The server's last words of a transaction."""


def error(state: str, message: str, severity: str = "FATAL") -> bytes:
    """An ErrorResponse of the protocol."""
    fields = f"S{severity}\0V{severity}\0C{state}\0M{message}\0\0".encode()
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields


class Pooler:
    """Passes everything on, but for what `script` does: it is given what a client sends and the server's socket, and returns what to
    send to the client before both are cut, or None. `first` is the same for the first message, which has the parameters; without
    `passes_options` the options are dropped from it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._door = socket.create_server(("127.0.0.1", 0))
        self.script: Callable[[bytes, socket.socket], bytes | None] = lambda sent, server: None
        self.first = self.script
        self.passes_options = True
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self._door.getsockname()
        return f"postgresql://postgres@{host}:{port}/postgres?sslmode=disable&gssencmode=disable"

    def close(self) -> None:
        self._door.close()

    def lose_answer_to_commit(self, answer: bytes) -> None:
        """The server commits, and is lost: its answer to one commit is replaced by this one."""

        def lose(sent: bytes, server: socket.socket) -> bytes | None:
            if b"commit\0" not in sent:
                return None
            self.script = lambda sent, server: None
            server.sendall(sent)
            received = b""
            while not received.endswith(READY_IDLE):
                received += server.recv(65536)
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
            is_first = True
            ends = select.poll()  # `select.select` refuses descriptors from 1024 on
            for end in (client, server):
                ends.register(end, select.POLLIN)
            while True:
                readable = [fd for fd, _ in ends.poll()]
                if server.fileno() in readable:
                    client.sendall(_received(server))
                    continue
                sent = _received(client)
                answer = (self.first if is_first else self.script)(sent, server)
                if answer is not None:
                    client.sendall(answer)
                    return
                server.sendall(_without_options(sent) if is_first and not self.passes_options else sent)
                is_first = False


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
