"""Wait for facts."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT = 120.0


def wait_until(fact: Callable[[], bool], description: str, timeout: float = TIMEOUT, every: float = 0.001) -> None:
    """Call `fact` every `every` seconds until it returns True. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g}s: {description}")
        time.sleep(every)
