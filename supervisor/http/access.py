"""Who may ask: a token beyond this machine, and no page of another site.

Without a token the server listens on loopback only, where any page that a browser shows could send requests: by a name that leads
to 127.0.0.1, which the Host header betrays, or from its own origin, which the Origin header names. With a token, Host is free:
a page under another name has no cookie of this one, and no token.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from itertools import islice
from math import ceil
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.config.settings import HttpSettings
from supervisor.http import login
from supervisor.http.callers import Callers, TooManyWrongTokens
from supervisor.http.rates import Requests, group

PROBES = frozenset({"/livez", "/readyz"})
"""They have no token and no limit of rate. Without a token, /readyz names reasons, and no messages."""
OPEN_PATHS = PROBES | {login.LOGIN, login.STYLE}
SESSION_PATHS = frozenset({login.LOGIN, login.LOGOUT})
"""They change nothing in the store: `read_only` does not forbid them."""
READING = frozenset({"GET", "HEAD"})
MAX_SHOWN_IDS, MAX_LOGGED_IDS = 10, 100
"""Of the jobs that a request has changed, in the message and in the field `ids` of its line in the log."""
MAX_HEADERS = 16_384  # bytes of the path and all headers
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # no-referrer would make the Origin of a form `null`
    "X-Content-Type-Options": "nosniff",
}

_logger = logging.getLogger("supervisor")


class Refusal(NamedTuple):
    status: int
    error: str
    headers: Mapping[str, str] = {}


class Access:
    """Answers requests that are refused, and marks the others: `actor`, `session` if it has logged in, `trusted` if it may
    read everything, and `is_allowed`, to be called by an answer that goes on: whether it still may.

    Logs each request that may change something. A route puts the ids of jobs that it has changed into `scope["ids"]`.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings, callers: Callers, requests: Requests) -> None:
        self._app, self._settings = app, settings
        self._callers, self._requests = callers, requests
        self._names = LOCAL_NAMES | {settings.listen.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500  # an error of the application is answered further out

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        scope["actor"], scope["session"], scope["trusted"] = None, False, False
        if (refused := self._refused(scope)) is not None:
            await refused(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            if scope["method"] not in READING and scope["path"] not in OPEN_PATHS | SESSION_PATHS:
                _report(scope, status)

    def _refused(self, scope: Scope) -> Response | None:
        refusal = self._too_many(scope) or _malformed(scope) or self._identify(scope)
        if refusal is None:
            if scope["actor"] is None and scope["path"] not in OPEN_PATHS and _is_browser(scope):
                return RedirectResponse(login.LOGIN + _next(scope), 303)
            refusal = self._refusal(scope, Headers(scope=scope))
        return None if refusal is None else JSONResponse({"error": refusal.error}, refusal.status, {**refusal.headers})

    def _too_many(self, scope: Scope) -> Refusal | None:
        if scope["path"] in PROBES:  # else others behind the same address could have this supervisor killed
            return None
        wait = self._requests.wait(group(self._callers.address(scope)))
        return _later("too many requests from this address", wait) if wait else None

    def _identify(self, scope: Scope) -> Refusal | None:
        try:
            caller = self._callers.caller(scope)
        except TooManyWrongTokens as error:
            too_many = _later("too many wrong tokens from this address", error.seconds)
            return None if scope["path"] in PROBES else too_many
        if caller is not None:
            scope["actor"], scope["session"], scope["trusted"] = caller.shown, caller.session is not None, True
            scope["is_allowed"] = partial(self._callers.is_allowed, caller)
        return None

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        path, actor = scope["path"], scope["actor"]
        if actor is None and path not in OPEN_PATHS:
            is_wrong = headers.get("authorization", "").lower().startswith("bearer ")
            what = "the token is wrong" if is_wrong else "a token is required"
            error = f"{what}: expected Authorization: Bearer with the value of http.token"
            return Refusal(401, error, {"WWW-Authenticate": "Bearer"})
        if self._settings.token is None and _name_of(headers.get("host", "")) not in self._names:
            return Refusal(421, f"host {headers.get('host', '')!r} is not this server; expected localhost")
        if scope["method"] in READING:
            return None
        if self._settings.read_only and path not in SESSION_PATHS:
            return Refusal(403, "http.read_only is on: this server changes nothing")
        if not _is_own(headers, by_cookie=scope["session"]):
            return Refusal(403, "the request comes from a page of another site, or a proxy has changed its Host header")
        return None


def _malformed(scope: Scope) -> Refusal | None:
    headers = scope["headers"]
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if size + len(scope["path"]) + len(scope["query_string"]) > MAX_HEADERS:
        return Refusal(431, f"headers: expected at most {MAX_HEADERS} bytes", {"Connection": "close"})
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
        # A proxy that believes the other one would take a part of the body for a request of somebody else.
        return Refusal(400, "expected Content-Length or Transfer-Encoding, not both", {"Connection": "close"})
    return None


def _later(error: str, seconds: float) -> Refusal:
    wait = str(ceil(seconds))
    return Refusal(429, f"{error}; expected the next one after {wait} s", {"Retry-After": wait, "Connection": "close"})


def _report(scope: Scope, status: int) -> None:
    """Log a request that may have changed something: there is no other place that does."""
    method, path, actor = scope["method"], quote(scope["path"]), scope["actor"]
    if scope["query_string"]:
        path += "?" + scope["query_string"].decode("latin-1")[:1000]
    fields: dict[str, Any] = {"actor": actor, "method": method, "path": path, "status": status}
    shown = ""
    if ids := scope.get("ids"):
        fields["ids"] = [*islice(ids, MAX_LOGGED_IDS)]
        more = f", and {len(ids) - MAX_SHOWN_IDS} more" if len(ids) > MAX_SHOWN_IDS else ""
        shown = f" (job{'s' if len(ids) > 1 else ''} {', '.join(map(str, fields['ids'][:MAX_SHOWN_IDS]))}{more})"
    _logger.info(
        "HTTP: %s %s by %s: %s%s", method, path, actor, status, shown,
        extra={"fields": fields},
    )  # fmt: skip


def _is_browser(scope: Scope) -> bool:
    """Return whether a person waits for a page, for whom a redirect to the login is of more use than an error."""
    accepted = Headers(scope=scope).get("accept", "")
    return "text/html" in accepted.lower() and not scope["path"].startswith("/api/")


def _next(scope: Scope) -> str:
    """Return the query with which the login leads to the page that was asked for; a form can't be sent again."""
    if scope["method"] not in READING:
        return ""
    query = scope["query_string"].decode("latin-1")
    wanted = login.local_path(scope.get("raw_path", b"").decode("latin-1") + (f"?{query}" if query else ""))
    return "" if wanted == "/" else f"?next={quote(wanted, safe='/')}"


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_own(headers: Headers, by_cookie: bool) -> bool:
    """Return whether the request is not known to come from a page of another site.

    A browser sends the cookie with requests of all pages of its host, also from other ports: then it has to be known that
    the page is of this server. Browsers send one of the two headers with each change.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin", "none"):
        return False
    if origin is None:
        return site is not None or not by_cookie
    return site == "same-origin" or origin.partition("://")[2] == headers.get("host") != ""
