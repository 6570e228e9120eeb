"""Waiting for facts."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0


def until(fact: Callable[[], bool], what: str, patience: float = PATIENCE, every: float = 0.001) -> None:
    deadline = time.monotonic() + patience
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience:g}s: {what}")
        time.sleep(every)
