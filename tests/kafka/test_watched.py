"""What a real supervisor shows of its group: the log, the metrics, the problems, and the answers to commands."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.http.health import readiness
from supervisor.kafka.events import GroupEvent, OffsetReset, OffsetsCommitted
from supervisor.telemetry import LogSubscriber
from tests.kafka.broker import QUIET, Broker
from tests.kafka.mock_cluster import MockCluster
from tests.system.command import Command, Running, wait_for
from tests.system.test_http import Site, served

if TYPE_CHECKING:
    from supervisor.stores.kafka.consumer import ConsumerLimits, GroupConsumer
    from supervisor.stores.kafka.state import KafkaState

JOBS = """
    import os, time
    from supervisor import handler, hookimpl

    @hookimpl
    def supervisor_events(events):
        with open("events", "a") as file:
            for event in events:
                print(type(event).__name__, file=file)

    @handler
    def waits(job):
        while not os.path.exists("go"):
            time.sleep(0.01)

    @handler
    def never(job):
        raise ValueError("not yet")
"""
SLOW = 40.0
"""Seconds for a group to change, and for what is reported only once it lasts."""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.close()


def write(command: Command, bootstrap: str, topic: str, group: str, handler: str = "waits") -> None:
    kafka = {
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": "cooperative-sticky",
    }
    store = {
        "type": "kafka", "bootstrap": bootstrap, "group": group, "topics": {topic: handler}, "commit_interval": "50ms",
        "kafka": kafka,
    }  # fmt: skip
    config = {
        "store": store, "retry": {"max_retries": 0}, "workers": {"count": 2}, "http": {"listen": "127.0.0.1:0"},
        "log": {"level": "debug"},
    }  # fmt: skip
    command.write(json.dumps(config), {"jobs.py": JOBS})


def start(command: Command) -> tuple[Running, Site]:
    run = command.run()
    site = served(command, run)
    run.logged("partitions assigned", SLOW)
    wait_for(lambda: site.ask("/readyz").status == 200, SLOW, 0.1)
    return run, site


def stop(run: Running) -> None:
    run.signal(signal.SIGTERM)
    assert run.wait(SLOW) == 0, run.log
    assert "Traceback" not in run.log, run.log


def samples(site: Site, name: str) -> dict[str, float]:
    """Return the values of a metric by partition."""
    pattern = rf'^supervisor_kafka_{name}\{{partition="(\d+)",topic="[^"]+"\}} (\S+)$'
    return {number: float(value) for number, value in re.findall(pattern, site.ask("/metrics").body, re.M)}


def counter(site: Site, name: str) -> float:
    (value,) = re.findall(rf"^supervisor_kafka_{name}_total (\S+)$", site.ask("/metrics").body, re.M)
    return float(value)


def reasons(site: Site) -> dict[str, str]:
    return {each["reason"]: each["message"] for each in site.ask("/readyz").body["reasons"]}


def problems(site: Site) -> dict[str, str]:
    return {each["kind"]: each["message"] for each in site.ask("/api/status").body["problems"]}


def produce(bootstrap: str, topic: str, partition: int, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for _ in range(count):
        producer.produce(topic, b"{}", partition=partition)
    assert producer.flush(SLOW) == 0


def test_failing_commits_and_unavailable_brokers_are_reported_and_their_end_too(
    command: Command, mock_cluster: MockCluster, topic: str, group: str
) -> None:
    from confluent_kafka import KafkaError

    mock_cluster.first_join_delay(100)
    mock_cluster.create_topic(topic)
    mock_cluster.create_topic(f"{topic}.dlq")
    write(command, mock_cluster.bootstrap, topic, group)
    (command.folder / "go").touch()
    run, site = start(command)
    mock_cluster.inject("OffsetCommit", [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 5000)
    produce(mock_cluster.bootstrap, topic, 0, 1)
    wait_for(lambda: "commits" in reasons(site), SLOW, 0.1)
    assert "no right to this topic" in reasons(site)["commits"]
    wait_for(lambda: "no right to this topic" in problems(site).get("commits", ""))
    assert run.log.count("WARNING offsets not committed") == 1 and f"of {topic}/0, and" in run.log
    assert counter(site, "commit_failures") > 1
    assert "All well" not in site.ask("/", Accept="text/html").body

    mock_cluster.clear("OffsetCommit")
    wait_for(lambda: site.ask("/readyz").status == 200, SLOW, 0.1)
    run.logged("INFO offsets are committed again, after")
    wait_for(lambda: samples(site, "committed_offset") == {"0": 1.0})
    wait_for(lambda: not problems(site))

    mock_cluster.set_down()
    wait_for(lambda: "no broker has answered" in reasons(site).get("store", ""), SLOW, 0.1)
    page = site.ask("/", Accept="text/html")  # its jobs are in memory
    assert page.status == 200 and "no broker has answered" in page.body
    assert site.ask("/api/jobs").status == site.ask("/api/status").status == 200
    refused = site.ask("/api/jobs/1/cancel", "POST", {}, Content_Type="application/json")
    assert refused.status == 503 and "no broker has answered" in refused.body["error"]
    mock_cluster.set_up()
    wait_for(lambda: site.ask("/readyz").status == 200, SLOW, 0.1)
    stop(run)
    lines = [line.partition(" ")[2] for line in run.log.splitlines()]
    assert f"INFO partitions given up: {topic}/0" in lines
    assert lines.index(f"INFO partitions given up: {topic}/0") < lines.index("INFO supervisor stopped: exit code 0")
    received = {*(command.folder / "events").read_text().split()}
    assert {"PartitionsAssigned", "GroupFigures", "CommitFailed", "OffsetsCommitted", "PartitionsRevoked"} <= received


def test_a_group_that_gives_no_partitions_is_a_problem_until_it_does(
    mock_cluster: MockCluster, topic: str, group: str
) -> None:
    from supervisor.stores.kafka.consumer import ConsumerLimits

    mock_cluster.first_join_delay(3000)
    mock_cluster.create_topic(topic)
    _, consumer, _ = a_consumer(mock_cluster, topic, group, ConsumerLimits(join=0.2))
    consumer.start()

    def answer() -> dict[str, Any]:
        return readiness("running", [problem._asdict() for problem in consumer.problems()])

    wait_for(lambda: not answer()["ready"])
    (reason,) = answer()["reasons"]
    assert reason["reason"] == "group" and f"the group {group} has given no partition" in reason["message"]
    wait_for(lambda: answer()["ready"], SLOW)
    assert consumer.stop(SLOW)


def test_a_commit_that_is_under_way_at_the_end_and_fails_is_made_again(
    mock_cluster: MockCluster, topic: str, group: str
) -> None:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    from supervisor.jobs import JobState
    from supervisor.stores.kafka.consumer import USUAL_LIMITS

    mock_cluster.first_join_delay(100)
    mock_cluster.create_topic(topic)
    produce(mock_cluster.bootstrap, topic, 0, 3)
    state, consumer, emitted = a_consumer(mock_cluster, topic, group, USUAL_LIMITS)
    consumer.start()
    wait_for(lambda: len(state.jobs) == 3 and OffsetsCommitted({f"{topic}/0": 0}) in emitted, SLOW)
    mock_cluster.count_requests()
    mock_cluster.inject("OffsetCommit", [KafkaError.TOPIC_AUTHORIZATION_FAILED])
    mock_cluster.delay(300)
    with state.transaction():
        for job in list(state.jobs.values()):
            state.change(job, state=JobState.SUCCEEDED)
    wait_for(lambda: "OffsetCommit" in mock_cluster.requests(), SLOW)
    assert consumer.stop(SLOW)
    mock_cluster.delay(0)
    client = Consumer({"bootstrap.servers": mock_cluster.bootstrap, "group.id": group, **QUIET})
    assert [it.offset for it in client.committed([TopicPartition(topic, 0)], SLOW)] == [3], emitted
    client.close()


def test_records_that_were_deleted_before_they_were_read_are_reported_with_their_number(
    mock_cluster: MockCluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    from supervisor.stores.kafka.consumer import USUAL_LIMITS

    mock_cluster.first_join_delay(100)
    mock_cluster.create_topic(topic)
    produce(mock_cluster.bootstrap, topic, 0, 60)
    client = Consumer({"bootstrap.servers": mock_cluster.bootstrap, "group.id": group, **QUIET})
    client.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    client.close()
    mock_cluster.delete_records(topic, 0, before=50)
    state, consumer, emitted = a_consumer(mock_cluster, topic, group, USUAL_LIMITS)
    consumer.start()
    wait_for(lambda: len(state.jobs) == 10, SLOW)
    assert [event for event in emitted if isinstance(event, OffsetReset)] == [OffsetReset(f"{topic}/0", 5, 50)]
    assert consumer.stop(SLOW)
    log = LogSubscriber()
    for event in emitted:
        log(event)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "records skipped" in line and "up to 45 records" in line


def a_consumer(
    cluster: MockCluster, topic: str, group: str, limits: ConsumerLimits
) -> tuple[KafkaState, GroupConsumer, list[GroupEvent]]:
    """Return the consumer of a store, its jobs, and the events that it emits."""
    from supervisor.config.kafka import KafkaSettings
    from supervisor.stores.kafka.consumer import GroupConsumer
    from supervisor.stores.kafka.partitions import Assignment
    from supervisor.stores.kafka.state import KafkaState

    settings = KafkaSettings(bootstrap=cluster.bootstrap, group=group, topics={topic: "waits"})
    state = KafkaState(Assignment(100, 10**6), settings.topics, "handler", "json")
    emitted: list[GroupEvent] = []
    return state, GroupConsumer(settings, state, emitted.append, limits), emitted


def test_the_metrics_follow_the_records_and_the_partitions(
    command: Command, broker: Broker, topic: str, group: str
) -> None:
    broker.create_topic(topic, 2)
    broker.create_topic(f"{topic}.dlq")
    broker.produce(topic, [(None, b"{}", [])] * 5, partition=0)
    write(command, broker.bootstrap, topic, group)
    run, site = start(command)
    wait_for(lambda: samples(site, "lag") == {"0": 5.0, "1": 0.0})
    assert samples(site, "buffered_records") == {"0": 5.0, "1": 0.0}
    wait_for(lambda: samples(site, "undone_since_seconds")["0"] > 0)
    (row,) = site.ask("/api/status").body["supervisors"]
    held = next(each for each in row["partitions"] if each["partition"] == 0)
    assert (held["undone"], held["oldest"]) == (5, 0)
    assert site.ask(f"/api/jobs/{held['job_id']}").body["headers"]["kafka.offset"] == 0
    assert f"/jobs/{held['job_id']}" in site.ask("/", Accept="text/html").body

    (command.folder / "go").touch()
    wait_for(lambda: samples(site, "lag") == {"0": 0.0, "1": 0.0})
    wait_for(lambda: samples(site, "committed_offset")["0"] == 5.0)
    assert samples(site, "undone_since_seconds") == {"0": 0.0, "1": 0.0}
    assert counter(site, "rebalances") >= 1

    second = command.run()
    wait_for(lambda: len(samples(site, "lag")) == 1, SLOW, 0.1)  # the other partition is that of the second one
    other = served(command, second)
    wait_for(lambda: {**samples(site, "lag"), **samples(other, "lag")} == {"0": 0.0, "1": 0.0}, SLOW, 0.1)
    stop(second)
    stop(run)


def test_a_program_that_is_not_in_the_group_sees_the_partitions_of_its_members(
    broker: Broker, topic: str, group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker of the tests lists no members."""
    from confluent_kafka import Consumer, TopicPartition

    from supervisor.cli.status import print_status
    from supervisor.config.kafka import KafkaSettings
    from supervisor.config.settings import Settings
    from supervisor.stores.kafka.group import Group

    broker.create_topic(topic, 2)
    broker.produce(topic, [(None, b"{}", [])], partition=0)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, **QUIET})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    known = Group(KafkaSettings(bootstrap=broker.bootstrap, group=group, topics={topic: "waits"}))
    members = [("supervisor-box-7", "10.0.0.1", [f"{topic}/0", f"{topic}/1"]), ("another", "10.0.0.2", ["gone/0"])]
    monkeypatch.setattr(known, "members", lambda: members)
    status = known.stats()
    known.close()
    own, other = status["supervisors"]
    shown = [(each["partition"], each["committed"], each["lag"], each["undone"]) for each in own["partitions"]]
    assert shown == [(0, 0, 1, None), (1, None, 0, None)] and other["partitions"] == []
    print_status(status, Settings(), as_json=False)
    assert re.search(rf"^{topic}/0 +0 +1$", capsys.readouterr().out, re.M)


def test_commands_for_jobs_that_have_ended_are_refused_and_leave_the_supervisor_well(
    command: Command, broker: Broker, topic: str, group: str
) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}.dlq")
    broker.produce(topic, [(None, b"{}", [])] * 2)
    write(command, broker.bootstrap, topic, group, "never")
    run, site = start(command)

    def delivered() -> list[int]:
        jobs = site.ask("/api/jobs?dead_letter=delivered").body["jobs"]
        assert len(jobs) == 2
        return [job["id"] for job in jobs]

    ids = wait_for(delivered, SLOW)
    for body in ({"where": {"state": "failed"}}, {"ids": ids}, {"ids": ids, "force": True}):
        answer = site.ask("/api/jobs/retry", "POST", body, Content_Type="application/json")
        assert (answer.body["changed"], answer.body["refused_count"]) == (0, 2), answer
        assert "dlq redrive --from-topic" in answer.body["refused"][0]["reason"]
    assert site.ask(f"/api/jobs/{ids[0]}/retry", "POST", {}, Content_Type="application/json").status == 409
    for path, method, request in (
        (f"/api/jobs/{ids[0]}", "DELETE", None),
        ("/api/jobs/delete", "POST", {"ids": ids}),
        ("/api/dlq/redrive", "POST", {"ids": ids}),
        ("/api/dlq/redrive", "POST", {}),
    ):
        refused = site.ask(path, method, request, Content_Type="application/json")
        assert refused.status == 409 and "this store can't" in refused.body["error"], (path, refused)
    assert site.ask("/readyz").status == 200 and problems(site) == {}
    assert len(broker.read(f"{topic}.dlq")) == 2
    stop(run)
