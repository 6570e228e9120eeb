"""Keep open pages up to date: one read of the store every two seconds for all of them, and none while no page is open.

A stream has only the parts of its page that have changed. It begins with all parts, so that nothing is missing after a browser has
connected again; a slow stream leaves out states in between, and is never behind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import orjson
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from supervisor.engine.tasks import report_error
from supervisor.errors import StoreError
from supervisor.http.errors import BadRequest
from supervisor.http.pages.screens import Screen, screen

PATH = "/events"
PERIOD = 2.0  # seconds between two reads
MIN_PERIOD = 0.25  # also if a page opens, or a button is pressed, in between
LATE = 5.0  # seconds after which a page that waits for the store is not up to date any more
MAX_STREAMS = 20
"""A stream is a connection that stays open, and there must be connections for requests."""
MAX_SECONDS = 600.0
"""A stream ends then, and the browser connects again, if it still may."""
SILENCE = 15.0  # seconds after which a stream without changes shows that it is open


class Update(NamedTuple):
    """The state of one page: the HTML of its parts by the id of their element, or the reason why there is none."""

    event: str
    parts: Mapping[str, str]
    error: str = ""


class Live:
    """The ASGI application of the streams. `render` reads the store, and returns the update of each page by its key."""

    def __init__(self, render: Callable[[Sequence[Screen]], Awaitable[Mapping[str, Update]]]) -> None:
        self._render = render
        self._streams: Counter[str] = Counter()
        self._screens: dict[str, Screen] = {}
        self._latest: Mapping[str, Update] = {}
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await JSONResponse({"error": "Method Not Allowed"}, 405, {"Allow": "GET"})(scope, receive, send)
            return
        path, _, query = QueryParams(scope["query_string"]).get("page", "/").partition("?")
        try:
            found = screen(path, QueryParams(query))
        except BadRequest as wrong:
            await JSONResponse({"error": str(wrong)}, 400)(scope, receive, send)
            return
        if found is None:
            await JSONResponse({"error": "page: expected the address of a page"}, 404)(scope, receive, send)
        elif self._is_closed or self._streams.total() >= MAX_STREAMS:
            error = f"as many pages are open as can be kept up to date: {MAX_STREAMS}"
            await JSONResponse({"error": error}, 503, {"Retry-After": "30"})(scope, receive, send)
        else:
            await self._stream(found, scope["is_allowed"], receive, send)

    def refresh(self) -> None:
        """Read the store at once: something was changed."""
        self._wanted.set()

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._wanted.set()
        async with self._changed:
            self._changed.notify_all()

    async def _stream(self, of: Screen, is_allowed: Callable[[], bool], receive: Receive, send: Send) -> None:
        self._join(of)
        sending = asyncio.create_task(self._send_updates(of.key, is_allowed, send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((sending, leaving), timeout=MAX_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave(of)
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait((sending, leaving))
        await send({"type": "http.response.body", "body": b""})

    def _join(self, of: Screen) -> None:
        self._streams[of.key] += 1
        self._screens[of.key] = of
        self._wanted.set()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(report_error)

    def _leave(self, of: Screen) -> None:
        self._streams[of.key] -= 1
        if not self._streams[of.key]:
            del self._streams[of.key], self._screens[of.key]

    async def _read(self) -> None:
        while self._screens and not self._is_closed:
            self._wanted.clear()
            screens = list(self._screens.values())
            reading = asyncio.ensure_future(self._render(screens))
            try:
                done, _ = await asyncio.wait((reading,), timeout=LATE)
                if not done:
                    await self._show(_unavailable(screens, f"the store has not answered for {LATE:g}s"))
                await self._show(await reading)
            except StoreError as error:
                await self._show(_unavailable(screens, str(error)))
            finally:
                reading.cancel()
            await asyncio.sleep(MIN_PERIOD)
            try:
                async with asyncio.timeout(PERIOD - MIN_PERIOD):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _show(self, latest: Mapping[str, Update]) -> None:
        self._latest = latest
        async with self._changed:
            self._changed.notify_all()

    async def _send_updates(self, key: str, is_allowed: Callable[[], bool], send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"retry: 3000\n\n", "more_body": True})
        loop, sent, last = asyncio.get_running_loop(), Update("", {}), asyncio.get_running_loop().time()
        while not self._is_closed and is_allowed():
            message, sent = _message(self._latest.get(key, sent), sent)
            if not message and loop.time() - last >= SILENCE:
                message = b":\n\n"
            if message:
                await send({"type": "http.response.body", "body": message, "more_body": True})
                last = loop.time()
                continue  # the state may have changed meanwhile
            async with self._changed:
                await self._changed.wait()


def _unavailable(screens: Sequence[Screen], error: str) -> Mapping[str, Update]:
    return dict.fromkeys([each.key for each in screens], Update("unavailable", {}, error))


def _message(update: Update, sent: Update) -> tuple[bytes, Update]:
    """Return the event that leads from the state that was sent to this one; empty if they are the same."""
    changed = {id: html for id, html in update.parts.items() if sent.parts.get(id) != html}
    if not changed and (update.event, update.error) == (sent.event, sent.error):
        return b"", sent
    data = orjson.dumps(changed if update.event == "parts" else {"error": update.error})
    known = Update(update.event, {**sent.parts, **changed}, update.error)
    return b"event: " + update.event.encode() + b"\ndata: " + data + b"\n\n", known


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
