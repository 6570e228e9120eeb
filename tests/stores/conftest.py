"""Every test of the behavioural suite runs over every store: a test uses `factory`, or `store`, its first opening."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from supervisor.errors import Unsupported
from supervisor.stores.postgres.limits import PostgresLimits
from tests.stores.factories import FACTORIES, PostgresFactory, StoreFactory
from tests.stores.kafka_factory import KafkaFactory, otherwise

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


def is_on_kafka(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and getattr(item, "callspec", None) is not None and (
        item.callspec.params.get("factory") == "kafka"
    )  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_on_kafka(item) and (reason := otherwise(getattr(item, "originalname", ""))) is not None:
            item.add_marker(pytest.mark.xfail(strict=True, reason=f"kafka: {reason}"))


def skipping_what_kafka_lacks(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test of the suite where the store declares that it can't do what the test needs, by an error that says so."""
    try:
        return (yield)
    except Unsupported as error:
        if not is_on_kafka(item):
            raise
        pytest.skip(f"kafka: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from skipping_what_kafka_lacks(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from skipping_what_kafka_lacks(item))
