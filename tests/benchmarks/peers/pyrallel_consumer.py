"""pyrallel-consumer, with 8 processes in process mode. Its own Python runs this module, which imports nothing else of ours but the
tasks.

python -m tests.benchmarks.peers.pyrallel_consumer process|async tuned|default BOOTSTRAP TOPIC GROUP
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

SHARDS = 1024
"""Of the keys, of which each has one job at a time. The default of 8 has several keys in most shards."""
TUNED = {
    "process": {"worker_pool_size": SHARDS, "poll_batch_size": 5_000, "max_in_flight": 5_000},
    "async": {"worker_pool_size": SHARDS, "poll_batch_size": 20_000, "max_in_flight": 30_000},
}
"""The fastest of those tried. `batch_size` of 1 to 128 and `max_batch_wait_ms` of 1 to 5 were not better than the defaults, 64 and 5."""


def sleep(item: Any) -> None:
    tasks.sleep(json.loads(item.payload))


async def nap(item: Any) -> None:
    await tasks.nap(json.loads(item.payload))


def settings(mode: str, tuned: bool, bootstrap: str, group: str) -> KafkaConfig:
    config = KafkaConfig()
    config.BOOTSTRAP_SERVERS, config.CONSUMER_GROUP = [bootstrap], group
    config.SESSION_TIMEOUT_MS, config.dlq_enabled = 6000, False
    consumer = config.parallel_consumer
    consumer.ordering_mode, consumer.execution.mode = OrderingMode.KEY_HASH, ExecutionMode(mode)
    consumer.execution.process_config.process_count = 8
    if tuned:
        consumer.worker_pool_size = TUNED[mode]["worker_pool_size"]
        consumer.poll_batch_size = TUNED[mode]["poll_batch_size"]
        consumer.execution.max_in_flight = TUNED[mode]["max_in_flight"]
    return config


async def consume(mode: str, tuned: bool, bootstrap: str, topic: str, group: str) -> None:
    worker = sleep if mode == "process" else nap
    consumer = PyrallelConsumer(settings(mode, tuned, bootstrap, group), worker, topic)
    await consumer.start()
    await consumer.wait_closed()


if __name__ == "__main__":
    mode, how, bootstrap, topic, group = sys.argv[1:]
    asyncio.run(consume(mode, how == "tuned", bootstrap, topic, group))
