"""Open the store and register this supervisor as an owner in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass

from supervisor.config.settings import Settings
from supervisor.engine.tasks import drop_error
from supervisor.errors import StoreBroken, StoreUnavailable
from supervisor.events import Bus, Event, StoreAvailableAgain, StoreBecameUnavailable
from supervisor.plugins.manager import PluginManager
from supervisor.stores.opening import BUILT_IN, attempts_while_unavailable, open_store
from supervisor.stores.protocol import Reports, Store
from supervisor.workers.blame import HOST
from supervisor.workers.system.orphans import end_programs_of

RETRY_INTERVAL = 0.2  # seconds


@dataclass
class Registration:
    """The registration of one owner. The store is called in a thread of `executor`, since it may block.

    `owner_fd` is the descriptor of the store that the forkserver and its workers inherit, if it has one. `latest` is the time by
    the store's clock `horizon` seconds after the first attempt to join, if a horizon is given.
    """

    settings: Settings
    owner: str
    bus: Bus
    plugins: PluginManager
    emit_from_thread: Callable[[Event], None]
    horizon: float | None = None
    executor: Executor | None = None
    owner_fd: int | None = None
    latest: float | None = None
    store: Store | None = None
    _joining: asyncio.Future[Store] | None = None

    @property
    def is_built_in(self) -> bool:
        """Whether the kind of store comes with the package, and not with a plugin."""
        return self.settings.store.scheme in BUILT_IN

    async def join(self, on_unavailable: Callable[[], None] = lambda: None) -> Store:
        """Open the store and register the owner; while the store is unavailable, try again, and report each new reason.
        `on_unavailable` is called when it is found so for the first time.

        When this is cancelled, an attempt under way goes on: see `joined`.
        """
        loop = asyncio.get_running_loop()
        unavailable_since: float | None = None
        reason = ""
        while True:
            joining = self._joining = loop.run_in_executor(self.executor, self.join_now)
            joining.add_done_callback(drop_error)
            # There is no shield, since it reports errors after its own cancellation to the loop's exception handler.
            await asyncio.wait((joining,))
            try:
                store = joining.result()
                if unavailable_since is not None:
                    self.bus.emit(StoreAvailableAgain(loop.time() - unavailable_since))
                return store
            except StoreBroken:
                raise
            except StoreUnavailable as error:
                if unavailable_since is None:
                    unavailable_since = loop.time()
                    on_unavailable()
                if str(error) != reason:
                    reason = str(error)
                    self.bus.emit(StoreBecameUnavailable(reason))
            await asyncio.sleep(RETRY_INTERVAL)

    def join_now(self) -> Store:
        if (store := self.store) is None:
            openers = {} if self.is_built_in else self.plugins.merged("supervisor_stores")
            store = open_store(self.settings.store, create=True, base=self.settings.base, openers=openers)
            store.watch_owners(end_programs_of)
            if isinstance(store, Reports):
                store.report_to(self.emit_from_thread)
            self.store = store
        if self.horizon is not None and self.latest is None:
            self.latest = store.clock() + self.horizon
        self.owner_fd = store.join(self.owner, HOST, os.getpid(), self.settings.dlq.names)
        return store

    async def joined(self) -> None:
        """Wait until an attempt to join that is under way has ended."""
        if self._joining is not None:
            await asyncio.wait((self._joining,))

    async def leave(self, timeout: float) -> None:
        """Remove the owner and close the store, if there is no engine that does it. It tries for at most `timeout` seconds."""
        if self.store is not None:
            await asyncio.get_running_loop().run_in_executor(self.executor, _leave, self.store, timeout)


def _leave(store: Store, timeout: float) -> None:
    try:
        with suppress(StoreUnavailable):  # no job was claimed: another supervisor removes this owner
            for attempt in attempts_while_unavailable(timeout):
                with attempt:
                    store.leave()
    finally:
        store.close()
