"""The application with a store in memory, asked without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx

from supervisor.config.settings import HttpSettings, Settings
from supervisor.config.types import Address
from supervisor.errors import StoreUnavailable
from supervisor.http.app import application
from supervisor.http.view import View
from supervisor.stores.records import Presence
from tests.stores.factories import FACTORIES

BROWSER = {"Accept": "text/html,application/xhtml+xml"}
OWN = {"Origin": "http://localhost"}


class Reader:
    """Reads the store at once, and counts how often."""

    def __init__(self, store: Any) -> None:
        self.store, self.reads, self.unavailable = store, 0, False

    async def read(self, call: Callable[[Any], Any]) -> Any:
        self.reads += 1
        if self.unavailable:
            raise StoreUnavailable("the database is locked")
        return call(self.store)

    def close(self) -> None: ...


class Site:
    def __init__(self, folder: Path, read_only: bool = False) -> None:
        self.factory = FACTORIES["memory"](folder)
        self.store: Any = self.factory.joined("one")
        self.state = "running"
        self.reader = Reader(self.store)
        settings = Settings()
        self.view = View(lambda: self.state, lambda: settings, dict, reader=self.reader)
        http = HttpSettings(listen=Address("127.0.0.1", 80), token=None, read_only=read_only)
        self.app = application(self.view, http)

    def announce(self, *workers: dict[str, Any], state: str = "running", **about: Any) -> None:
        self.store.announce(Presence(state, workers, about=about))

    def get(self, path: str, **headers: str) -> httpx.Response:
        return asyncio.run(self._ask("GET", path, None, {**BROWSER, **headers}))

    def post(self, path: str, data: Any = None, **headers: str) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, data, {**BROWSER, **OWN, **headers}))

    async def _ask(self, method: str, path: str, data: Any, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost") as client:
            return await client.request(method, path, data=data, headers=headers)


class Stream:
    """An open page: the events that it has had."""

    def __init__(self, app: Any, page: str) -> None:
        self.status = 0
        self.events: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        scope = {
            "type": "http", "method": "GET", "path": "/events", "query_string": f"page={page}".encode(),
            "headers": [(b"host", b"localhost")], "http_version": "1.1", "client": ("127.0.0.1", 1), "scheme": "http",
            "server": ("localhost", 80), "root_path": "", "raw_path": b"/events",
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def next(self) -> tuple[str, Any]:
        while not self.events:
            self._changed.clear()
            async with asyncio.timeout(10):
                await self._changed.wait()
        return self.events.pop(0)

    async def leave(self) -> None:
        self._gone.set()
        await self.task

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        for block in message.get("body", b"").decode().split("\n\n"):
            if block.startswith("event: "):
                name, data = block.removeprefix("event: ").split("\ndata: ")
                self.events.append((name, json.loads(data)))
                self._changed.set()


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


class Elements(HTMLParser):
    """The elements and texts of a page, as a browser reads it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)
