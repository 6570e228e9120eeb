"""RQ, with its forking worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from rq import Queue, Retry

from tests.benchmarks import tasks
from tests.benchmarks.peers.base import Payload, Task, current_deployment


class Jobs:
    def __init__(self, queue: Queue, timeout: float | None, retries: int) -> None:
        self._queue = queue
        self._options: dict[str, Any] = {}
        if timeout is not None:
            self._options["timeout"] = timeout
        if retries:
            self._options["retry"] = Retry(max=retries)

    def enqueue(self, task: Task, payload: Payload) -> None:
        options = {("job_" if key == "timeout" else "") + key: value for key, value in self._options.items()}
        self._queue.enqueue(getattr(tasks, task), payload, **options)

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        function = getattr(tasks, task)
        self._queue.enqueue_many(
            [Queue.prepare_data(function, args=(payload,), **self._options) for payload in payloads]
        )


def connect() -> Jobs:
    deployment = current_deployment()
    return Jobs(
        Queue(connection=Redis.from_url(deployment.url)), deployment.settings.timeout, deployment.settings.retries
    )
