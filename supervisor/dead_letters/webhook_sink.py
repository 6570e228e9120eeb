"""Post each dead letter to a URL as JSON, signed by the scheme of Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import orjson

from supervisor.dead_letters.file_sink import STRICT
from supervisor.errors import NotAccepted, SystemRefused
from supervisor.text.redaction import Mask, secrets_of
from supervisor.text.units import parse_duration
from supervisor.threads import start_thread

if TYPE_CHECKING:
    import ssl

    from supervisor.dead_letters.webhook_client import Answer, Connection, Target

START_FOR = 10.0  # seconds of a publish in which requests begin: a publish must end within the time of a sink
MAX_TIMEOUT = 15.0
MAX_CONCURRENCY = 32
MIN_SECRET = 16
MAX_FAILED = 3  # requests in a row that fail: then the others are left for the next offer
OVERLOADED = frozenset({429, 503})
RESERVED = frozenset({"connection", "content-length", "host", "transfer-encoding"})

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_URL = re.compile(r"[\x21-\x7e]+")


class WebhookSink:
    """The sink type `webhook`: a POST for each dead letter, at most `concurrency` at once. Any status of 2xx accepts it.

    Raises ValueError, without a secret in it, if the URL, the secret or another key can't be used.
    """

    def __init__(
        self, url: str, secret: str | None = None, headers: Mapping[str, str] | None = None, timeout: str | float = 10.0,
        connect_timeout: str | float = 5.0, concurrency: int = 4, ca_file: str | None = None, allow_insecure: bool = False,
    ) -> None:  # fmt: skip
        self._key = None if secret is None else _key(secret)
        parts = _parts(url, allow_insecure)
        self._headers = {
            "Content-Type": "application/json", "User-Agent": "job-supervisor", **_login(parts), **_headers(headers or {}),
        }  # fmt: skip
        limits = [_seconds(name, value) for name, value in (("timeout", timeout), ("connect_timeout", connect_timeout))]
        if type(concurrency) is not int or not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"concurrency: expected a number from 1 to {MAX_CONCURRENCY}, got {concurrency!r}")
        self._target = _target(parts, _tls(ca_file) if parts.scheme == "https" else None, limits)
        login = unquote(parts.username or ""), unquote(parts.password or "")
        sent = [*_login(parts).values(), *(headers or {}).values()]
        # A server may repeat a token without the `Bearer` before it.
        tokens = [value.rpartition(" ")[2] for value in sent]
        path = parts.path if len(parts.path) >= 8 else ""  # some servers take a token in the path
        self._mask = Mask({*secrets_of(url), *login, secret or "", path, *sent, *tokens})
        self._concurrency = concurrency
        self._senders: list[_Sender] = []

    def publish(self, dead_letters: Sequence[Mapping[str, Any]]) -> Iterable[int]:
        """Post the dead letters, and return their ids. Raises NotAccepted with the answers if the server refuses some."""
        self._senders = [sender for sender in self._senders if not sender.has_ended]
        free = self._concurrency - len(self._senders)
        if free <= 0:
            raise NotAccepted({dead_letter["id"]: self._not_ended() for dead_letter in dead_letters})
        batch = _Batch(dead_letters)
        self._senders += (started := self._started(batch, min(free, len(dead_letters))))
        for id in batch.wait(started, START_FOR + self._target.timeout + 1.0):
            batch.note(_Result(id, self._not_ended()))
        if batch.refused or len(batch.accepted) < len(dead_letters):
            raise NotAccepted(batch.refused, batch.accepted, batch.retry_after)
        return batch.accepted

    def _not_ended(self) -> str:
        return f"{self._target.origin}: a request has not ended, probably since the name {self._target.host} can't be resolved"

    def close(self) -> None:
        for sender in self._senders:
            sender.connection.cut()

    def _started(self, batch: _Batch, count: int) -> list[_Sender]:
        """Start threads for the requests. One is enough, if there are no more to be had."""
        started: list[_Sender] = []
        for _ in range(count):
            sender = _Sender(self, batch)
            try:
                start_thread(sender.run, "webhook")
            except SystemRefused:
                if not started:
                    raise
                break
            started.append(sender)
        return started

    def new_connection(self) -> Connection:
        from supervisor.dead_letters.webhook_client import Connection

        return Connection(self._target)

    def post(self, connection: Connection, dead_letter: Mapping[str, Any]) -> _Result:
        """Send one dead letter, and return the answer of the server. Raises nothing: an error is a result too."""
        id = dead_letter["id"]
        try:
            body = orjson.dumps(dead_letter, option=STRICT)
            answer = connection.post(body, {**self._headers, **self._signature(dead_letter, body)})
        except Exception as error:
            return _Result(id, self._shown(f"{type(error).__name__}: {error}{_remedy(error)}"))
        if 200 <= answer.status < 300:
            return _Result(id, None)
        wait = max(1.0, answer.retry_after) if answer.status in OVERLOADED and answer.retry_after else 0.0
        return _Result(id, self._shown(_refusal(answer)), wait)

    def _shown(self, error: str) -> str:
        return f"{self._target.origin}: {self._mask(error)}"

    def _signature(self, dead_letter: Mapping[str, Any], body: bytes) -> dict[str, str]:
        """Return the headers of Standard Webhooks. The id is the same at each delivery, and a new one after a redrive."""
        id = f"dead-letter-{dead_letter['id']}-{re.sub('[^0-9]', '', str(dead_letter.get('finished_at')))}"
        headers = {"webhook-id": id, "webhook-timestamp": str(int(time.time()))}
        if self._key is not None:
            signed = b".".join((id.encode(), headers["webhook-timestamp"].encode(), body))
            digest = hmac.new(self._key, signed, hashlib.sha256).digest()
            headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        return headers


class _Result(NamedTuple):
    id: int
    error: str | None
    retry_after: float = 0.0


class _Batch:
    """The dead letters of one publish and their results. Senders take from it until the time is over or the server seems to fail."""

    def __init__(self, dead_letters: Sequence[Mapping[str, Any]]) -> None:
        self.accepted: list[int] = []
        self.refused: dict[int, str] = {}
        self.retry_after = 0.0
        self.ended: SimpleQueue[None] = SimpleQueue()
        """An entry for each sender that has ended."""
        self._waiting = deque(dead_letters)
        self._start_until = time.monotonic() + START_FOR
        self._failed_in_a_row = 0
        self._lock = Lock()

    def next(self) -> Mapping[str, Any] | None:
        """Return the next dead letter to send, if any."""
        with self._lock:
            is_over = self.retry_after or self._failed_in_a_row >= MAX_FAILED or time.monotonic() >= self._start_until
            return self._waiting.popleft() if self._waiting and not is_over else None

    def note(self, result: _Result) -> None:
        with self._lock:
            self.retry_after = max(self.retry_after, result.retry_after)
            if result.error is None:
                self._failed_in_a_row = 0
                self.accepted.append(result.id)
            else:
                self._failed_in_a_row += 1
                self.refused[result.id] = result.error

    def wait(self, senders: Sequence[_Sender], seconds: float) -> list[int]:
        """Wait for the senders, and cut off each request at its deadline. Return the ids that are still being sent after `seconds`."""
        running, until = len(senders), time.monotonic() + seconds
        while running and (now := time.monotonic()) < until:
            wait = min(until, *(sender.connection.until for sender in senders), now + 1.0) - now
            with suppress(Empty):
                self.ended.get(timeout=max(0.001, wait))
                running -= 1
            for sender in senders:
                sender.connection.cut_if_due()
        return [sender.sending for sender in senders if sender.sending is not None]


class _Sender:
    """A thread with a connection: a name that is not resolved would block the publish without any limit."""

    def __init__(self, sink: WebhookSink, batch: _Batch) -> None:
        self._sink, self._batch = sink, batch
        self.connection = sink.new_connection()
        self.sending: int | None = None
        self.has_ended = False

    def run(self) -> None:
        try:
            while (dead_letter := self._batch.next()) is not None:
                self.sending = dead_letter["id"]
                self._batch.note(self._sink.post(self.connection, dead_letter))
                self.sending = None
        finally:
            self.connection.close()
            self.has_ended = True
            self._batch.ended.put(None)


def _refusal(answer: Answer) -> str:
    status = f"{answer.status} {answer.reason}".strip()
    if 300 <= answer.status < 400:
        to = f" (to {answer.location})" if answer.location else ""
        return f"{status}{to}: redirects are not followed; set url to the address that accepts the dead letters"
    return f"{status}: {' '.join(answer.body.split())}" if answer.body.strip() else status


def _remedy(error: Exception) -> str:
    if type(error).__name__ != "SSLCertVerificationError":
        return ""
    return "; if its certificate is of an authority of your own, set ca_file to the certificate of that"


def _parts(url: str, allow_insecure: bool) -> SplitResult:
    expected = ValueError("url: expected https://HOST/... in printable ASCII, without a #")
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise expected
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.fragment
    except ValueError:
        raise expected from None
    if not usable:
        raise expected
    if not isinstance(allow_insecure, bool):
        raise ValueError("allow_insecure: expected true or false")
    if parts.scheme == "http" and not allow_insecure and not _is_loopback(parts.hostname or ""):
        raise ValueError(
            "url: http:// sends dead letters unencrypted to another machine: expected https://, or allow_insecure: true"
        )
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _target(parts: SplitResult, tls: ssl.SSLContext | None, limits: Sequence[float]) -> Target:
    from supervisor.dead_letters.webhook_client import Target

    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    timeout, connect_timeout = limits
    port = parts.port or (443 if tls else 80)
    address = parts.netloc.rpartition("@")[2]
    return Target(parts.hostname or "", port, address, path, tls, min(connect_timeout, timeout), timeout)


def _tls(ca_file: str | None) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, TypeError) as error:
        raise ValueError(f"ca_file: {ca_file!r} can't be read as certificates (PEM): {error}") from None


def _login(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers in the spelling that replaces a default one. Raises ValueError, without a value."""
    if not isinstance(headers, Mapping):
        raise ValueError("headers: expected texts by name")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"headers: expected the name of a header, got {name!r}")
        if name.lower() in RESERVED or name.lower().startswith("webhook-"):
            raise ValueError(f"headers.{name}: the sink itself sets this header")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"headers.{name}: expected text in one line")
    return {name.title(): value.strip() for name, value in headers.items()}


def _key(secret: str) -> bytes:
    """Return the key of a secret. As in Standard Webhooks, the text after `whsec_` is base64; any other secret is used as it is."""
    if not isinstance(secret, str):
        raise ValueError("secret: expected text")
    key = secret.encode()
    if secret.startswith("whsec_"):
        try:
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            raise ValueError("secret: expected base64 after whsec_") from None
    if len(key) < MIN_SECRET:
        raise ValueError(f"secret: expected at least {MIN_SECRET} characters")
    return key


def _seconds(name: str, value: str | float) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if seconds > MAX_TIMEOUT:
        raise ValueError(f"{name}: expected at most {MAX_TIMEOUT:g}s, got {value}")
    return seconds
