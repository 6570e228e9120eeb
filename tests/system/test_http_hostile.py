"""Hostile requests to the HTTP server of the real command, byte by byte: each is answered or closed in time, and it serves on."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.system.command import Command, Running, wait_for
from tests.system.test_http import TOKEN, Site, start

BEARER = f"Authorization: Bearer {TOKEN}\r\n"
CLOSED_AFTER = 10.0


class Served(NamedTuple):
    run: Running
    site: Site


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    command = Command(tmp_path_factory.mktemp("hostile"))
    try:
        yield Served(*start(command, http=f'{{listen: "127.0.0.1:0", token: "{TOKEN}"}}'))
    finally:
        command.close()


def sent(site: Site, request: str, until_closed: bool = False) -> bytes:
    """Send bytes, and return the answer, or all that comes back until the server closes the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", site.port), timeout=20.0) as connection, contextlib.suppress(OSError):
        connection.sendall(request.encode("latin-1"))
        while (until_closed or not is_whole(answer)) and (part := connection.recv(65536)):
            answer += part
    return answer


def is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


@pytest.mark.parametrize(
    ("request_text", "statuses"),
    [
        ("GET /livez HTTP/1.0\r\n\r\n", {200}),
        ("GET /metrics HTTP/1.0\r\n\r\n", {401}),
        ("GET /livez HTTP/1.1\r\n\r\n", {400}),
        ("GET /livez HTTP/9.9\r\nHost: x\r\n\r\n", {200, 400, 505}),
        ("GET  /livez HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 401}),
        ("GET http://127.0.0.1/metrics HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        ("GET http://127.0.0.1/livez HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        ("CONNECT evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        (f"CONNECT evil.example:443 HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"TRACE /metrics HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {405}),
        (f"FOO /api/jobs/1/retry HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {405}),
        ("GET /livez/../metrics HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        ("GET /livez%2f..%2fmetrics HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        ("GET //livez HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        ("GET /livez;/metrics HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        ("GET /login/%2e%2e/metrics HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        (f"GET /login.css/../../../../etc/passwd HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"GET /static/../../app.py HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"GET /static/..%2f..%2fapp.py HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"GET /static/%2e%2e/routes.py HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"GET /static/..%5croutes.py HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"GET /static//etc/passwd HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        ("GET /static/../metrics HTTP/1.1\r\nHost: x\r\n\r\n", {401}),
        (f"GET /events?page=//evil.example HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"GET /%00 HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"GET /%ff%fe HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n", {404}),
        (f"GET /livez HTTP/1.1\r\nHost: x\r\nX: {'a' * 100_000}\r\n\r\n", {400, 431}),
        (f"GET /{'a' * 100_000} HTTP/1.1\r\nHost: x\r\n\r\n", {400, 431}),
        ("GET /livez HTTP/1.1\r\nHost: x\r\n" + "A: b\r\n" * 5000 + "\r\n", {400, 431}),
        ("GET /livez HTTP/1.1\r\nHost: x\r\nX: a\r\n folded\r\n\r\n", {200, 400}),
        ("GET /livez HTTP/1.1\r\nHost: x\r\nX y: a\r\n\r\n", {400}),
        ("GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", {400}),
        ("GET /livez HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", {400}),
        (f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Content-Length: -1\r\n\r\n", {400}),
        (f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Content-Length: 1e3\r\n\r\n", {400}),
        (f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Content-Length: {'9' * 30}\r\n\r\n", {400, 413}),
        (f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Content-Length: {'9' * 10_000}\r\n\r\n", {400, 413}),
        (f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}", {400}),
        (f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Transfer-Encoding: gzip\r\n\r\n", {400, 501}),
        (f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Transfer-Encoding: chunked\r\n\r\nzz\r\n", {400}),
            (f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Transfer-Encoding: chunked\r\n\r\n11170\r\n{'a' * 70_000}\r\n0\r\n\r\n", {413}),
        ("POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n", {413}),
        ("GET /jobs?a=%0d%0aSet-Cookie:%20b=c HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n", {303}),
        ("GET /login?next=/%0d%0aSet-Cookie:%20b=c HTTP/1.1\r\nHost: x\r\n" + BEARER + "\r\n", {303}),
        ("GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", {200}),
    ],
)  # fmt: skip
def test_a_hostile_request_has_an_answer(served: Served, request_text: str, statuses: set[int]) -> None:
    answer = sent(served.site, request_text)
    head = answer.partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 ") and int(head.split()[1]) in statuses, answer[:500]
    assert b"\r\nset-cookie" not in head.lower() and b"root:" not in answer
    assert served.site.ask("/livez").status == 200


def test_a_second_request_hidden_in_the_body_of_the_first_is_not_answered(served: Served) -> None:
    """Where both lengths are given, a proxy may believe one of them and this server the other."""
    hidden = f"GET /metrics HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n"
    both = f"POST /livez HTTP/1.1\r\nHost: x\r\n{BEARER}Content-Length: {len(hidden) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert sent(served.site, both + hidden, until_closed=True).count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("request_line", ["POST /livez", "POST /api/drain", "POST /login", "HEAD /livez", "HEAD /jobs"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_body_that_is_no_http_ends_only_its_connection(served: Served, request_line: str, waits: bool) -> None:
    head = f"{request_line} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.site.port), timeout=20.0) as connection:
        connection.sendall((head if waits else f"{head}zz\r\n").encode())
        if waits and "login" not in request_line:
            assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"zz\r\n")
            while connection.recv(65536):
                pass
    assert served.site.ask("/livez").status == 200
    assert "supervisor stopping" not in served.run.log and "Traceback" not in served.run.log


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_error(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.site.port), timeout=20.0) as connection:
        connection.sendall(b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\ntoken=")
    wait_for(lambda: open_connections(served) == 0)
    assert served.site.ask("/livez").status == 200
    assert "Traceback" not in served.run.log


def test_who_has_no_token_fills_no_log(served: Served) -> None:
    assert sent(served.site, "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").startswith(b"HTTP/1.1 405")
    assert "/livez" not in served.run.log


class Open(NamedTuple):
    """A connection that a hostile client tries to keep."""

    name: str
    first: str
    drip: str


OPEN = [
    Open("headers without end", "GET /livez HTTP/1.1\r\n", "X: a\r\n"),
    Open("headers of a second request", "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\n", "X: a\r\n"),
    Open("a body that nobody reads", "GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n", "a"),
    Open("chunks that nobody reads", "GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\na\r\n"),
    Open("a body without end", f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Content-Length: 50000\r\n\r\n", "a"),
    Open("chunks without end", f"POST /api/dlq/redrive HTTP/1.1\r\nHost: x\r\n{BEARER}Transfer-Encoding: chunked\r\n\r\n", "1\r\na\r\n"),
    Open("a login without end", "POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", "a"),
    Open("nothing", "", ""),
]  # fmt: skip


def test_no_client_keeps_a_connection(served: Served) -> None:
    """All at once, since each takes as long as the server waits."""
    connections = {each: socket.create_connection(("127.0.0.1", served.site.port), timeout=0.2) for each in OPEN}
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.connect(("127.0.0.1", served.site.port))
    unread.sendall((f"GET /metrics HTTP/1.1\r\nHost: x\r\n{BEARER}\r\n" * 300).encode())
    for each, connection in connections.items():
        connection.sendall(each.first.encode())
    begin = time.monotonic()

    def all_closed() -> None:
        for each, connection in [*connections.items()]:
            with contextlib.suppress(TimeoutError):
                try:
                    if each.drip:
                        connection.sendall(each.drip.encode())
                    closed = not connection.recv(65536)
                except OSError as error:
                    if isinstance(error, TimeoutError):
                        raise
                    closed = True
                if closed:
                    connections.pop(each).close()
        assert not connections, [each.name for each in connections]

    wait_for(all_closed, timeout=2 * CLOSED_AFTER + 5, every=0.5)
    assert time.monotonic() - begin > CLOSED_AFTER / 2
    wait_for(lambda: open_connections(served) <= 1, timeout=2 * CLOSED_AFTER)
    unread.close()
    assert served.site.ask("/livez").status == 200


def test_many_connections_are_closed_at_once_and_leave_descriptors(served: Served) -> None:
    connections = []
    for _ in range(400):
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection(("127.0.0.1", served.site.port), timeout=10))
    try:
        wait_for(lambda: open_connections(served) <= 151, timeout=5.0)
    finally:
        for each in connections:
            each.close()
    wait_for(lambda: served.site.ask("/livez").status == 200)
    warnings = [line for line in served.run.log.splitlines() if " WARNING " in line]
    assert len([line for line in warnings if "Invalid HTTP" in line]) <= 3, warnings


def open_connections(served: Served) -> int:
    port = f":{served.site.port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    established = [fields for line in lines if (fields := line.split())[3] == "01" and fields[1].endswith(port)]
    return len(established)
