import json
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from supervisor import Job, Reject, Retry
from supervisor.plugins.importer import forget, import_file

PLUGIN = Path(__file__).parents[3] / "plugins" / "http.py"


class Server:
    """Answers every request by `answers`, and keeps the requests in `asked`. `after_body` is called before the connection closes."""

    def __init__(self) -> None:
        self.after_body: Callable[[], object] = lambda: None
        self.answers: Callable[[str], tuple[int, dict[str, str], bytes]] = lambda path: (200, {}, b"fine")
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Answering(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked.append((self.command, self.path, dict(self.headers), body))
                status, headers, text = outer.answers(self.path)
                if status == 0:
                    return
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)
                self.wfile.flush()
                outer.after_body()

            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def always(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.answers = lambda path: (status, headers or {}, body)

    def stop(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(running: Server) -> Server:
    running.asked.clear()
    running.after_body = lambda: None
    running.always(200, body=b"fine")
    return running


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield import_file(PLUGIN)
    forget(PLUGIN.parent)


@pytest.fixture
def request_(plugin: ModuleType) -> Callable[..., Any]:
    return lambda **payload: plugin.request(Job(1, "http", payload))


def test_a_get_returns_status_headers_and_body(request_: Any, server: Server) -> None:
    server.always(201, {"X-Answer": "42"}, "grün".encode())
    answer = request_(url=f"{server.url}/a?b=c", headers={"X-Mine": "yes"})
    assert (answer["status"], answer["headers"]["X-Answer"], answer["body"]) == (201, "42", "grün")
    ((method, path, headers, _),) = server.asked
    assert (method, path, headers["X-Mine"]) == ("GET", "/a?b=c", "yes")


def test_json_and_text_are_posted(request_: Any, server: Server) -> None:
    request_(url=server.url, json={"id": 7})
    request_(url=server.url, body="grün", headers={"Content-Type": "text/plain"})
    request_(url=server.url, json=None, method="put")
    asked = [(method, headers["Content-Type"], body) for method, _, headers, body in server.asked]
    assert asked == [
        ("POST", "application/json", json.dumps({"id": 7}).encode()),
        ("POST", "text/plain", "grün".encode()),
        ("PUT", "application/json", b"null"),
    ]


def test_a_long_answer_is_cut_and_any_bytes_become_text(request_: Any, server: Server, plugin: ModuleType) -> None:
    server.always(200, body=b"\xff" * 200_000)
    assert request_(url=server.url)["body"] == "\ufffd" * plugin.MAX_BODY


def test_headers_past_a_limit_are_left_out(request_: Any, server: Server, plugin: ModuleType) -> None:
    many = {f"X-{n}": "x" * 30_000 for n in range(80)}
    server.always(200, {"X-First": "1", **many}, b"done")
    answer = request_(url=server.url)
    assert (answer["body"], answer["headers"]["X-First"], len(answer["headers"]["X-0"])) == ("done", "1", 30_000)
    assert "X-79" not in answer["headers"]
    assert sum(len(name) + len(value) for name, value in answer["headers"].items()) <= plugin.MAX_HEADERS


BROKEN_BODIES = {
    "cut": ({"Content-Length": "1000"}, b"half"),
    "cut chunk": ({"Transfer-Encoding": "chunked"}, b"a\r\nhalf"),
    "no chunk": ({"Transfer-Encoding": "chunked"}, b"no size\r\n"),
}


@pytest.mark.parametrize(("headers", "body"), BROKEN_BODIES.values(), ids=BROKEN_BODIES)
def test_a_refusal_counts_though_its_body_is_cut(
    request_: Any, server: Server, headers: dict[str, str], body: bytes
) -> None:
    server.always(404, headers, body)
    with pytest.raises(Reject, match=r"^GET .*: 404 .*: "):
        request_(url=server.url)
    server.always(503, {**headers, "Retry-After": "7"}, body)
    with pytest.raises(Retry, match=r"^GET .*: 503 .*: ") as raised:
        request_(url=server.url)
    assert raised.value.after == 7.0


@pytest.mark.parametrize("drips", [False, True])
def test_a_refusal_counts_though_its_body_hangs(
    request_: Any, server: Server, plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    monkeypatch.setattr(plugin, "ERROR_BODY_SECONDS", 0.1)
    ended = threading.Event()

    def hang() -> None:
        ended.wait(60)

    server.after_body = hang
    server.always(404, {"Content-Length": "1000"}, b"half" if drips else b"")
    with pytest.raises(Reject, match=f"404 .*: {'half' if drips else ''}$"):
        request_(url=server.url)
    server.always(429, {"Content-Length": "1000", "Retry-After": "7"}, b"half")
    with pytest.raises(Retry, match="429") as raised:
        request_(url=server.url)
    assert raised.value.after == 7.0
    ended.set()


def test_the_body_of_a_redirect_is_not_waited_for(request_: Any, server: Server) -> None:
    ended = threading.Event()
    server.answers = lambda path: (
        (302, {"Location": "/there", "Content-Length": "9"}, b"") if path == "/" else (200, {}, b"at")
    )
    server.after_body = lambda: len(server.asked) > 1 or ended.wait(60)
    assert request_(url=f"{server.url}/")["body"] == "at"
    ended.set()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_temporary_refusal_is_tried_again(request_: Any, server: Server, status: int) -> None:
    server.always(status, body=b"busy")
    with pytest.raises(Retry, match=rf"^GET {server.url}: {status} .*: busy$") as raised:
        request_(url=f"{server.url}?token=secret")
    assert raised.value.after is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
def test_any_other_refusal_is_final(request_: Any, server: Server, status: int) -> None:
    server.always(status, {"Retry-After": "5"}, b"no such thing")
    with pytest.raises(Reject, match=f"{status} .*: no such thing$"):
        request_(url=server.url)


@pytest.mark.parametrize(
    ("header", "after"),
    [("7", 7.0), ("0", 1.0), ("99999999", 3600.0), ("-5", None), ("soon", None), ("", None), ("nan", None)],
)
def test_retry_after_in_seconds_is_honoured_within_reason(
    request_: Any, server: Server, header: str, after: float | None
) -> None:
    server.always(503, {"Retry-After": header})
    with pytest.raises(Retry) as raised:
        request_(url=server.url)
    assert raised.value.after == after


@pytest.mark.parametrize(("ahead", "after"), [(120, 120.0), (-60, 1.0), (10**7, 3600.0)])
def test_retry_after_as_a_date_is_honoured_within_reason(
    request_: Any, server: Server, plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, ahead: int, after: float
) -> None:
    now = float(int(time.time()))
    server.always(429, {"Retry-After": formatdate(now + ahead, usegmt=True)})
    monkeypatch.setattr(plugin.time, "time", lambda: now)
    with pytest.raises(Retry) as raised:
        request_(url=server.url)
    assert raised.value.after == after


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("zone", ["", " GMT", " -0000"])
def test_retry_after_as_a_date_without_a_zone_is_in_utc(
    request_: Any, server: Server, plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    now = float(int(time.time()))
    server.always(429, {"Retry-After": formatdate(now + 120).removesuffix(" -0000") + zone})
    monkeypatch.setattr(plugin.time, "time", lambda: now)
    with pytest.raises(Retry) as raised:
        request_(url=server.url)
    assert raised.value.after == 120.0


def test_an_unreachable_server_is_tried_again(request_: Any) -> None:
    gone = Server()
    gone.stop()
    with pytest.raises(Retry, match="refused"):
        request_(url=gone.url)


def test_a_server_that_closes_the_connection_is_tried_again(request_: Any, server: Server) -> None:
    server.answers = lambda path: (0, {}, b"")
    with pytest.raises(Retry, match="RemoteDisconnected"):
        request_(url=server.url)


def test_an_answer_that_is_cut_short_is_tried_again(request_: Any, server: Server) -> None:
    server.always(200, {"Content-Length": "100"}, b"half")
    with pytest.raises(Retry, match="96 bytes early"):
        request_(url=server.url)


def test_a_silent_server_is_tried_again_after_the_timeout(request_: Any, server: Server) -> None:
    asked = threading.Event()

    def wait(path: str) -> tuple[int, dict[str, str], bytes]:
        asked.wait(60)
        return 0, {}, b""

    server.answers = wait
    with pytest.raises(Retry, match="timed out"):
        request_(url=server.url, timeout=0.05)
    asked.set()


def test_redirects_are_followed_up_to_a_limit(request_: Any, server: Server) -> None:
    server.answers = lambda path: (302, {"Location": "/there"}, b"") if path == "/here" else (200, {}, b"arrived")
    assert request_(url=f"{server.url}/here")["body"] == "arrived"
    server.answers = lambda path: (302, {"Location": f"/{int(path[1:]) + 1}"}, b"")
    server.asked.clear()
    with pytest.raises(Reject, match="302"):
        request_(url=f"{server.url}/0")
    assert len(server.asked) == 6


@pytest.mark.parametrize("elsewhere", ["ftp://127.0.0.1/x", "file:///etc/hostname"])
def test_a_redirect_leads_to_http_only(request_: Any, server: Server, elsewhere: str) -> None:
    server.always(302, {"Location": elsewhere})
    with pytest.raises(Reject, match="302"):
        request_(url=server.url)


def test_secrets_are_not_sent_to_where_a_redirect_leads(request_: Any, server: Server) -> None:
    other = server.url.replace("127.0.0.1", "localhost")
    server.answers = lambda path: (
        (302, {"Location": {"/elsewhere": f"{other}/end", "/home": "/end"}[path]}, b"")
        if path != "/end"
        else (200, {}, b"")
    )
    secret = {
        "Authorization": "Bearer x",
        "Cookie": "y",
        "X-api-key": "z",
        "Proxy-authorization": "w",
        "Private-token": "v",
    }
    plain = {"Accept": "text/plain", "User-agent": "me", "Accept-language": "de"}
    for start, kept in (("/elsewhere", plain), ("/home", plain | secret)):
        server.asked.clear()
        request_(url=server.url + start, headers=secret | plain)
        sent = {name.capitalize(): value for name, value in server.asked[1][2].items()}
        assert {name: value for name, value in sent.items() if name in plain | secret} == kept


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({}, "url: expected http"),
        ({"url": "ftp://example.org"}, "url: expected http"),
        ({"url": "file:///etc/passwd"}, "url: expected http"),
        ({"url": ["http://x"]}, "url: expected http"),
        ({"url": "http://me:secret@example.org/"}, "no user or password"),
        ({"url": "http://"}, "url: expected http"),
        ({"url": "http://exa mple.org/"}, "control characters"),
        ({"url": "http://[::1"}, "url: expected http"),
        ({"url": "http://x:port/"}, "url: expected http"),
        ({"url": "http://x", "method": "GET /"}, "method: expected a method"),
        ({"url": "http://x", "headers": {"A": 1}}, "headers: expected texts"),
        ({"url": "http://x", "headers": []}, "headers: expected texts"),
        ({"url": "http://127.0.0.1:1", "headers": {"A": "b\r\nC: d"}}, "Invalid header value"),
        ({"url": "http://x", "timeout": 0}, "timeout: expected seconds"),
        ({"url": "http://x", "timeout": True}, "timeout: expected seconds"),
        ({"url": "http://x", "body": {"a": 1}}, "body: expected text"),
        ({"url": "http://x", "body": "a", "json": 1}, "body: expected either"),
    ],
)
def test_a_payload_that_can_not_be_sent_is_rejected(request_: Any, payload: dict[str, Any], expected: str) -> None:
    with pytest.raises(Reject, match=expected) as raised:
        request_(**payload)
    assert "secret" not in str(raised.value)


def test_a_payload_that_is_no_mapping_is_rejected(plugin: ModuleType) -> None:
    with pytest.raises(Reject, match="url: expected"):
        plugin.request(Job(1, "http", ["http://x"]))
