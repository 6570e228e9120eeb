from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.command import Command


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.close()
