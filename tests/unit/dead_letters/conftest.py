from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.unit.dead_letters.scripted import Scene
from tests.unit.jumping_loop import JumpingLoop

Play = Callable[[Callable[[Scene], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play() -> Iterator[Play]:
    """Run a test on the jumping loop, and cancel what it leaves running."""
    loop = JumpingLoop()

    def run(act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        loop.run_until_complete(act(Scene(loop)))
        loop.cancel_all()

    yield run
    loop.close()
