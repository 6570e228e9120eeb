"""The streams of open pages, without a store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import pytest

from supervisor.http.pages import live
from supervisor.http.pages.live import Live, Update
from supervisor.http.pages.screens import Screen


def test_a_page_whose_store_hangs_is_marked_and_goes_on_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LATE", 0.01)

    async def story() -> None:
        answers = asyncio.Event()
        sent: asyncio.Queue[bytes] = asyncio.Queue()

        async def render(screens: Sequence[Screen]) -> Mapping[str, Update]:
            await answers.wait()
            return {each.key: Update("parts", {"queues": "all of them"}) for each in screens}

        async def receive() -> MutableMapping[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.put_nowait(message.get("body", b""))

        async def until(text: bytes) -> None:
            while text not in await sent.get():
                pass

        pages = Live(render)
        scope = {"type": "http", "method": "GET", "query_string": b"page=/queues", "is_allowed": lambda: True}
        async with asyncio.timeout(30):
            stream = asyncio.create_task(pages(scope, receive, send))
            await until(b"event: unavailable")
            answers.set()
            await until(b"all of them")
            await pages.close()
            await stream

    asyncio.run(story())
