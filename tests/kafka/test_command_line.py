"""Commands on a Kafka store that they do not join, with a real broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor import Client
from supervisor.errors import Unsupported
from tests.kafka.broker import Broker
from tests.unit.cli.conftest import Call, call, scanned, write

__all__ = ["call", "scanned"]

PLUGIN = """
from supervisor import handler

@handler
def take(job): ...

@handler
def other(job): ...
"""


@pytest.fixture
def kafka(broker: Broker, topic: str, group: str, call: Call, scanned: None) -> Call:
    """Commands with a store of two topics: that of the fixture, and `-mixed` without a handler."""
    broker.create_topic(topic, 3)
    broker.create_topic(f"{topic}-mixed")
    write("plugins/handlers.py", PLUGIN)
    write("supervisor.yaml", config(broker, topic, group))
    return call


def config(broker: Broker, topic: str, group: str, more: str = "") -> str:
    topics = f"{{{topic}: take, {topic}-mixed: null}}"
    return f"store: {{type: kafka, bootstrap: '{broker.bootstrap}', group: {group}, topics: {topics}{more}}}\n"


def test_a_check_shows_the_topics_and_joins_nothing(kafka: Call, broker: Broker, topic: str, group: str) -> None:
    broker.create_topic(f"{topic}.dlq")
    answer = kafka("check")
    shown = f"Kafka at {broker.bootstrap}, group {group}"
    assert answer.code == 0, answer.err
    assert [line for line in answer.lines if line.startswith("store: ")][:5] == [
        f"store: {shown}: reachable",
        f"store: topic {topic}: 3 partitions, handler take, dead letters to {topic}.dlq",
        f"store: topic {topic}-mixed: 1 partition, a record names its handler in the header handler, dead letters to "
        f"{topic}-mixed.dlq, which does not exist: create it, unless the brokers create topics",
        f"store: group {group}: the brokers list no member",
        "store: commands and clients can't list jobs, find jobs, show jobs, wait for jobs, cancel jobs, retry jobs, pause or "
        "resume queues, show failures, show which sinks dead letters wait for, show how long jobs have waited, count jobs: "
        "its jobs are in the memory of the supervisor that runs them; ask that one by HTTP (http.listen)",
    ]
    groups = broker.admin().list_consumer_groups().result().valid
    assert group not in [each.group_id for each in groups]


def test_a_check_names_topics_that_do_not_exist_and_handlers_that_no_plugin_has(
    kafka: Call, broker: Broker, topic: str, group: str
) -> None:
    text = config(broker, topic, group).replace(f"{topic}-mixed: null", f"{topic}-none: tale")
    write("supervisor.yaml", f"{text}dlq: {{enabled: false}}")
    answer = kafka("check")
    assert answer.code == 2
    assert (
        f"Error: supervisor.yaml: store.topics.{topic}-none: no plugin has the handler tale, did you mean 'take'?"
        in answer.err
    )
    assert f": no topic {topic}-none: create it, or correct store.topics" in answer.err
    assert f"store: topic {topic}-none: it does not exist, handler tale, no dead letters" in answer.lines


def test_jobs_are_records_of_the_topic_of_their_handler(kafka: Call, broker: Broker, topic: str) -> None:
    assert kafka("enqueue", "take", '{"n": 1}').code == 0
    assert kafka("enqueue", "other", "7").code == 0
    assert [message.value() for message in broker.read(topic)] == [b'{"n":1}']
    assert [(m.value(), m.headers()) for m in broker.read(f"{topic}-mixed")] == [(b"7", [("handler", b"other")])]
    rows = {line.split()[0]: line.split()[1] for line in kafka("queues", "list").lines[1:]}
    assert rows == {topic: "1", f"{topic}-mixed": "1"}
    assert kafka("status", "--check").out == "no supervisor is running: start one with: supervisor run\n"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["enqueue", "take", "--priority", "1"], "enqueue with priority: leave it out"),
        (["enqueue", "take", "--delay", "1s"], "enqueue with delay: leave it out"),
        (["enqueue", "take", "--max-retries", "1"], "enqueue with max_retries: leave it out"),
        (["enqueue", "take", "--timeout", "1s"], "enqueue with timeout: leave it out"),
        (["jobs", "list"], "find jobs: its jobs are in the memory"),
        (["jobs", "wait", "1"], "wait for jobs: its jobs are in the memory"),
        (["jobs", "delete", "1"], "delete jobs: cancel them"),
        (["dlq", "redrive", "--all"], "redrive dead letters in place: send them back"),
        (["dlq", "purge"], "purge dead letters: delete the records"),
        (["dlq", "drop-sink", "x"], "show which sinks dead letters wait for: its jobs are"),
        (["queues", "pause", "q"], "pause or resume queues: its jobs are"),
        (
            ["copy", "--from", "sqlite:///jobs.db"],
            "give or take all of its jobs: copy is only for SQLite and PostgreSQL",
        ),
    ],
)
def test_a_command_that_it_does_not_support_says_what_to_do_instead(
    kafka: Call, arguments: list[str], what: str, tmp_path: Path
) -> None:
    if arguments[0] == "copy":
        with Client(f"sqlite:///{tmp_path}/jobs.db", create=True):
            pass
    answer = kafka(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"Error: this store can't {what}")
    assert answer.err.count("\n") == 1


def test_a_client_enqueues_and_can_do_nothing_else(kafka: Call, broker: Broker, topic: str) -> None:
    with Client() as client:
        assert len(set(client.enqueue_many([("take", n) for n in range(5)]))) == 5
        for call in (lambda: client.job(1), lambda: client.cancel(1), lambda: client.result(1)):
            with pytest.raises(Unsupported, match="ask that one by HTTP"):
                call()
    assert sorted(message.value() for message in broker.read(topic)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_mistake_in_the_settings_of_librdkafka_is_named_without_secrets(
    kafka: Call, broker: Broker, topic: str, group: str
) -> None:
    write(
        "supervisor.yaml", config(broker, topic, group, ", kafka: {sesion.timeout.ms: 1, sasl.password: sesame-0815}")
    )
    for arguments in (["check"], ["enqueue", "take"], ["status"], ["run"]):
        answer = kafka(*arguments)
        assert answer.code == 2, arguments
        assert "sesion.timeout.ms" in answer.err, arguments
        assert "Traceback" not in answer.err, arguments
        assert "sesame" not in answer.out + answer.err


def test_a_client_has_no_threads_during_a_fork_and_enqueues_after_it(kafka: Call, broker: Broker, topic: str) -> None:
    """The child would lack the threads, and keep the locks that they held."""
    code = """
import os
from pathlib import Path

def print_threads():  # runs last, since it is registered first
    print(*sorted(path.read_text() for path in Path("/proc/self/task").glob("*/comm")), flush=True)

os.register_at_fork(before=print_threads)
from supervisor import Client

client = Client()
client.enqueue("take", "before")
pid = os.fork()
client.enqueue("take", "in the child" if pid == 0 else "in the parent")
if pid:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "rdk" not in ended.stdout and len(ended.stdout.split()) == 1, "a thread of librdkafka"
    assert sorted(message.value() for message in broker.read(topic)) == [
        b'"before"',
        b'"in the child"',
        b'"in the parent"',
    ]
