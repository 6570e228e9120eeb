"""Celery on Redis, prefork."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery

from tests.benchmarks import tasks
from tests.benchmarks.peers.base import Payload, Task, current_deployment

deployment = current_deployment()
app = Celery("bench", broker=deployment.url.replace("unix://", "redis+socket://"))
app.conf.update(
    task_ignore_result=True,
    task_time_limit=deployment.settings.timeout,
    task_acks_late=deployment.settings.late,
    task_reject_on_worker_lost=deployment.settings.late,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
if deployment.settings.prefetch is not None:
    app.conf.worker_prefetch_multiplier = deployment.settings.prefetch

for each in (tasks.noop, tasks.stamp, tasks.sleep, tasks.hang, tasks.die):
    app.task(name=each.__name__)(each)


@app.task(name="nap")
def nap(payload: Payload) -> None:
    tasks.sleep({"seconds": payload["seconds"]})
    if "to" in payload:
        tasks.stamp(payload)


@app.task(name="flaky", bind=True, max_retries=deployment.settings.retries)
def flaky(self: Any, payload: Payload) -> None:
    try:
        tasks.flaky(payload, self.request.retries + 1)
    except tasks.Again as again:
        raise self.retry(countdown=again.delay) from again


class Jobs:
    def enqueue(self, task: Task, payload: Payload) -> None:
        app.tasks[task].delay(payload)

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self.enqueue(task, payload)


def connect() -> Jobs:
    return Jobs()
