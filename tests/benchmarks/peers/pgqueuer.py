"""PgQueuer on PostgreSQL with asyncpg, as in its documentation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

from tests.benchmarks import tasks
from tests.benchmarks.peers.base import Payload, Task, current_deployment

BATCH = 100
"""Number of jobs that a process takes at once; the default of PgQueuer is 10."""

deployment = current_deployment()


@asynccontextmanager
async def serve() -> AsyncIterator[PgQueuer]:
    """Set up the queue of a worker process."""
    connection = await asyncpg.connect(deployment.url)
    try:
        queue = PgQueuer(AsyncpgDriver(connection))
        for task in (tasks.noop, tasks.stamp, tasks.sleep, tasks.hang, tasks.die):
            queue.entrypoint(task.__name__)(_entrypoint(task))
        queue.entrypoint("nap")(_nap)
        queue.entrypoint("limited", concurrency_limit=deployment.settings.running)(_limited)
        yield queue
    finally:
        await connection.close()


def _entrypoint(task: Callable[[Payload], None]) -> Callable[[Any], Any]:
    async def run(job: Any) -> None:
        task(json.loads(job.payload))

    return run


async def _nap(job: Any) -> None:
    await tasks.nap(json.loads(job.payload))


async def _limited(job: Any) -> None:
    await tasks.limited(json.loads(job.payload))


class Jobs:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._queries = Queries(AsyncpgDriver(self._loop.run_until_complete(asyncpg.connect(deployment.url))))
        self._loop.run_until_complete(self._queries.install())

    def enqueue(self, task: Task, payload: Payload) -> None:
        self._loop.run_until_complete(self._queries.enqueue(task, json.dumps(payload).encode()))

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        texts = [json.dumps(payload).encode() for payload in payloads]
        self._loop.run_until_complete(self._queries.enqueue([task] * len(texts), texts, [0] * len(texts)))


def connect() -> Jobs:
    return Jobs()


async def work() -> None:
    async with serve() as queue:
        if deployment.settings.lost_after is None:
            await queue.run(batch_size=BATCH)
        else:
            await queue.run(batch_size=BATCH, heartbeat_timeout=timedelta(seconds=deployment.settings.lost_after))


if __name__ == "__main__":
    asyncio.run(work())
