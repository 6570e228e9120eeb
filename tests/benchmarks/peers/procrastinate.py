"""Procrastinate on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from procrastinate import App, PsycopgConnector, RetryStrategy

from tests.benchmarks import tasks
from tests.benchmarks.peers.base import Payload, Task, current_deployment

deployment = current_deployment()
app = App(connector=PsycopgConnector(conninfo=deployment.url))
retry = RetryStrategy(max_attempts=deployment.settings.retries) if deployment.settings.retries else False
for each in (tasks.noop, tasks.stamp, tasks.sleep, tasks.hang, tasks.die):
    app.task(name=each.__name__, retry=retry)(each)
# A lock allows one job at a time, and there is no higher limit.
app.task(name="limited", lock="limited" if deployment.settings.running == 1 else None)(tasks.limited)


class Jobs:
    def enqueue(self, task: Task, payload: Payload) -> None:
        app.tasks[task].defer(payload=dict(payload))

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> None:
        app.tasks[task].batch_defer(*({"payload": dict(payload)} for payload in payloads))


def connect() -> Jobs:
    app.open()
    if not app.check_connection():
        app.schema_manager.apply_schema()
    return Jobs()
