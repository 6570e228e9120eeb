"""Who may ask: a token beyond this machine, and no page of another site.

Without a token the server listens on loopback only, where any page that a browser shows could send requests: by a name that leads
to 127.0.0.1, which the Host header betrays, or from its own origin, which the Origin header names.
"""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.config.settings import HttpSettings

OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""The paths of probes, which have no token. Without one, /readyz names reasons, and no messages."""
READING = frozenset({"GET", "HEAD"})
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Refusal(NamedTuple):
    status: int
    error: str
    headers: Mapping[str, str] = {}


class Access:
    """Answers requests that are refused, and marks the others as `trusted` if they may read everything."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app, self._settings = app, settings
        self._names = LOCAL_NAMES | {settings.listen.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        scope["trusted"] = trusted = self._has_token(headers)
        refusal = self._refusal(scope["method"], scope["path"], headers, trusted)
        if refusal is not None:
            answer = JSONResponse({"error": refusal.error}, refusal.status, {**HEADERS, **refusal.headers})
            await answer(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _refusal(self, method: str, path: str, headers: Headers, trusted: bool) -> Refusal | None:
        if path not in OPEN_PATHS and not trusted:
            error = "a token is required: Authorization: Bearer with the value of http.token"
            return Refusal(401, error, {"WWW-Authenticate": "Bearer"})
        if self._settings.token is None and _name_of(headers.get("host", "")) not in self._names:
            return Refusal(421, f"host {headers.get('host', '')!r} is not this server; expected localhost")
        if method in READING:
            return None
        if self._settings.read_only:
            return Refusal(403, "http.read_only is on: this server changes nothing")
        if not _is_own(headers):
            return Refusal(403, "the request comes from a page of another site")
        return None

    def _has_token(self, headers: Headers) -> bool:
        token = self._settings.token
        if token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and compare_digest(given.strip().encode(), token.encode())


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_own(headers: Headers) -> bool:
    """Return whether the request is not known to come from a page of another site."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host", "")
