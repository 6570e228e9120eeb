"""The AsyncClient: the Client for programs with an event loop, which none of its calls blocks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, TypeVar

from supervisor.client import tracing
from supervisor.client.by_filter import ByFilter, Change
from supervisor.client.client import Client, Enqueuer
from supervisor.client.ended_jobs import Wait, value_of
from supervisor.client.new_jobs import AnyJob
from supervisor.client.shared_looks import SharedLooks
from supervisor.client.workflow import AsyncWorkflow, Batch
from supervisor.config.settings import Settings
from supervisor.stores.records import EnqueueRow

Answer = TypeVar("Answer")


class AsyncClient(Enqueuer[Coroutine[Any, Any, int]], ByFilter[Coroutine[Any, Any, int]]):
    """A Client whose calls are awaited; the arguments are the same. They run one by one, in a thread of the client.

    A call whose task is cancelled goes on in the thread: the job may be enqueued all the same.
    """

    def __init__(self, url: str | Settings | None = None, *, create: bool = False, timeout: float = 30.0) -> None:
        self._client = Client(url, create=create, timeout=timeout)
        self._settings = self._client._settings
        self._threads: tuple[int, ThreadPoolExecutor] | None = None  # with the process that has the thread
        self._looks: SharedLooks | None = None

    async def __aenter__(self) -> AsyncClient:
        await self._run(self._client.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _enqueue_one(self, row: EnqueueRow, connection: Any) -> int:
        return await self._run(self._client._enqueue_one, row, connection)

    async def enqueue_many(self, jobs: Iterable[AnyJob], *, connection: Any = None) -> list[int]:
        """Enqueue jobs, all or nothing, as Client.enqueue_many does. The jobs are checked in the thread."""
        return await self._run(lambda: self._client.enqueue_many(jobs, connection=connection))

    def workflow(self, *, connection: Any = None) -> AsyncWorkflow:
        """Return a workflow to add jobs to, for `async with`; see Client.workflow."""
        return AsyncWorkflow(self._settings, lambda batch: self._run(self._client._enqueue, batch, connection))

    async def enqueue_batch(
        self, jobs: Iterable[AnyJob], *, on_success: str | AnyJob | None = None,
        on_finished: str | AnyJob | None = None, connection: Any = None,
    ) -> Batch:  # fmt: skip
        """Enqueue jobs, and jobs that run after them, as Client.enqueue_batch does."""
        return await self._run(
            lambda: self._client.enqueue_batch(
                jobs, on_success=on_success, on_finished=on_finished, connection=connection
            )
        )

    async def counts(self, ids: Iterable[int]) -> dict[str, int]:
        """Return how many of these jobs are in each state, as Client.counts does."""
        return await self._run(self._client.counts, ids)

    async def job(self, id: int) -> dict[str, Any] | None:
        """Return the job as Client.job does; None if there is none."""
        return await self._run(self._client.job, id)

    async def cancel(self, id: int) -> bool:
        """Cancel the job, and return whether this call did it, as Client.cancel does."""
        return await self._run(self._client.cancel, id)

    async def _change_jobs(self, change: Change) -> int:
        return await self._run(change.run, self._client._ask)

    async def result(self, id: int, timeout: float | str | None = None) -> Any:
        """Wait until the job has ended, and return its result or raise an error, as Client.result does. All tasks that wait share the
        looks at the store, between which other calls are made."""
        outcomes = [outcome async for _, outcome in self.results([id], timeout)]
        return value_of(outcomes[0])

    def results(self, ids: Iterable[int], timeout: float | str | None = None) -> AsyncIterator[tuple[int, Any]]:
        """Yield (id, result) of each job once it has ended, as Client.results does, for `async for`."""
        return self._results(Wait(ids, timeout, self._client._access.timeout, time.monotonic()))

    async def _results(self, wait: Wait) -> AsyncIterator[tuple[int, Any]]:
        if self._looks is None or self._looks.loop is not asyncio.get_running_loop():
            self._looks = SharedLooks(partial(self._client._ask_once, inf), self._run)
        async with aclosing(self._looks.ended(wait)) as jobs:
            async for ended in jobs:
                yield ended.id, ended.outcome

    async def close(self) -> None:
        """Disconnect, after the calls that are under way; the next use connects again."""
        await self._run(self._client.close)
        threads, self._threads = self._threads, None
        if threads is not None:
            threads[1].shutdown(wait=False)

    async def _run(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(1, "supervisor-client")
        if tracing.sender is not None:  # the span of the caller is in its context
            function, arguments = copy_context().run, (function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads[1], function, *arguments)
