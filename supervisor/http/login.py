"""The login of a browser: a form exchanges the token for a cookie."""

from __future__ import annotations

import logging
import re
from html import escape
from math import ceil
from pathlib import Path
from string import Template
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.http.callers import Callers, cookie_name
from supervisor.http.sessions import SESSION_SECONDS

LOGIN, LOGOUT, STYLE = "/login", "/logout", "/login.css"
WRONG = "This is not the token of this supervisor."

_FOLDER = Path(__file__).parent / "login_page"
_PAGE = Template((_FOLDER / "login.html").read_text(encoding="utf-8"))
_STYLE = (_FOLDER / "login.css").read_text(encoding="utf-8")
_LOCAL = re.compile(r"/(?!/)[\w\-./?=&%+:,@~!$'()*;\[\]]*", re.ASCII)
_MAX_NEXT = 2000  # characters

_logger = logging.getLogger("supervisor")


def routes(callers: Callers) -> list[Route]:
    login = Login(callers)
    return [
        Route(LOGIN, login.form),
        Route(LOGIN, login.log_in, methods=["POST"]),
        Route(LOGOUT, login.log_out, methods=["POST"]),
        Route(STYLE, _style),
    ]


class Login:
    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def form(self, request: Request) -> Response:
        following = local_path(request.query_params.get("next", ""))
        return _see(following) if request.scope["actor"] else _page(following)

    async def log_in(self, request: Request) -> Response:
        fields = _fields(await request.body())
        following, address = local_path(fields.get("next", "")), self._callers.address(request.scope)
        if self._callers.token is None:
            return _see(following)
        # Nothing is awaited from here on: another request can't use the wait that this one has found over.
        if wait := self._callers.wait(address):
            return _page(following, f"Too many wrong tokens from {address}. Wait {ceil(wait)} seconds.", 429, wait)
        if not self._callers.is_token(address, fields.get("token", "").strip()):
            return _page(following, WRONG, 403)
        _logger.info("HTTP: login from %s", address)
        answer = _see(following)
        # The Origin is that of the browser, also behind a proxy with TLS; one that is forged only harms its own cookie.
        secure = request.headers.get("origin", "").startswith("https://")
        answer.set_cookie(
            cookie_name(request.scope), self._callers.sessions.open(),
            max_age=SESSION_SECONDS, secure=secure, httponly=True, samesite="strict",
        )  # fmt: skip
        return answer

    async def log_out(self, request: Request) -> Response:
        name = cookie_name(request.scope)
        self._callers.sessions.close(request.cookies.get(name, ""))
        _logger.info("HTTP: logout from %s", self._callers.address(request.scope))
        answer = _see(LOGIN)
        answer.delete_cookie(name, httponly=True, samesite="strict")
        return answer


def local_path(text: str) -> str:
    """Return `text` if it is a path of this server, else "/": no link leads from the login to another site."""
    return text if len(text) <= _MAX_NEXT and _LOCAL.fullmatch(text) else "/"


def _page(following: str, message: str = "", status: int = 200, wait: float = 0.0) -> Response:
    shown = f'<p id="message" role="alert">{escape(message)}</p>' if message else ""
    headers = {"Retry-After": str(ceil(wait))} if wait else None
    return HTMLResponse(_PAGE.substitute(message=shown, following=escape(following)), status, headers)


def _see(path: str) -> Response:
    return RedirectResponse(path, 303)


def _fields(body: bytes) -> dict[str, str]:
    try:
        parsed = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        return {}
    return {name: values[0] for name, values in parsed.items()}


async def _style(request: Request) -> Response:
    return Response(_STYLE, media_type="text/css")
