"""The sink of type kafka behind a SQLite store, in real supervisors."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.broker import Broker, unique_name
from tests.system.command import Command, wait_for

PASSWORD = "correct-horse-battery"
JOBS = """
    import os, sys

    from supervisor import handler

    @handler(max_retries=0)
    def fails(job):
        raise ValueError("never")

    @handler
    def modules(job):
        return "confluent_kafka" in sys.modules

    @handler
    def publishes(job):
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": job.payload["bootstrap"]})
        producer.produce(job.payload["topic"], b"by a worker")
        return producer.flush(10)
"""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.close()


def write(command: Command, broker: Broker, topic: str, more: str = "") -> None:
    sink = {"type": "kafka", "bootstrap": broker.bootstrap, "topic": topic, "kafka": {"sasl.password": PASSWORD}}
    command.write(f"workers: {{count: 2}}\ndlq: {{sinks: [{json.dumps(sink)}]}}\n{more}", {"jobs.py": JOBS})


def state(command: Command, id: int) -> Any:
    return command.job(id)["dead_letter"]


def test_a_dead_letter_waits_for_the_broker_and_other_jobs_do_not(
    command: Command, own_broker: Broker, topic: str
) -> None:
    write(command, own_broker, topic)
    own_broker.kill()
    sup = command.run()
    ids = [command.enqueue("fails", {"n": n}) for n in range(3)]
    refused = sup.logged("no broker has answered")
    assert own_broker.bootstrap in refused and f"topic {topic}" in refused
    assert command.until(command.enqueue("modules"), "succeeded")["result"] is False
    assert {state(command, id) for id in ids} == {"pending"}
    own_broker.start()
    own_broker.create_topic(topic)
    wait_for(lambda: {state(command, id) for id in ids} == {"delivered"}, timeout=60)
    sup.signal(signal.SIGTERM)
    assert sup.wait() == 0
    found = [json.loads(message.value()) for message in own_broker.read(topic)]
    assert {(job["id"], job["payload"]["n"]) for job in found} == set(zip(ids, range(3), strict=True))
    assert PASSWORD not in sup.log + sup.out


def test_a_broker_that_hangs_does_not_hold_up_the_end(command: Command, own_broker: Broker, topic: str) -> None:
    own_broker.create_topic(topic)
    write(command, own_broker, topic, "shutdown: {grace: 1s}\n")
    sup = command.run()
    first = command.enqueue("fails")
    wait_for(lambda: state(command, first) == "delivered")
    own_broker.freeze()
    id = command.enqueue("fails")
    command.until(id, "failed")
    sup.signal(signal.SIGTERM)
    began = time.monotonic()
    sup.wait()
    assert time.monotonic() - began < 10
    assert state(command, id) == "pending"
    own_broker.thaw()
    command.run()
    wait_for(lambda: state(command, id) == "delivered", timeout=60)


def test_a_handler_may_use_its_own_client_in_a_worker_of_any_age(command: Command, broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    dead = unique_name("dead")
    broker.create_topic(dead)
    write(command, broker, dead)
    command.config.write_text(command.config.read_text().replace("{count: 2}", "{count: 2, max_jobs: 1}"))
    sup = command.run()
    failed = command.enqueue("fails")
    wait_for(lambda: state(command, failed) == "delivered")
    ids = [command.enqueue("publishes", {"bootstrap": broker.bootstrap, "topic": topic}) for _ in range(20)]
    for id in ids:
        assert command.until(id, "succeeded", timeout=60)["result"] == 0
    sup.signal(signal.SIGTERM)
    assert sup.wait() == 0
    assert len(broker.read(topic)) == 20
    assert "killed" not in sup.log
