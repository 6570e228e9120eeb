"""The tasks of Huey, for both of its storages."""

from __future__ import annotations

from collections.abc import Sequence

from huey.api import Huey, TaskWrapper

from tests.benchmarks import tasks
from tests.benchmarks.peers.base import Payload, Task, current_deployment


class Jobs:
    def __init__(self, huey: Huey) -> None:
        settings = current_deployment().settings
        options = {"timeout": settings.timeout, "retries": settings.retries}
        self._tasks: dict[str, TaskWrapper] = {
            each.__name__: huey.task(**options)(each)
            for each in (tasks.noop, tasks.stamp, tasks.sleep, tasks.hang, tasks.die)
        }

    def enqueue(self, task: Task, payload: Payload) -> None:
        self._tasks[task](payload)

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self.enqueue(task, payload)
