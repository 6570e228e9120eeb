"""Every test of the behavioural suite runs over every store: a test uses `factory`, or `store`, its first opening."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.factories import FACTORIES, StoreFactory


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreFactory]:
    """Another kind of factory if the test's module names it: see ON_POSTGRESQL and NEAR_AND_FAR."""
    kind = request.param
    if kind in ("near", "far"):
        monkeypatch.setattr("supervisor.stores.postgres.driver.is_near", lambda link: kind == "near")
        kind = "postgresql"
    factory = FACTORIES[kind](tmp_path)
    yield factory
    factory.close()


@pytest.fixture
def store(factory: StoreFactory):
    """A store that has joined as owner "one"."""
    return factory.joined("one")
