"""pebble.ProcessPool. It has no store, so the client process has the workers."""

from __future__ import annotations

import atexit
from collections.abc import Sequence

from pebble import ProcessPool

from tests.benchmarks import tasks
from tests.benchmarks.peers.base import Payload, Task, current_deployment


class Jobs:
    def __init__(self, pool: ProcessPool, timeout: float | None) -> None:
        self._pool, self._timeout = pool, timeout

    def enqueue(self, task: Task, payload: Payload) -> None:
        self._pool.schedule(getattr(tasks, task), [dict(payload)], timeout=self._timeout)

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self.enqueue(task, payload)


def connect() -> Jobs:
    settings = current_deployment().settings
    pool = ProcessPool(settings.workers)
    atexit.register(pool.stop)
    return Jobs(pool, settings.timeout)
