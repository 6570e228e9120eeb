"""pyrallel-consumer, run by a Python that has it. This module imports nothing else than that and the tasks.

python -m tests.benchmarks.peers.pyrallel_consumer process|async BOOTSTRAP TOPIC GROUP [SETTING=NUMBER ...]
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pyrallel_consumer.config import KafkaConfig
from pyrallel_consumer.consumer import PyrallelConsumer
from pyrallel_consumer.dto import ExecutionMode, OrderingMode

from tests.benchmarks import tasks

BEST = {
    "process": {
        "batch_size": 1,
        "max_batch_wait_ms": 1,
        "worker_pool_size": 1024,
        "max_in_flight": 1000,
        "poll_batch_size": 1000,
    },
    "async": {"worker_pool_size": 1024, "max_in_flight": 1000, "poll_batch_size": 1000},
}
"""The fastest of those tried for short jobs of many keys. Batches go to one process each, so large ones leave others idle."""


def sleep(item: Any) -> None:
    tasks.sleep(json.loads(item.payload))


async def nap(item: Any) -> None:
    await tasks.nap(json.loads(item.payload))


def settings(mode: str, bootstrap: str, group: str, numbers: dict[str, int]) -> KafkaConfig:
    config = KafkaConfig()
    config.BOOTSTRAP_SERVERS, config.CONSUMER_GROUP = [bootstrap], group
    config.SESSION_TIMEOUT_MS, config.dlq_enabled = 6000, False
    config.parallel_consumer.ordering_mode = OrderingMode.KEY_HASH
    execution = config.parallel_consumer.execution
    execution.mode = ExecutionMode(mode)
    execution.process_config.process_count = 8
    for name, value in {**BEST[mode], **numbers}.items():
        places = (config.parallel_consumer, execution, execution.process_config)
        setattr(next(place for place in places if name in type(place).model_fields), name, value)
    return config


async def consume(mode: str, bootstrap: str, topic: str, group: str, numbers: dict[str, int]) -> None:
    worker = sleep if mode == "process" else nap
    consumer = PyrallelConsumer(settings(mode, bootstrap, group, numbers), worker, topic)
    await consumer.start()
    await consumer.wait_closed()


if __name__ == "__main__":
    mode, bootstrap, topic, group, *more = sys.argv[1:]
    numbers = {name: int(value) for name, value in (one.split("=") for one in more)}
    asyncio.run(consume(mode, bootstrap, topic, group, numbers))
