"""SAQ on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue

from tests.benchmarks import tasks
from tests.benchmarks.peers.base import Payload, Task, current_deployment

deployment = current_deployment()


def queue() -> RedisQueue:
    return RedisQueue(Redis.from_url(deployment.url))


async def nap(_context: Any, *, payload: Payload) -> None:
    await tasks.nap(payload)


class Jobs:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._queue = queue()
        self._loop.run_until_complete(self._queue.connect())

    def enqueue(self, task: Task, payload: Payload) -> None:
        self._loop.run_until_complete(self._queue.enqueue(task, payload=payload, timeout=0))

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        async def all_of_them() -> None:
            for payload in payloads:
                await self._queue.enqueue(task, payload=payload, timeout=0)

        self._loop.run_until_complete(all_of_them())


def connect() -> Jobs:
    return Jobs()


async def work() -> None:
    await Worker(queue(), [("nap", nap)], concurrency=deployment.settings.concurrency).start()


if __name__ == "__main__":
    asyncio.run(work())
