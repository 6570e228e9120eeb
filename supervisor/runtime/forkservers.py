"""The current forkserver, and earlier ones, replaced by a reload, that still have workers with a job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from supervisor.config.schedules_in_force import configured_payloads
from supervisor.config.settings import Settings
from supervisor.runtime.tasks import cancel, start_task
from supervisor.workers.interface import WorkerOptions
from supervisor.workers.parent.backend import ForkserverBackend
from supervisor.workers.pool import Pool


class Forkservers:
    """All forkservers of a supervisor. `owner_fd` is the descriptor of the store that all processes inherit, if it has one;
    `descriptor_limit` is their soft limit."""

    def __init__(self, owner: str, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self.owner_fd: int | None = None
        self.descriptor_limit: int | None = None
        self._owner = owner
        self._pool = pool
        self._loop = loop
        self._backends: list[ForkserverBackend] = []  # the newest last
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def newest(self) -> ForkserverBackend:
        return self._backends[-1]

    def add(self, settings: Settings) -> ForkserverBackend:
        """Return a new forkserver, which the caller has to start."""
        self._backends.append(ForkserverBackend(self._options(settings), self._pool, self._loop))
        return self.newest

    async def remove(self, backend: ForkserverBackend) -> None:
        await backend.stop()
        self._backends.remove(backend)

    def retire(self, backend: ForkserverBackend, until_unused: Callable[[ForkserverBackend], Awaitable[None]]) -> None:
        """Stop the forkserver once `until_unused(backend)` has ended; meanwhile new workers come from the newest."""

        async def stop_when_unused() -> None:
            await until_unused(backend)
            await self.remove(backend)

        task = start_task(stop_when_unused())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def retired(self) -> None:
        """Wait until the retired forkservers have stopped."""
        if self._retiring:
            await asyncio.wait(self._retiring)

    async def stop(self) -> None:
        """Stop all forkservers, even if workers still run."""
        for task in [*self._retiring]:
            await cancel(task)
        for backend in self._backends:
            await backend.stop()

    def _options(self, settings: Settings) -> WorkerOptions:
        plugins, workers = settings.plugins, settings.workers
        heartbeats = {name: it.heartbeat for name, it in settings.handlers.items() if it.heartbeat is not None}
        resources = {name: found for name, it in settings.handlers.items() if (found := it.resources)}
        return WorkerOptions(
            plugins=plugins.paths, base=str(settings.base), variables=settings.variables, import_timeout=plugins.import_timeout,
            start=workers.start, heartbeat=workers.heartbeat, heartbeats=heartbeats,
            result_limit=settings.limits.result if settings.store.kafka is None else 0,
            owner=self._owner, owner_fd=self.owner_fd, descriptor_limit=self.descriptor_limit,
            log_level=settings.log.level, interruptions=_interruptions(settings), resources=resources,
            schedules=configured_payloads(settings),
        )  # fmt: skip


def _interruptions(settings: Settings) -> dict[str, dict[str, float | None]]:
    """Return them as in WorkerOptions."""
    sections = {"": settings.workers, **settings.handlers}
    keys = ("soft_timeout", "cancel_grace")
    return {
        name: own
        for name, section in sections.items()
        if (own := {key: getattr(section, key) for key in keys if key in section.written})
    }
