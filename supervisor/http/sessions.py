"""The sessions of browsers: each is a random id in a cookie, so that the token is in no browser."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

SESSION_SECONDS = 12 * 3600
MAX_SESSIONS = 1000
"""More end the oldest. Only who has the token can open one."""


class Sessions:
    """Sessions in memory: they end with the supervisor. Ids are compared by digest, so that no time betrays a part of one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: dict[bytes, float] = {}  # the oldest first, which also ends first

    def __len__(self) -> int:
        return len(self._ends)

    def open(self) -> str:
        now = self._clock()
        while self._ends and (len(self._ends) >= MAX_SESSIONS or next(iter(self._ends.values())) <= now):
            del self._ends[next(iter(self._ends))]
        id = secrets.token_urlsafe(32)
        self._ends[_digest(id)] = now + SESSION_SECONDS
        return id

    def is_open(self, id: str) -> bool:
        return self._ends.get(_digest(id), float("-inf")) > self._clock()

    def close(self, id: str) -> None:
        self._ends.pop(_digest(id), None)


def _digest(id: str) -> bytes:
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest()
