"""Handler `http`: {"url": "https://example.org/hook", "json": {"id": 7}} -> {"status": 200, "headers": {...}, "body": "..."}.

2xx succeeds. 408, 425, 429, 5xx and a server that can't be reached are tried again, after `Retry-After` if the server sends
it. With any other status the job becomes a dead letter at once. A redirect to another host gets none of your headers but
`Accept`, `Accept-Encoding`, `Accept-Language` and `User-Agent`.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException, InvalidURL
from socket import socket
from threading import Timer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from supervisor import Job, Reject, Retry, handler

MAX_BODY = 64_000
MAX_HEADERS = 64_000  # characters of names and values; later headers are left out
MAX_ERROR_BODY = 500
ERROR_BODY_SECONDS = 5.0
BOTH_WAYS = 2  # for socket.shutdown
MAX_WAIT = 3600.0
SENT_ELSEWHERE = frozenset({"Accept", "Accept-encoding", "Accept-language", "User-agent"})
"""The headers that follow a redirect to another host: any other may be a secret."""
TRY_AGAIN = frozenset({408, 425, 429})


@handler("http")
def request(job: Job) -> dict[str, Any]:
    """Send the request. Optional: `method`, `headers`, `body` (text) or `json`, `timeout` (seconds without data; default 30)."""
    sent, timeout = _prepare(job.payload if isinstance(job.payload, dict) else {})
    what = f"{sent.get_method()} {sent.full_url.partition('?')[0]}"
    try:
        with _OPENER.open(sent, timeout=timeout) as response:
            body = response.read(MAX_BODY)
            if response.length and len(body) < MAX_BODY:
                raise ConnectionError(f"the answer ended {response.length} bytes early")
            headers = _bounded(response.headers)
            return {"status": response.status, "headers": headers, "body": body.decode(errors="replace")}
    except HTTPError as error:
        with closing(error):
            message = f"{what}: {error.code} {error.reason}: {_body_of(error)}"
            if error.code in TRY_AGAIN or error.code >= 500:
                raise Retry(message, after=_retry_after(error.headers.get("Retry-After", ""))) from None
            raise Reject(message) from None
    except (ValueError, InvalidURL) as error:
        raise Reject(f"{what}: {error}") from None
    except (OSError, HTTPException) as error:
        raise Retry(f"{what}: {type(error).__name__}: {error}") from None


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to http and https only, at most five in a row; what may be a secret is sent to the first host only."""

    max_redirections = 5

    def redirect_request(self, req: Request, fp: Any, *answer: Any) -> Request | None:
        following = super().redirect_request(req, fp, *answer)
        if following is None or following.type not in ("http", "https"):
            return None
        if (following.type, following.host) != (req.type, req.host):
            for name in following.headers.keys() - SENT_ELSEWHERE:
                following.remove_header(name)
        fp.close()  # its body is not needed, and may hang
        return following


_OPENER = build_opener(_Redirects)


def _prepare(task: dict[str, Any]) -> tuple[Request, float]:
    url, headers, timeout = task.get("url"), task.get("headers", {}), task.get("timeout", 30)
    body, method = task.get("body"), task.get("method", "POST" if {"body", "json"} & task.keys() else "GET")
    if not isinstance(url, str) or not _reachable(url):
        raise Reject("url: expected http://HOST/... or https://HOST/..., with no user or password in it")
    _expect(isinstance(method, str) and method.isalpha(), "method: expected a method such as PUT")
    _expect(isinstance(headers, dict) and all(isinstance(v, str) for v in headers.values()), "headers: expected texts")
    _expect(type(timeout) in (int, float) and 0 < timeout <= 86_400, "timeout: expected seconds, above 0")
    _expect(body is None or isinstance(body, str), "body: expected text")
    _expect(body is None or "json" not in task, "body: expected either body or json")
    headers = {"User-Agent": "job-supervisor", **headers}
    if "json" in task:
        body, headers = json.dumps(task["json"]), {"Content-Type": "application/json", **headers}
    return Request(url, None if body is None else body.encode(), headers, method=method.upper()), timeout


def _reachable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:
        return False


def _expect(right: bool, otherwise: str) -> None:
    if not right:
        raise Reject(otherwise)


def _bounded(headers: Message) -> dict[str, str]:
    kept, room = {}, MAX_HEADERS
    for name, value in headers.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return kept


def _body_of(error: HTTPError) -> str:
    """Return the beginning of the body, or less if it is cut short or does not come in time: the status counts without it."""
    try:
        connection = socket(fileno=os.dup(error.fileno()))
    except (OSError, ValueError, AttributeError):
        return ""  # there is none, so that the connection is closed already
    timer = Timer(ERROR_BODY_SECONDS, _end, (connection,))
    timer.start()
    body = b""
    try:
        with suppress(OSError, HTTPException):
            while len(body) < MAX_ERROR_BODY and (more := error.read1(MAX_ERROR_BODY - len(body))):  # type: ignore[attr-defined]
                body += more
    finally:
        timer.cancel()
        connection.close()
    return body.decode(errors="replace")


def _end(connection: socket) -> None:
    with suppress(OSError):  # it has ended, or is closed
        connection.shutdown(BOTH_WAYS)


def _retry_after(header: str) -> float | None:
    """Return the seconds to wait, by a header with seconds or an HTTP date; None if it has neither: then the backoff applies."""
    try:
        wait = float(header) if header.isdecimal() else _in_utc(parsedate_to_datetime(header)).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait, 1.0), MAX_WAIT)


def _in_utc(date: datetime) -> datetime:
    """Return the date with a zone: HTTP dates without one are in UTC."""
    return date if date.tzinfo else date.replace(tzinfo=UTC)
