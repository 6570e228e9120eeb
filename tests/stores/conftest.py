"""Every test of the behavioural suite runs over every store: a test asks for `shelf`, or for `store`, its first opening."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.shelf import SHELVES, Shelf


@pytest.fixture(params=SHELVES)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    shelf = SHELVES[request.param](tmp_path)
    yield shelf
    shelf.close()


@pytest.fixture
def store(shelf: Shelf):
    """A store that has joined as owner "one"."""
    return shelf.joined("one")
