"""One consumer that handles the records of a topic itself, in a loop, and commits twice a second.

python -m tests.benchmarks.kafka_loop sleep|noop|read BOOTSTRAP TOPIC GROUP COUNT

It prints the seconds from the first record to the end of the last. `noop` decodes each record, `read` only takes it from the client:
the limit of the broker.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer

from tests.benchmarks import tasks

BATCH = 500
COMMIT_EVERY = 0.5


def loop(consumer: Any, count: int, handle: Callable[[Any], None] | None) -> float:
    """Return the seconds that `count` records took."""
    first, committed, done = 0.0, 0.0, 0
    while done < count:
        if (message := consumer.poll(1.0)) is None:
            continue
        first = first or time.monotonic()
        messages = [message, *consumer.consume(BATCH - 1, 0)]  # it would wait until it has them all
        if handle is not None:
            for message in messages:
                handle(json.loads(message.value()))
                if (now := time.monotonic()) - committed > COMMIT_EVERY:
                    consumer.commit(message, asynchronous=True)
                    committed = now
        done += len(messages)
    return time.monotonic() - first


if __name__ == "__main__":
    way, bootstrap, topic, group, number = sys.argv[1:]
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False, "session.timeout.ms": 6000})
    consumer.subscribe([topic])
    print(loop(consumer, int(number), None if way == "read" else getattr(tasks, way)))
    consumer.close()
