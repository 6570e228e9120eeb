"""A broker that is killed and started again with its data, while a supervisor works on its records."""

from __future__ import annotations

import signal

from tests.kafka.broker import Broker
from tests.kafka.supervised import Supervised
from tests.system.command import Command, wait_for


def test_records_that_end_while_the_broker_is_down_are_committed_when_it_is_back(
    durable_broker: Broker, command: Command, topic: str, group: str
) -> None:
    durable_broker.create_topic(topic)
    supervised = Supervised(command, durable_broker, topic, group)
    run = supervised.run()
    supervised.produce(*[None] * 10, *[{"files": "go"}] * 4, *[None] * 100)
    supervised.until_started(*range(14))
    durable_broker.kill()
    supervised.release("go")
    supervised.until_ended(*range(14))
    durable_broker.start()
    supervised.until_committed(114)
    supervised.produce(*[None] * 10)
    supervised.until_committed(124)
    assert supervised.starts() == dict.fromkeys(range(124), 1)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_a_record_that_fails_while_the_broker_is_down_is_a_dead_letter_when_it_is_back(
    durable_broker: Broker, command: Command, topic: str, group: str
) -> None:
    durable_broker.create_topic(topic)
    durable_broker.create_topic(f"{topic}.dlq")
    supervised = Supervised(command, durable_broker, topic, group)
    supervised.run()
    supervised.produce(None, {"files": "go", "failures": 9}, None)
    supervised.until_done_beyond(1, (2, 3))
    durable_broker.kill()
    supervised.release("go")
    wait_for(lambda: supervised.starts()[1] == 2, 10.0)
    durable_broker.start()
    supervised.until_committed(3, timeout=60.0)
    [message] = durable_broker.read(f"{topic}.dlq")
    assert dict(message.headers())["offset"] == b"1"
    assert supervised.starts() == {0: 1, 1: 2, 2: 1}


def test_the_records_done_beyond_the_committed_one_are_in_the_metadata_of_the_commit(
    durable_broker: Broker, command: Command, topic: str, group: str
) -> None:
    durable_broker.create_topic(topic)
    supervised = Supervised(command, durable_broker, topic, group)
    run = supervised.run()
    supervised.produce({"files": "go"}, *[None] * 50)
    supervised.until_done_beyond(0, (1, 51))
    supervised.release("go")
    supervised.until_done_beyond(51)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
