"""The application: its routes, and the answers to what goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.config.settings import HttpSettings
from supervisor.errors import StoreError, Unsupported
from supervisor.http import api, login
from supervisor.http.access import Access
from supervisor.http.callers import Callers
from supervisor.http.exposition import Exposition
from supervisor.http.health import readiness
from supervisor.http.pages.live import PATH as STREAMS
from supervisor.http.pages.routes import Pages
from supervisor.http.rates import Rates, Requests
from supervisor.http.view import View

MAX_BODY = 65_536  # bytes
BODY_SECONDS = 10.0
ANSWER_SECONDS = 30.0


def application(
    view: View, settings: HttpSettings, rates: Rates | None = None, clock: Callable[[], float] = time.monotonic
) -> ASGIApp:
    rates = rates or Rates()
    callers = Callers(settings.token, rates, clock)
    pages = Pages(view, settings)
    view.end_streams = pages.live.close
    own = [
        Route("/livez", _livez),
        Route("/readyz", partial(_readyz, view)),
        Route("/metrics", partial(_metrics, Exposition(view))),
    ]
    errors: dict[Any, Any] = {
        api.BadRequest: partial(_error, pages, 400),
        api.NotFound: partial(_error, pages, 404),
        api.Conflict: partial(_error, pages, 409),
        Unsupported: partial(_error, pages, 409),
        StoreError: partial(_error, pages, 503),
        HTTPException: partial(_http_error, pages),
        ClientDisconnect: _nobody_reads,
    }
    return Starlette(
        routes=[*own, *login.routes(callers), *api.routes(view), *pages.routes()],
        middleware=[
            Middleware(Access, settings=settings, callers=callers, requests=Requests(rates, clock)),
            Middleware(_Limits),
        ],
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


async def _error(pages: Pages, status: int, request: Request, error: Exception) -> Response:
    return pages.error(request, status, str(error))


async def _http_error(pages: Pages, request: Request, error: HTTPException) -> Response:
    return pages.error(request, error.status_code, error.detail, error.headers)


async def _nobody_reads(request: Request, error: Exception) -> Response:
    """Answer a client that has left in the middle of its request, which is no fault of the application."""
    return Response(status_code=400)


class _Limits:
    """Limits the size of a request and the time of an answer; a stream of updates has limits of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length, read, complete = Headers(scope=scope).get("content-length", "0"), 0, False
        deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        too_large = HTTPException(413, f"body: expected at most {MAX_BODY} bytes")

        async def receive_some() -> Message:
            nonlocal read, complete
            try:
                async with asyncio.timeout_at(None if complete else deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body took too long", {"Connection": "close"}) from None
            complete = not message.get("more_body")
            read += len(message.get("body", b""))
            if read > MAX_BODY:
                raise too_large
            return message

        if not length.isdecimal() or int(length) > MAX_BODY:
            await JSONResponse({"error": too_large.detail}, 413)(scope, receive, send)
            return
        try:
            async with asyncio.timeout(None if scope["path"] == STREAMS else ANSWER_SECONDS):
                await self._app(scope, receive_some, send)
        except TimeoutError:
            await JSONResponse({"error": "the answer took too long"}, 503)(scope, receive, send)
