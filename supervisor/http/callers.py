"""Who sends a request: a program with the token, a browser with a session, or any program of this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hmac import compare_digest
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from supervisor.http.rates import Rates, WrongTokens, group
from supervisor.http.sessions import Sessions
from supervisor.text.rate_limit import RateLimit, times

_logger = logging.getLogger("supervisor")


class Caller(NamedTuple):
    shown: str
    session: str | None = None


LOCAL = Caller("local")
"""The caller of every request if there is no token."""


class TooManyWrongTokens(Exception):
    """No token of this address is looked at for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Callers:
    def __init__(self, token: str | None, rates: Rates, clock: Callable[[], float]) -> None:
        self.token = token and token.strip()
        self.sessions = Sessions(clock)
        self._wrong = WrongTokens(rates, clock)
        self._reports = RateLimit(clock)

    def caller(self, scope: Scope) -> Caller | None:
        """Return who sends the request, or None if this is not known. Raises TooManyWrongTokens."""
        if self.token is None:
            return LOCAL
        headers, address = Headers(scope=scope), self.address(scope)
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if wait := self.wait(address):
                raise TooManyWrongTokens(wait)
            given = given.encode("latin-1", "replace").decode("utf-8", "replace")  # a header may have any bytes
            return Caller(f"token from {address}") if self.is_token(address, given.strip()) else None
        session = cookie_parser(headers.get("cookie", "")).get(cookie_name(scope))
        return Caller(f"session from {address}", session) if session and self.sessions.is_open(session) else None

    def is_allowed(self, caller: Caller) -> bool:
        """Return whether the session, if it is one, has not ended since."""
        return caller.session is None or self.sessions.is_open(caller.session)

    def wait(self, address: str) -> float:
        """Return the seconds for which no token of this address is looked at."""
        return self._wrong.wait(group(address))

    def is_token(self, address: str, given: str) -> bool:
        assert self.token is not None
        if compare_digest(given.encode("utf-8", "surrogatepass"), self.token.encode()):
            self._wrong.right(group(address))
            return True
        self._wrong.wrong(group(address))
        if (held := self._reports.allow(group(address))) is not None:
            _logger.warning("HTTP: a wrong token from %s%s", address, times(held))
        return False

    @staticmethod
    def address(scope: Scope) -> str:
        client = scope.get("client")
        return client[0] if client else "an unknown address"


def cookie_name(scope: Scope) -> str:
    """Return the name of the cookie. Browsers send cookies to all ports of a host, which may have a supervisor each."""
    return f"supervisor_session_{scope['server'][1]}"
