"""Waiting for facts."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT = 120.0


def until(fact: Callable[[], bool], what: str, timeout: float = TIMEOUT, every: float = 0.001) -> None:
    deadline = time.monotonic() + timeout
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g}s: {what}")
        time.sleep(every)
