"""Dramatiq on Redis."""

from __future__ import annotations

from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

from tests.benchmarks import tasks
from tests.benchmarks.peers.base import Payload, Task, current_deployment

deployment = current_deployment()
broker = RedisBroker(url=deployment.url)
if deployment.settings.retries:
    broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)

options = {"max_retries": deployment.settings.retries}
if deployment.settings.timeout is not None:
    options["time_limit"] = int(deployment.settings.timeout * 1000)
actors = {
    each.__name__: dramatiq.actor(each, **options)
    for each in (tasks.noop, tasks.stamp, tasks.sleep, tasks.hang, tasks.die)
}


def flaky(payload: Payload) -> None:
    message = CurrentMessage.get_current_message()
    try:
        tasks.flaky(payload, message.options.get("retries", 0) + 1)
    except tasks.Again as again:
        raise dramatiq.Retry(str(again), delay=int(again.delay * 1000)) from again


actors["flaky"] = dramatiq.actor(flaky, **options)


class Jobs:
    def enqueue(self, task: Task, payload: Payload) -> None:
        actors[task].send(payload)

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self.enqueue(task, payload)


def connect() -> Jobs:
    return Jobs()
