"""A small HTTP server whose answers are scripted, byte by byte if need be."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Request(NamedTuple):
    line: str
    headers: dict[str, str]  # with names in lower case
    body: bytes


class Conversation:
    """One connection of a client. `answer` of the server is called with it and each request."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self.server, self.connection = server, connection

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def hang(self) -> None:
        """Answer nothing until the client closes the connection or the test is over."""
        self.connection.settimeout(0.02)
        while not self.server.ended.is_set():
            try:
                if not self.connection.recv(65_536):
                    return
            except TimeoutError:
                continue

    def drip(self, data: bytes) -> None:
        """Send a byte every hundredth of a second, so that no timeout between two bytes ever applies."""
        for at in range(len(data)):
            self.connection.sendall(data[at : at + 1])
            if self.server.ended.wait(0.01):
                return


Script = Callable[[Conversation, Request], None]


def accepting(here: Conversation, request: Request) -> None:
    here.send(OK)


def answering(answer: bytes) -> Script:
    return lambda here, request: here.send(answer)


class Server:
    """Serves until `close`. `requests` are those received; `most_at_once` connections were open at the same time."""

    def __init__(self, script: Script = accepting, certificate: Path | None = None) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.connections = self.most_at_once = 0
        self.ended = threading.Event()
        self._open = 0
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self.ended.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self.ended.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=[connection])
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as file:
                while (line := file.readline()) and not self.ended.is_set():
                    headers = {}
                    while (header := file.readline().decode().strip()) != "":
                        name, _, value = header.partition(":")
                        headers[name.lower()] = value.strip()
                    body = file.read(int(headers.get("content-length", 0)))
                    request = Request(line.decode().strip(), headers, body)
                    self.requests.append(request)
                    self.script(Conversation(self, connection), request)
        except OSError:
            connection.close()
        finally:
            with self._lock:
                self._open -= 1


KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgRXV1YNmgVKmb8Vxk
ZI6y5/BCjIT6++30lXn3SEzaVGShRANCAAQqrkj+NzjX5b72k84UDkqUoxNEe/h2
M+PsyYf+6PdX9dZ4QI7sRJr677oHxAAlHCBZBZNR33Aj4NVvwySlm3H5
-----END PRIVATE KEY-----
"""

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBjjCCATSgAwIBAgIUX45smhMhd8O8ygXw1n7xEO9BqXYwCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIcmVjZWl2ZXIwIBcNMjYxMTMwMTAzNDU4WhgPMjEyNjExMDYx
MDM0NThaMBMxETAPBgNVBAMMCHJlY2VpdmVyMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEKq5I/jc41+W+9pPOFA5KlKMTRHv4djPj7MmH/uj3V/XWeECO7ESa+u+6
B8QAJRwgWQWTUd9wI+DVb8MkpZtx+aNkMGIwHQYDVR0OBBYEFIj0Iani2k9ub4B1
lkUBoITYGkwXMB8GA1UdIwQYMBaAFIj0Iani2k9ub4B1lkUBoITYGkwXMA8GA1Ud
EwEB/wQFMAMBAf8wDwYDVR0RBAgwBocEfwAAATAKBggqhkjOPQQDAgNIADBFAiEA
q1cG6T732zNeWuVklmR+g4MIm7TAUMlpLbc9t31RmOkCIAVmEfS2i55Vsy7JIXt8
GMiCBp+orY9Ify6P1PvVYeph
-----END CERTIFICATE-----
"""


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that no authority has signed: a file for the server, with its key, and one without."""
    server, public = folder / "server.pem", folder / "cert.pem"
    server.write_text(KEY + CERTIFICATE)
    public.write_text(CERTIFICATE)
    return server, public
