"""`supervisor dlq redrive --from-topic` against a real broker, and against the mock cluster for errors."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from supervisor.cli.app import run_command_line
from supervisor.cli.context import CommandContext
from supervisor.dead_letters.kafka_sink import KafkaSink
from supervisor.dead_letters.topic_reader import TopicReader
from supervisor.kafka import client as kafka_client
from supervisor.kafka.client import Publisher, Record, Refused
from tests.kafka.broker import Broker, unique_name
from tests.kafka.mock_cluster import MockCluster, read
from tests.kafka.raw_producer import produce_with_header
from tests.kafka.test_sink import HEADERS, dead_letter, of_other_store

GROUP = "supervisor-redrive"
ROOT = Path(__file__).parents[2]


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUPERVISOR_CONFIG", raising=False)

    def call(*arguments: object, timeout: float = 10.0) -> Answer:
        capfd.readouterr()
        context = CommandContext(store_timeout=timeout)
        return Answer(run_command_line(["dlq", "redrive", *map(str, arguments)], context), *capfd.readouterr())

    return call


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


def publish(bootstrap: str, *dead_letters: Any, **keys: Any) -> None:
    sink = KafkaSink(bootstrap, **(keys or {"topic_suffix": ".dlq"}))
    assert len(list(sink.publish(dead_letters))) == len(dead_letters)
    sink.close()


def values(broker: Broker, topic: str) -> list[bytes]:
    return sorted(message.value() for message in broker.read(topic))


def test_each_record_goes_back_to_its_source_byte_by_byte_and_only_once(broker: Broker, call: Call) -> None:
    one, two, dead = unique_name("one"), unique_name("two"), unique_name("dead")
    for name in (one, two, dead):
        broker.create_topic(name)
    publish(
        broker.bootstrap,
        dead_letter(1, b"\x80", b"\xff{", HEADERS, topic=one),
        dead_letter(2, None, None, topic=two),
        dead_letter(3, b"", b"", topic=two),
        topic=dead,
    )
    answer = call("--from-topic", dead, "--bootstrap", broker.bootstrap)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"1 record redriven to {one}\n2 records redriven to {two}\n"
    (first,) = broker.read(one)
    assert (first.key(), first.value(), first.headers()) == (b"\x80", b"\xff{", HEADERS)
    assert [(m.key(), m.value(), m.headers()) for m in broker.read(two)] == [(None, None, None), (b"", b"", None)]
    assert broker.committed(GROUP, dead)[0][0] == 3
    again = call("--from-topic", dead, "--bootstrap", broker.bootstrap)
    assert (again.code, again.out) == (0, f"no dead letters in {dead} that group {GROUP} has not redriven\n")


def test_a_record_goes_back_to_its_partition(broker: Broker, topic: str, call: Call) -> None:
    broker.create_topic(topic, 5)
    broker.create_topic(f"{topic}.dlq")
    publish(broker.bootstrap, *(dead_letter(id, f"{id}".encode(), topic=topic) for id in range(20)))
    assert call("--from-topic", f"{topic}.dlq", "--bootstrap", broker.bootstrap).code == 0
    assert [message.partition() for message in broker.read(topic)] == [3] * 20
    other = unique_name("other")
    broker.create_topic(other, 2)
    publish(broker.bootstrap, dead_letter(21, topic=other))
    assert call("--from-topic", f"{other}.dlq", "--bootstrap", broker.bootstrap).code == 0, "it has no partition 3"
    assert len(broker.read(other)) == 1


def test_a_limit_and_another_topic(broker: Broker, topic: str, call: Call) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq", 3)
    dead_letters = [dead_letter(id, f"{id}".encode(), f"{id:02}".encode(), topic="elsewhere") for id in range(10)]
    publish(broker.bootstrap, *dead_letters, topic=f"{topic}.dlq")
    options = ("--from-topic", f"{topic}.dlq", "--to", topic, "--bootstrap", broker.bootstrap)
    assert call(*options, "--dry-run").out == f"10 records would be redriven to {topic}\n"
    assert call(*options, "--dry-run", "--limit", 4).out == f"4 records would be redriven to {topic}\n"
    assert broker.committed(GROUP, f"{topic}.dlq") == {} and broker.read(topic) == []
    assert call(*options, "--limit", 3).out == f"3 records redriven to {topic}\n"
    assert call(*options).out == f"7 records redriven to {topic}\n"
    assert values(broker, topic) == [f"{id:02}".encode() for id in range(10)]


def test_a_record_of_another_program_needs_a_topic_and_keeps_its_headers(
    broker: Broker, topic: str, call: Call
) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq")
    broker.produce(f"{topic}.dlq", [(b"k", b"v", [("x-error-reason", b"theirs"), ("a", b"1")])])
    options = ("--from-topic", f"{topic}.dlq", "--bootstrap", broker.bootstrap)
    answer = call(*options)
    assert answer.code == 2
    assert "partition 0, offset 0: it has no header source-topic; name the topic with --to TOPIC" in answer.err
    assert call(*options, "--to", topic).code == 0
    (message,) = broker.read(topic)
    assert message.headers() == [("x-error-reason", b"theirs"), ("a", b"1")]


def test_a_job_of_another_store_is_named_and_holds_back_no_other(broker: Broker, topic: str, call: Call) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq")
    publish(broker.bootstrap, of_other_store(7), dead_letter(2, topic=topic), topic=f"{topic}.dlq")
    answer = call("--from-topic", f"{topic}.dlq", "--bootstrap", broker.bootstrap)
    assert (answer.code, answer.out) == (2, f"1 record redriven to {topic}\n")
    assert "offset 0: it is job 7 of another store; run it again there: supervisor dlq redrive 7" in answer.err
    assert len(broker.read(topic)) == 1


def test_a_record_whose_headers_the_client_can_not_read_holds_back_no_other(
    broker: Broker, topic: str, call: Call
) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq")
    produce_with_header(broker.bootstrap, f"{topic}.dlq", b"1", b"\xff")
    publish(broker.bootstrap, dead_letter(1, topic=topic))
    answer = call("--from-topic", f"{topic}.dlq", "--bootstrap", broker.bootstrap)
    assert "partition 0, offset 0: its headers can't be read" in answer.err
    assert len(broker.read(topic)) == 1


def test_a_value_reference_is_read_from_the_source(cluster: MockCluster, call: Call) -> None:
    cluster.create_topic("orders", 4)
    cluster.create_topic("orders.dlq")
    large = b"x" * 5000
    producer = Publisher(cluster.bootstrap, {})
    producer.publish([Record("orders", b"k", large, HEADERS[:3], partition=3) for _ in range(3)])
    producer.close()
    cluster.delete_records("orders", 3, 1)
    gone, there = dead_letter(-40, value=large), dead_letter(-39, value=large, headers=HEADERS[:3])
    other = dead_letter(-38, b"another key", large)
    publish(cluster.bootstrap, gone, there, other, topic_suffix=".dlq", kafka={"message.max.bytes": 2000})
    answer = call("--from-topic", "orders.dlq", "--bootstrap", cluster.bootstrap)
    assert (answer.code, answer.out) == (2, "1 record redriven to orders\n")
    assert "2 dead letters of orders.dlq can't be sent anywhere" in answer.err
    for offset in (0, 2):
        assert f"its record at orders/3/{offset}, which has the value, is no longer there" in answer.err
    *_, again = read(cluster.bootstrap, "orders", 3, partition=3)
    assert (again.offset(), again.key(), again.value(), again.headers()) == (3, b"k", large, HEADERS[:3])
    assert "no dead letters" in call("--from-topic", "orders.dlq", "--bootstrap", cluster.bootstrap).out


def test_what_comes_during_a_redrive_is_left_for_the_next(broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    broker.produce(topic, [(None, b"1", []), (None, b"2", [])])
    reader = TopicReader(broker.bootstrap, {}, unique_name("g"), 10.0)
    found: list[Any] = []
    for messages in reader.messages(topic, 1):
        if messages and not found:
            broker.produce(topic, [(None, b"3", [])])
        found += messages
    reader.close()
    assert [message.value() for message in found] == [b"1", b"2"]


def test_the_brokers_and_the_group_are_those_of_the_config(
    broker: Broker, topic: str, group: str, call: Call, tmp_path: Path
) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq")
    publish(broker.bootstrap, dead_letter(1, topic=topic))
    store = f"store: {{type: kafka, bootstrap: '{broker.bootstrap}', group: {group}, topics: [{topic}]}}"
    (tmp_path / "supervisor.yaml").write_text(store)
    assert call("--from-topic", f"{topic}.dlq").code == 0
    assert broker.committed(f"{group}-redrive", f"{topic}.dlq")[0][0] == 1
    sinks = (
        f"dlq: {{sinks: [{{type: file, path: a}}, {{type: kafka, bootstrap: '{broker.bootstrap}', topic: {topic}}}]}}"
    )
    (tmp_path / "supervisor.yaml").write_text(sinks)
    assert call("--from-topic", f"{topic}.dlq").code == 0
    assert broker.committed(GROUP, f"{topic}.dlq")[0][0] == 1
    (tmp_path / "supervisor.yaml").write_text("{}")
    answer = call("--from-topic", f"{topic}.dlq")
    assert answer.code == 2 and "name the brokers with --bootstrap" in answer.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--from-topic", "a b"), "--from-topic: 'a b' is not the name of a topic"),
        (("--from-topic", "a", "--to", "a"), "--to: expected another topic than --from-topic"),
        (("--from-topic", "a", "--queue", "b"), "expected no ids, no filter, --all"),
        (("--from-topic", "a", "7"), "expected no ids, no filter, --all, --force or --yes beside --from-topic"),
        (("--to", "a", "7"), "expected --to only beside --from-topic"),
        (("--from-topic", "a", "--bootstrap", "host"), "bootstrap: expected host:port"),
    ],
)
def test_a_mistake_is_named(call: Call, arguments: tuple[str, ...], problem: str) -> None:
    answer = call(*arguments)
    assert answer.code == 2 and problem in answer.err


def test_without_a_broker_the_code_is_75(call: Call, own_broker: Broker) -> None:
    own_broker.kill()
    answer = call("--from-topic", "t.dlq", "--bootstrap", own_broker.bootstrap, timeout=1.0)
    assert answer.code == 75
    assert f"{own_broker.bootstrap}: topic t.dlq: no broker has answered" in answer.err


def test_a_login_that_is_refused_is_a_mistake_and_not_an_outage(call: Call, broker: Broker, tmp_path: Path) -> None:
    login = "{security.protocol: SASL_PLAINTEXT, sasl.mechanism: SCRAM-SHA-256, sasl.username: me, sasl.password: correct-horse}"
    sink = f"{{type: kafka, bootstrap: '{broker.bootstrap}', topic: t, kafka: {login}}}"
    (tmp_path / "supervisor.yaml").write_text(f"dlq: {{sinks: [{sink}]}}")
    answer = call("--from-topic", "t.dlq", timeout=1.0)
    assert answer.code == 2 and "the brokers refuse the login" in answer.err
    assert "correct-horse" not in answer.err


def test_a_topic_that_is_not_there(call: Call, cluster: MockCluster) -> None:
    answer = call("--from-topic", "t.dlq", "--bootstrap", cluster.bootstrap)
    assert (answer.code, answer.err) == (2, "Error: topic t.dlq does not exist\n")


def committed(cluster: MockCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP})
    (place,) = consumer.committed([TopicPartition(topic, 0)], 10)
    consumer.close()
    return place.offset


def test_a_topic_that_refuses_stops_the_redrive(call: Call, cluster: MockCluster) -> None:
    for name in ("d", "good", "denied"):
        cluster.create_topic(name)
    dead_letters = [dead_letter(id, topic=name) for id, name in enumerate(("good", "good", "denied", "good"))]
    publish(cluster.bootstrap, *dead_letters, topic="d")
    cluster.fail_topic("denied", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    answer = call("--from-topic", "d", "--bootstrap", cluster.bootstrap)
    assert (answer.code, answer.out) == (2, "2 records redriven to good\n")
    assert "topic denied: the user of this client has no right to this topic" in answer.err
    assert committed(cluster, "d") == 2
    cluster.fail_topic("denied", 0)
    assert call("--from-topic", "d", "--bootstrap", cluster.bootstrap).out == (
        "1 record redriven to denied\n1 record redriven to good\n"
    )


def test_no_offset_is_committed_past_a_record_that_is_refused(
    call: Call, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("d")
    cluster.create_topic("orders")
    publish(cluster.bootstrap, *(dead_letter(id) for id in range(4)), topic="d")
    send = Publisher.publish

    def refuse_the_third(self: Publisher, records: Sequence[Record]) -> dict[int, Refused]:
        assert send(self, [*records[:2], *records[3:]]) == {}
        return {2: Refused("orders: refused")}

    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", refuse_the_third)
        answer = call("--from-topic", "d", "--to", "orders", "--bootstrap", cluster.bootstrap)
    assert (answer.code, answer.err) == (2, "Error: orders: refused\n")
    assert committed(cluster, "d") == 2
    answer = call("--from-topic", "d", "--to", "orders", "--bootstrap", cluster.bootstrap)
    assert answer.out == "2 records redriven to orders\n", "the third, and the fourth again"


def test_a_broker_that_stops_in_the_middle_is_code_75_and_loses_nothing(
    call: Call, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "DOWN_FOR", 0.2)
    cluster.create_topic("d")
    cluster.create_topic("orders")
    publish(cluster.bootstrap, dead_letter(1), dead_letter(2), topic="d")
    read = TopicReader.messages

    def stop_after_reading(self: TopicReader, topic: str, most: int) -> Iterator[list[Any]]:
        for messages in read(self, topic, most):
            if messages:
                cluster.set_down()
            yield messages

    monkeypatch.setattr(TopicReader, "messages", stop_after_reading)
    answer = call("--from-topic", "d", "--to", "orders", "--bootstrap", cluster.bootstrap, timeout=2.0)
    assert answer.code == 75 and "no broker has answered" in answer.err
    monkeypatch.setattr(TopicReader, "messages", read)
    cluster.set_up()
    answer = call("--from-topic", "d", "--to", "orders", "--bootstrap", cluster.bootstrap)
    assert answer.out == "2 records redriven to orders\n"


HANGS = """
import sys, time
from supervisor.dead_letters import topic_redrive
from supervisor.dead_letters.topic_reader import TopicReader
from supervisor.kafka.client import Publisher, Record, Refused
from supervisor.kafka.client import Publisher

topic_redrive.BATCH = 10
owner, name = {"publish": (Publisher, "publish"), "commit": (TopicReader, "commit")}[sys.argv.pop(1)]
original, calls = getattr(owner, name), []

def hangs_at_the_third(*arguments, **options):
    calls.append(1)
    if len(calls) == 3:
        print("hangs", flush=True)
        time.sleep(3600)
    return original(*arguments, **options)

setattr(owner, name, hangs_at_the_third)
from supervisor.cli import main
main()
"""


@pytest.mark.parametrize("where", ["publish", "commit"])
def test_a_redrive_that_is_killed_loses_nothing(broker: Broker, topic: str, where: str, call: Call) -> None:
    broker.create_topic(topic, 2)
    broker.create_topic(f"{topic}.dlq", 2)
    dead_letters = [dead_letter(id, f"{id}".encode(), f"{id:03}".encode(), topic=topic) for id in range(100)]
    publish(broker.bootstrap, *dead_letters)
    options = ["--from-topic", f"{topic}.dlq", "--bootstrap", broker.bootstrap]
    program = [sys.executable, "-c", HANGS, where, "dlq", "redrive", *options]
    with subprocess.Popen(program, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
            assert process.poll() is None
        finally:
            process.kill()
    sent_before = values(broker, topic)
    assert 0 < len(sent_before) < 100
    assert call(*options).code == 0
    found = Counter(values(broker, topic))
    assert sorted(found) == [f"{id:03}".encode() for id in range(100)]
    assert found.total() <= 110, "at most one batch is sent twice"
