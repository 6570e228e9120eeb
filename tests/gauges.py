"""The metrics that are read at a scrape, of a supervisor that has not joined its store."""

from __future__ import annotations

import asyncio
from typing import Any

from supervisor.config.settings import Settings
from supervisor.http.gauges import Gauges
from supervisor.http.view import View


def gauges_without_an_engine() -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        view = View(lambda: "starting", Settings, dict)
        return (await Gauges(view, asyncio.get_running_loop(), 0.0).snapshot())()

    return asyncio.run(read())
