"""The HTTP server in the course of a run: it listens before anything starts, and ends last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from supervisor.config.settings import HttpSettings, Settings
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.tasks import report_error
from supervisor.errors import ConfigError
from supervisor.events import StoreAvailableAgain, StoreBecameUnavailable
from supervisor.plugins.manager import PluginManager
from supervisor.runtime.tasks import run_every, start_task
from supervisor.stores.opening import BUILT_IN, IN_ONE_PROCESS, open_store
from supervisor.stores.protocol import Store

if TYPE_CHECKING:
    from supervisor.http.server import HttpServer
    from supervisor.http.view import Steering, View

EXTRA = "http: expected the packages of its extra; install them with: pip install 'job-supervisor[web]'"


class Web:
    def __init__(self, server: HttpServer, view: View, sampling: asyncio.Task[None]) -> None:
        self._server, self._view, self._sampling = server, view, sampling

    def join(self, store: Store, engine: Coordinator, plugins: PluginManager) -> None:
        """From now on the store is joined, and jobs are claimed soon. If its jobs are in this process, any thread may read them;
        otherwise another connection does."""
        from supervisor.http.reading import StoreReader

        settings = self._view.settings()
        self._view.engine = engine
        if settings.store.scheme in IN_ONE_PROCESS:
            self._view.reader = StoreReader(lambda: store, asyncio.get_running_loop(), shared=True)
            return
        openers = {} if settings.store.scheme in BUILT_IN else plugins.merged("supervisor_stores")
        self._view.reader = StoreReader(
            lambda: open_store(settings.store, create=False, base=settings.base, openers=openers),
            asyncio.get_running_loop(),
        )

    def steer(self, owner: str, steering: Steering) -> None:
        self._view.owner, self._view.steering = owner, steering

    def store_changed(self, event: StoreBecameUnavailable | StoreAvailableAgain) -> None:
        self._view.store_error = event.error if isinstance(event, StoreBecameUnavailable) else ""

    async def close(self) -> None:
        self._sampling.cancel()
        if self._view.end_streams is not None:
            await self._view.end_streams()
        await self._server.close()
        if self._view.reader is not None:
            self._view.reader.close()


def serve(
    http: HttpSettings, state: Callable[[], str], settings: Callable[[], Settings],
    metrics: Callable[[], dict[str, Any]],
) -> Web:  # fmt: skip
    """Listen and answer. Raises ConfigError if the address can't be used, or packages are missing."""
    try:
        from supervisor.http.app import application
        from supervisor.http.server import HttpServer
        from supervisor.http.view import View
        from supervisor.telemetry.history import PERIOD, History
    except ImportError as error:
        raise ConfigError([f"{EXTRA} ({error})"]) from None
    history = History(metrics)
    view, server = View(state, settings, metrics, history=history.series), HttpServer(http)
    logging.getLogger("supervisor").info("HTTP: http://%s", server.address)
    server.start(application(view, http)).add_done_callback(_report)
    history.sample()
    return Web(server, view, start_task(run_every(PERIOD, history.sample)))


def _report(serving: asyncio.Task[None]) -> None:
    if not serving.cancelled():
        report_error(serving)
