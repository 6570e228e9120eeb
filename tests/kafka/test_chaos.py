"""Supervisors of one group, hit by kills, stops, rebalances, frozen brokers and outages: every promise holds.

SUPERVISOR_CHAOS_SECONDS is how long faults are injected (15). The faults and the load follow SUPERVISOR_CHAOS_SEED; without it
every run has another seed, which is printed, and is first in the message of a failure.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError

from tests.kafka.broker import Broker
from tests.kafka.chaos import FAULTS, Brokers, Chaos, plan
from tests.kafka.chaos_checks import problems, repeats
from tests.kafka.chaos_load import PARTITIONS
from tests.kafka.mock_cluster import MockCluster
from tests.kafka.supervised import Elsewhere
from tests.system.command import Command

SECONDS = float(os.environ.get("SUPERVISOR_CHAOS_SECONDS", "15"))
MAX_SHOWN = 10


def test_the_planned_faults_are_a_function_of_the_seed() -> None:
    assert plan("7", 600, FAULTS) == plan("7", 600, FAULTS) != plan("8", 600, FAULTS)


def run_chaos(command: Command, broker: Broker, topic: str, group: str, faults: Brokers, name: str) -> None:
    seed = os.environ.get("SUPERVISOR_CHAOS_SEED") or str(secrets.randbelow(10**9))
    replay = (
        f"SUPERVISOR_CHAOS_SEED={seed} SUPERVISOR_CHAOS_SECONDS={SECONDS:g} pytest tests/kafka/test_chaos.py -k {name}"
    )
    print(f"\nchaos: {replay}")
    chaos = Chaos(command, broker, topic, group, seed, faults, settling=0.0 if name == "outages" else 8.0)
    shown = []
    try:
        chaos.inject_faults(SECONDS)
        chaos.finish(60.0 + SECONDS / 4)
    except AssertionError as error:
        shown.append(str(error))
    finally:
        chaos.stop()
    found = list(problems(chaos, command.folder, keeps_metadata=name == "outages"))
    print(
        f"chaos: {len(chaos.load.sent)} records, {len(chaos.journal.entries)} lines, {repeats(chaos)} run again,"
        f" {len(chaos.watcher.dead_letters)} dead letters, {chaos.watcher.looks} looks, exits {dict(chaos.codes)},"
        f" faults {dict(Counter(fault.kind for fault in chaos.injected))}"
    )
    shown += found[:MAX_SHOWN]
    assert not shown, f"{replay}: {len(found)} problems\n" + "\n".join(shown)


@pytest.mark.timeout(240 + 3 * SECONDS)
def test_every_promise_holds_whatever_is_killed_stopped_or_frozen(
    command: Command, own_broker: Broker, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def freeze() -> Callable[[], None]:
        own_broker.freeze()
        return own_broker.thaw

    own_broker.create_topic(topic, PARTITIONS)
    own_broker.create_topic(f"{topic}.dlq")
    with capsys.disabled():
        run_chaos(command, own_broker, topic, group, {"freeze broker": (3, (0.3, 9.0), freeze)}, "frozen")


@pytest.mark.timeout(240 + 3 * SECONDS)
def test_every_promise_holds_through_outages_and_errors_of_the_brokers(
    command: Command, mock_cluster: MockCluster, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def outage() -> Callable[[], None]:
        mock_cluster.set_down()
        return mock_cluster.set_up

    def injecting(request: str, *errors: int) -> Callable[[], Callable[[], None]]:
        def inject() -> Callable[[], None]:
            mock_cluster.inject(request, errors)
            return lambda: mock_cluster.clear(request)

        return inject

    faults: Brokers = {
        "outage": (3, (0.3, 9.0), outage),
        "lose member": (3, (2.0, 2.0), injecting("Heartbeat", KafkaError.UNKNOWN_MEMBER_ID)),
        "refuse commits": (2, (2.0, 2.0), injecting("OffsetCommit", *[KafkaError.REBALANCE_IN_PROGRESS] * 5)),
        "other coordinator": (2, (2.0, 2.0), injecting("OffsetCommit", *[KafkaError.NOT_COORDINATOR] * 2)),
        "refuse records": (2, (2.0, 2.0), injecting("Produce", *[KafkaError.NOT_ENOUGH_REPLICAS] * 5)),
    }
    mock_cluster.first_join_delay(300)
    mock_cluster.create_topic(topic, PARTITIONS)
    mock_cluster.create_topic(f"{topic}.dlq")
    with capsys.disabled():
        run_chaos(command, Elsewhere(mock_cluster.bootstrap), topic, group, faults, "outages")
