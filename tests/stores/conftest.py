"""Every test of the behavioural suite runs over every store: a test uses `factory`, or `store`, its first opening."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.stores.postgres.limits import PostgresLimits
from tests.stores.factories import FACTORIES, PostgresFactory, StoreFactory


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFactory]:
    """Another kind of factory if the test's module names it: see ON_POSTGRESQL and NEAR_AND_FAR."""
    if request.param in ("near", "far"):
        factory: StoreFactory = PostgresFactory(tmp_path, PostgresLimits(near=request.param == "near"))
    else:
        factory = FACTORIES[request.param](tmp_path)
    yield factory
    factory.close()


@pytest.fixture
def store(factory: StoreFactory):
    """A store that has joined as owner "one"."""
    return factory.joined("one")
