"""The application: its routes, and the answers to what goes wrong."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.config.settings import HttpSettings
from supervisor.errors import StoreError
from supervisor.http import api
from supervisor.http.access import Access
from supervisor.http.exposition import Exposition
from supervisor.http.health import readiness
from supervisor.http.view import View

MAX_BODY = 65_536  # bytes
ANSWER_SECONDS = 30.0


def application(view: View, settings: HttpSettings) -> ASGIApp:
    own = [
        Route("/livez", _livez),
        Route("/readyz", partial(_readyz, view)),
        Route("/metrics", partial(_metrics, Exposition(view))),
    ]
    errors: dict[Any, Any] = {
        api.BadRequest: partial(_error, 400),
        api.NotFound: partial(_error, 404),
        api.Conflict: partial(_error, 409),
        StoreError: partial(_error, 503),
        HTTPException: _http_error,
    }
    return Starlette(
        routes=[*own, *api.routes(view)],
        middleware=[Middleware(Access, settings=settings), Middleware(_Limits)],
        exception_handlers=errors,
    )


async def _livez(request: Request) -> Response:
    """That this answers shows that the loop of the supervisor runs."""
    return PlainTextResponse("ok\n")


async def _readyz(view: View, request: Request) -> Response:
    found = readiness(view.state(), view.problems())
    if not request.scope["trusted"]:
        found["reasons"] = [{"reason": each["reason"]} for each in found["reasons"]]
    return JSONResponse(found, 200 if found["ready"] else 503)


async def _metrics(exposition: Exposition, request: Request) -> Response:
    text, content_type = await exposition.answer(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": content_type})


async def _error(status: int, request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class _Limits:
    """Limits the size of a request and the time of an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length, read = Headers(scope=scope).get("content-length", "0"), 0
        too_large = HTTPException(413, f"body: expected at most {MAX_BODY} bytes")

        async def receive_some() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MAX_BODY:
                raise too_large
            return message

        if not length.isdecimal() or int(length) > MAX_BODY:
            await JSONResponse({"error": too_large.detail}, 413)(scope, receive, send)
            return
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._app(scope, receive_some, send)
        except TimeoutError:
            await JSONResponse({"error": "the answer took too long"}, 503)(scope, receive, send)
