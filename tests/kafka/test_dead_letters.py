"""From a record of a Kafka store to its dead-letter topic and back, in real supervisors."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.broker import Broker
from tests.kafka.test_sink import HEADERS
from tests.system.command import Command, Running, wait_for

JOBS = """
    from supervisor import handler

    @handler
    def never(job):
        raise ValueError("not yet")

    @handler
    def fine(job):
        pass
"""
VALUES = (None, b"", b"\x80", b"\x00\x00\x00\x00\x01avro", b"[1]", b'{"a": 1}')


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.close()


def write(command: Command, broker: Broker, topic: str, group: str, handler: str) -> None:
    store = {
        "type": "kafka", "bootstrap": broker.bootstrap, "group": group, "topics": {topic: handler},
        "commit_interval": "50ms", "kafka": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500},
    }  # fmt: skip
    retry = {"max_retries": 1, "backoff": {"base": "50ms", "max": "50ms", "jitter": "none"}}
    config = {"store": store, "retry": retry, "workers": {"count": 2}}
    command.write(json.dumps(config), {"jobs.py": JOBS})


def offset(broker: Broker, topic: str, group: str) -> int:
    return broker.committed(group, topic).get(0, (0, None))[0]


def stop(run: Running) -> None:
    run.signal(signal.SIGTERM)
    assert run.wait(30) == 0


def test_a_topic_with_nothing_but_records_that_fail(command: Command, broker: Broker, topic: str, group: str) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq")
    write(command, broker, topic, group, "never")
    for restart in range(2):
        broker.produce(topic, [(b"\xfe", b'{"a": 1}', HEADERS)])
        run = command.run()
        wait_for(lambda: offset(broker, topic, group) == restart + 1, timeout=30, every=0.2)  # noqa: B023
        stop(run)
    message, second = broker.read(f"{topic}.dlq")
    assert second.headers()[-2][1] == b"1", "each is there once"
    assert (message.key(), message.value(), message.headers()[: len(HEADERS)]) == (b"\xfe", b'{"a": 1}', HEADERS)
    added = dict(message.headers()[len(HEADERS) :])
    assert added.pop("epoch").isdigit()
    assert added == {
        "x-error-reason": b"exception: ValueError: not yet", "x-retry-attempt": b"2",
        "source-topic": topic.encode(), "partition": b"0", "offset": b"0",
    }  # fmt: skip


def test_what_can_not_be_decoded_goes_there_as_it_is(command: Command, broker: Broker, topic: str, group: str) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq")
    good = b'{"fine": true}'
    broker.produce(topic, [(None, value, []) for bad in VALUES for value in (bad, good)])
    write(command, broker, topic, group, "fine")
    run = command.run()
    wait_for(lambda: offset(broker, topic, group) == 2 * len(VALUES), timeout=30, every=0.2)
    stop(run)
    found: dict[Any, Any] = {dict(m.headers())["offset"]: (m.key(), m.value()) for m in broker.read(f"{topic}.dlq")}
    wrong = {str(2 * index).encode(): (None, value) for index, value in enumerate(VALUES[:4])}
    assert found == wrong


def test_a_dead_letter_is_redriven_once_its_handler_works(
    command: Command, broker: Broker, topic: str, group: str
) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq")
    broker.produce(topic, [(b"k", b'{"a": 1}', HEADERS)])
    write(command, broker, topic, group, "never")
    run = command.run()
    wait_for(lambda: offset(broker, topic, group) == 1, timeout=30, every=0.2)
    stop(run)
    write(command, broker, topic, group, "fine")
    assert command.ask("dlq", "redrive", "--from-topic", f"{topic}.dlq") == f"1 record redriven to {topic}\n"
    run = command.run()
    wait_for(lambda: offset(broker, topic, group) == 2, timeout=30, every=0.2)
    stop(run)
    assert [message.headers() for message in broker.read(topic)] == [HEADERS, HEADERS]
    assert len(broker.read(f"{topic}.dlq")) == 1
