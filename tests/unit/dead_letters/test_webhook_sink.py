import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.dead_letters import webhook_client
from supervisor.dead_letters import webhook_sink as module
from supervisor.dead_letters.opening import BuiltInSinks
from supervisor.dead_letters.webhook_sink import WebhookSink
from supervisor.errors import NotAccepted
from tests.docs.pages import blocks
from tests.http_server import (
    OK,
    Conversation,
    Request,
    Script,
    Server,
    accepting,
    answering,
    certificate,
)

SECRET = "a secret of the receiver"
Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(script: Script = accepting, certificate: Path | None = None) -> Server:
        servers.append(Server(script, certificate))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def dead_letter(id: int, **more: Any) -> dict[str, Any]:
    return {"id": id, "handler": "thumb", "finished_at": "2030-01-02T03:04:05.678901Z", **more}


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def refused(sink: WebhookSink, *dead_letters: dict[str, Any]) -> NotAccepted:
    with pytest.raises(NotAccepted) as raised:
        sink.publish(dead_letters or [dead_letter(1)])
    return raised.value


def test_the_webhook_sink_is_registered_like_the_sink_of_a_plugin() -> None:
    assert BuiltInSinks().supervisor_sinks()["webhook"] is WebhookSink


def test_each_dead_letter_is_posted_as_json(serve: Serve) -> None:
    server = serve()
    sink = WebhookSink(f"{server.url}/jobs?team=7", headers={"X-Team": "mail"})
    assert sorted(sink.publish([dead_letter(id, payload={"a": "ü\n"}) for id in (1, 2)])) == [1, 2]
    assert [request.line for request in server.requests] == ["POST /jobs?team=7 HTTP/1.1"] * 2
    by_id = sorted((orjson.loads(request.body) for request in server.requests), key=lambda it: it["id"])
    assert by_id == [dead_letter(id, payload={"a": "ü\n"}) for id in (1, 2)]
    headers = server.requests[0].headers
    assert (headers["host"], headers["content-type"], headers["x-team"]) == (
        f"127.0.0.1:{server.port}",
        "application/json",
        "mail",
    )


@pytest.mark.parametrize("secret", [SECRET, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
def test_the_receiver_of_the_guide_knows_a_genuine_request(serve: Serve, secret: str) -> None:
    names: dict[str, Any] = {}
    (receiver,) = (block for block in blocks("python") if block.title == "receiver.py")
    exec(receiver.text, names)
    server = serve()
    WebhookSink(server.url, secret).publish([dead_letter(1)])
    (request,) = server.requests
    assert names["is_genuine"](request.headers, request.body, secret)
    for wrong in (
        (request.headers, request.body + b" ", secret),
        (request.headers, request.body, "another secret of someone"),
        ({**request.headers, "webhook-id": "dead-letter-2-"}, request.body, secret),
        ({**request.headers, "webhook-timestamp": str(int(time.time()) - 600)}, request.body, secret),
    ):
        assert not names["is_genuine"](*wrong)


def test_the_signature_is_that_of_standard_webhooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expected text was made with the library `standardwebhooks`, from the same secret, id, time and body."""
    monkeypatch.setattr(module.time, "time", lambda: 1614265330.7)
    sink = WebhookSink("https://hooks.example.org", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert sink._signature(dead_letter(7), b'{"test": 2432232314}') == {
        "webhook-id": "dead-letter-7-20300102030405678901",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,m6Yc/sabrQSM5oJ/5fLS/nOmacseV7KkDuopU7uBYR0=",
    }


def test_a_second_delivery_has_the_same_id_and_a_redriven_job_another(serve: Serve) -> None:
    server = serve()
    sink = WebhookSink(server.url)
    for finished_at in ("2030-01-02T03:04:05.678901Z", "2030-01-02T03:04:05.678901Z", "2030-01-02T04:00:00.000000Z"):
        sink.publish([dead_letter(7, finished_at=finished_at)])
    first, second, redriven = (request.headers["webhook-id"] for request in server.requests)
    assert first == second != redriven
    assert "webhook-signature" not in server.requests[0].headers


def test_user_and_password_of_the_url_are_sent_as_a_header(serve: Serve) -> None:
    server = serve()
    WebhookSink(f"http://us%C3%A9r:p%40ss@127.0.0.1:{server.port}/").publish([dead_letter(1)])
    assert server.requests[0].headers["authorization"] == "Basic dXPDqXI6cEBzcw=="


# --- answers


def test_dead_letters_that_the_server_refuses_have_its_answer_and_the_others_are_accepted(serve: Serve) -> None:
    def script(here: Conversation, request: Request) -> None:
        bad = orjson.loads(request.body)["id"] in (2, 4)
        here.send(answer("422 Unprocessable Content", b"no such\nteam" + b"!" * 9000) if bad else OK)

    server = serve(script)
    result = refused(WebhookSink(server.url, concurrency=1), *(dead_letter(id) for id in range(1, 6)))
    assert result.accepted == {1, 3, 5}
    expected = f"{server.url}: 422 Unprocessable Content: no such team{'!' * 488}"
    assert result.refused == {2: expected, 4: expected}


def test_after_some_failures_in_a_row_the_others_are_not_tried(serve: Serve) -> None:
    server = serve(answering(answer("500 Internal Server Error")))
    result = refused(WebhookSink(server.url, concurrency=1), *(dead_letter(id) for id in range(1, 101)))
    assert list(result.refused) == [1, 2, 3]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("header", "seconds"), [("120", 120), ("0", 0), ("soon", 0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0), ("²", 0)]
)
def test_a_server_that_is_overloaded_is_left_alone_for_as_long_as_it_asks(
    serve: Serve, header: str, seconds: float
) -> None:
    server = serve(answering(answer("429 Too Many Requests", b"", f"Retry-After: {header}")))
    result = refused(WebhookSink(server.url, concurrency=1), dead_letter(1), dead_letter(2))
    assert result.retry_after == seconds
    assert len(server.requests) == (1 if seconds else 2)


def test_a_date_in_retry_after_counts_too(serve: Serve) -> None:
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 300))
    server = serve(answering(answer("503 Service Unavailable", b"", f"Retry-After: {date}")))
    assert 200 < refused(WebhookSink(server.url)).retry_after <= 300


@pytest.mark.parametrize("status", ["301 Moved Permanently", "307 Temporary Redirect"])
def test_a_redirect_is_not_followed(serve: Serve, status: str) -> None:
    other = serve()
    server = serve(answering(answer(status, b"", f"Location: http://u:hidden@127.0.0.1:{other.port}/x?token=hidden")))
    text = f"{server.url}: {status} (to {other.url}): redirects are not followed; set url to the address that accepts the dead letters"
    assert refused(WebhookSink(server.url)).refused == {1: text}
    assert other.requests == []


def test_nothing_secret_is_in_an_error(serve: Serve) -> None:
    def echo(here: Conversation, request: Request) -> None:
        here.send(answer("400 Bad Request", f"{request.line} {request.headers} {SECRET}".encode()))

    server = serve(echo)
    url = f"http://someone:password-of-it@127.0.0.1:{server.port}/services/T0000/B0000?token=of-the-query"
    text = refused(WebhookSink(url, SECRET, {"X-Token": "of-the-header"})).refused[1]
    assert text.startswith(f"{server.url}: 400 Bad Request: POST ***?token=***")
    for secret in (SECRET, "password-of-it", "someone", "of-the-query", "of-the-header", "T0000"):
        assert secret not in text


@pytest.mark.parametrize(
    ("login", "headers"), [("someone:password-of-it@", {}), ("", {"Authorization": "Bearer of-the-token"})]
)
def test_a_login_that_a_server_repeats_is_not_in_an_error(serve: Serve, login: str, headers: dict[str, str]) -> None:
    def repeat(here: Conversation, request: Request) -> None:
        text = request.headers["authorization"].partition(" ")[2]
        here.send(f"HTTP/1.1 401 Unauthorized\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    server = serve(repeat)
    (text,) = refused(WebhookSink(server.url.replace("//", f"//{login}"), headers=headers)).refused.values()
    assert text == f"{server.url}: 401 Unauthorized: ***"


def test_many_requests_share_few_connections(serve: Serve) -> None:
    server = serve()
    assert len(list(WebhookSink(server.url, concurrency=3).publish([dead_letter(id) for id in range(60)]))) == 60
    assert server.connections <= 3


def test_a_connection_that_the_server_closes_between_two_requests_is_opened_again(serve: Serve) -> None:
    def script(here: Conversation, request: Request) -> None:
        here.send(OK)
        here.connection.shutdown(socket.SHUT_RDWR)

    server = serve(script)
    assert WebhookSink(server.url, concurrency=1).publish([dead_letter(1), dead_letter(2)]) == [1, 2]
    assert server.connections == 2


# --- servers that are down, slow or hostile


def test_a_server_that_is_down_is_named_without_its_path() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    error = refused(WebhookSink(f"http://127.0.0.1:{port}/path")).refused[1]
    assert error == f"http://127.0.0.1:{port}: ConnectionRefusedError: [Errno 111] Connection refused"


@pytest.mark.parametrize(
    "script",
    [
        lambda here, request: here.hang(),
        lambda here, request: here.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 100_000),
        lambda here, request: (here.send(b"HTTP/1.1 200"), here.hang()),
        lambda here, request: here.drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    ],
    ids=["no answer", "a byte now and then", "half a line", "endless continue"],
)
def test_a_server_that_never_ends_its_answer_is_cut_off(serve: Serve, script: Script) -> None:
    server = serve(script)
    result = refused(WebhookSink(server.url, timeout="300ms", concurrency=2), *(dead_letter(id) for id in range(9)))
    assert len(result.refused) >= 3
    assert set(result.refused.values()) == {f"{server.url}: TimeoutError: no answer within 0.3s"}


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_a_status_counts_although_the_body_hangs(serve: Serve, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr(webhook_client, "BODY_SECONDS", 0.1)

    def script(here: Conversation, request: Request) -> None:
        here.send(f"HTTP/1.1 {status}\r\nContent-Length: 999\r\n\r\nno paper".encode())
        here.hang()

    server = serve(script)
    sink = WebhookSink(server.url)
    if status == "200 OK":
        assert sorted(sink.publish([dead_letter(1), dead_letter(2)])) == [1, 2]
    else:
        assert refused(sink).refused == {1: f"{server.url}: 500 Internal Server Error: no paper"}


def test_of_a_huge_answer_only_the_beginning_is_read(serve: Serve) -> None:
    sent = []

    def script(here: Conversation, request: Request) -> None:
        here.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            here.send(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            sent.append(65_536)

    server = serve(script)
    assert WebhookSink(server.url).publish([dead_letter(1)]) == [1]
    assert sum(sent) < 20_000_000


@pytest.mark.parametrize("raw", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"])
def test_an_answer_that_is_not_http_is_refused(serve: Serve, raw: bytes) -> None:
    def script(here: Conversation, request: Request) -> None:
        here.send(raw)
        here.connection.shutdown(socket.SHUT_WR)

    assert 1 in refused(WebhookSink(serve(script).url)).refused


def test_no_more_requests_at_once_than_configured(serve: Serve) -> None:
    def slowly(here: Conversation, request: Request) -> None:
        time.sleep(0.02)
        here.send(OK)

    server = serve(slowly)
    assert len(list(WebhookSink(server.url, concurrency=3).publish([dead_letter(id) for id in range(12)]))) == 12
    assert server.most_at_once == 3


def test_requests_begin_within_some_seconds_only_and_the_rest_has_not_failed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_FOR", 1.0)

    def slowly(here: Conversation, request: Request) -> None:
        time.sleep(0.05)
        here.send(OK)

    result = refused(WebhookSink(serve(slowly).url, concurrency=1), *(dead_letter(id) for id in range(100)))
    assert 0 < len(result.accepted) < 100
    assert result.refused == {}


def test_names_that_are_not_resolved_hold_up_no_publish_and_take_no_more_threads_than_configured(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved, looked_up, server = threading.Event(), [], serve()
    real = socket.getaddrinfo

    def slow(*arguments: Any, **options: Any) -> Any:
        looked_up.append(arguments)
        resolved.wait()
        return real(*arguments, **options)

    monkeypatch.setattr(webhook_client.socket, "getaddrinfo", slow)
    monkeypatch.setattr(module, "START_FOR", 1.0)
    sink = WebhookSink(server.url, timeout="100ms", concurrency=2)
    monkeypatch.setattr(sink, "_target", sink._target._replace(timeout=0.1))
    for _ in range(3):
        error = refused(sink, *(dead_letter(id) for id in range(5))).refused[0]
        assert "probably since the name 127.0.0.1 can't be resolved" in error
    assert len(looked_up) == 2
    resolved.set()
    while not all(sender.has_ended for sender in sink._senders):
        time.sleep(0.001)
    monkeypatch.undo()
    assert sink.publish([dead_letter(1)]) == [1]
    assert [orjson.loads(request.body)["id"] for request in server.requests] == [1]


# --- TLS


def test_a_certificate_is_verified(serve: Serve, tmp_path: Path) -> None:
    own, public = certificate(tmp_path)
    server = serve(certificate=own)
    error = refused(WebhookSink(server.url)).refused[1]
    assert "SSLCertVerificationError" in error
    assert "set ca_file to the certificate of that" in error
    assert server.requests == []
    assert WebhookSink(server.url, ca_file=str(public)).publish([dead_letter(1), dead_letter(2)])
    assert server.requests[0].headers["host"] == f"127.0.0.1:{server.port}"
    elsewhere = WebhookSink(server.url.replace("127.0.0.1", "localhost"), ca_file=str(public))
    assert "Hostname mismatch" in refused(elsewhere).refused[1]


def test_a_server_that_hangs_under_tls_is_cut_off(serve: Serve, tmp_path: Path) -> None:
    own, public = certificate(tmp_path)
    server = serve(lambda here, request: here.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 100_000), own)
    sink = WebhookSink(server.url, ca_file=str(public), timeout="300ms")
    assert refused(sink).refused == {1: f"{server.url}: TimeoutError: no answer within 0.3s"}


def test_a_handshake_that_hangs_is_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        error = refused(WebhookSink(url, timeout="200ms")).refused[1]
    assert error == f"{url}: TimeoutError: no TLS handshake within 0.2s"


# --- keys


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"url": "http://hooks.example.org/"}, "url: http:// sends dead letters unencrypted"),
        ({"url": "http://127.0.0.1.example.org/"}, "url: http:// sends"),
        ({"url": "ftp://example.org"}, "url: expected https://HOST"),
        ({"url": "https://"}, "url: expected"),
        ({"url": "https://a:999999/"}, "url: expected"),
        ({"url": "https://a/b c"}, "url: expected"),
        ({"url": "https://a/\r\nX: y"}, "url: expected"),
        ({"url": "https://a/#part"}, "url: expected"),
        ({"url": 7}, "url: expected"),
        ({"secret": "short"}, "secret: expected at least 16"),
        ({"secret": ""}, "secret: expected at least 16"),
        ({"secret": "whsec_?"}, "secret: expected base64"),
        ({"secret": 1234567890123456}, "secret: expected text"),
        ({"headers": {"Host": "x"}}, "headers.Host: the sink itself"),
        ({"headers": {"Webhook-Id": "x"}}, "headers.Webhook-Id: the sink itself"),
        ({"headers": {"X-A": "hidden\r\nX-B: c"}}, "headers.X-A: expected text in one line"),
        ({"headers": {"X A": "b"}}, "headers: expected the name"),
        ({"headers": ["X-A"]}, "headers: expected texts by name"),
        ({"timeout": "1m"}, "timeout: expected at most 15s"),
        ({"timeout": "soon"}, "timeout: expected a duration"),
        ({"connect_timeout": 0}, "connect_timeout: expected a duration"),
        ({"concurrency": 0}, "concurrency: expected a number from 1 to 32"),
        ({"ca_file": "/nowhere.pem"}, "ca_file: '/nowhere.pem' can't be read"),
        ({"allow_insecure": "yes"}, "allow_insecure: expected true or false"),
    ],
)
def test_a_wrong_key_is_refused_without_its_value(keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{expected}") as error:
        WebhookSink(**{"url": "https://user:hidden@hooks.example.org/hidden", **keys})
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"url": "http://localhost:8000/x"},
        {"url": "http://[::1]:8000/x"},
        {"url": "http://hooks.example.org", "allow_insecure": True},
    ],
)
def test_http_is_accepted_on_this_machine_or_if_it_is_allowed(keys: dict[str, Any]) -> None:
    WebhookSink(**keys).close()
