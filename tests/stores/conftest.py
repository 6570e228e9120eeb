"""Every test of the behavioural suite runs over every store: a test uses `factory`, or `store`, its first opening."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.stores.postgres.limits import PostgresLimits
from tests.stores.factories import FACTORIES, PostgresFactory, StoreFactory
from tests.stores.kafka_factory import KafkaFactory
from tests.stores.not_on_kafka import NOT_ON_KAFKA

SUITE: dict[str, type[StoreFactory]] = {**FACTORIES, "kafka": KafkaFactory}


@pytest.fixture(params=SUITE)
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFactory]:
    """Another kind of factory if the test's module names it: see ON_POSTGRESQL and NEAR_AND_FAR."""
    if request.param in ("near", "far"):
        factory: StoreFactory = PostgresFactory(tmp_path, PostgresLimits(near=request.param == "near"))
    else:
        factory = SUITE[request.param](tmp_path)
    yield factory
    factory.close()


@pytest.fixture
def store(factory: StoreFactory):
    """A store that has joined as owner "one"."""
    return factory.joined("one")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that a Kafka store can't pass must fail there, so that a test is taken off the list once it can."""
    without = [item for item in items if is_on_kafka(item) and hasattr(item.module, "WITHOUT_KAFKA")]  # it says why
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if item not in without]
    for item in filter(is_on_kafka, items):
        for reason, names in NOT_ON_KAFKA.items():
            if not names.isdisjoint((item.name, getattr(item, "originalname", ""))):
                item.add_marker(pytest.mark.xfail(strict=True, reason=f"on Kafka: {reason}"))


def is_on_kafka(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and getattr(item, "callspec", None) is not None and (
        item.callspec.params.get("factory") == "kafka"
    )  # fmt: skip
