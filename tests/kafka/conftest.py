"""Tests share one broker per process, which none of them may stop, in topics and groups of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.broker import Broker, need_packages, unique_name
from tests.kafka.mock_cluster import MockCluster
from tests.kafka.object_store import ObjectStore
from tests.kafka.supervised import Elsewhere, Supervised
from tests.system.command import Command


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    need_packages()
    broker = Broker(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """For a test that stops, kills or freezes it. A new one has no data."""
    need_packages()
    broker = Broker(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def durable_broker(tmp_path: Path) -> Iterator[Broker]:
    """For a test that restarts it: its data outlives it."""
    need_packages()
    store = ObjectStore()
    broker = Broker(tmp_path, store)
    broker.start()
    yield broker
    broker.kill()
    store.close()


@pytest.fixture
def mock_cluster() -> Iterator[MockCluster]:
    need_packages()
    cluster = MockCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses; the test makes the topic."""
    return unique_name("topic")


@pytest.fixture
def group() -> str:
    return unique_name("group")


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.close()


@pytest.fixture
def supervised(command: Command, broker: Broker, topic: str, group: str) -> Supervised:
    """On the shared broker, with a topic of one partition."""
    broker.create_topic(topic)
    return Supervised(command, broker, topic, group)


@pytest.fixture
def mocked(command: Command, mock_cluster: MockCluster, topic: str, group: str) -> Supervised:
    """On a mock cluster, with a topic of one partition."""
    mock_cluster.create_topic(topic)
    mock_cluster.first_join_delay(100)
    return Supervised(command, Elsewhere(mock_cluster.bootstrap), topic, group)
