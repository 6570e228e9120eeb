"""What comes through a worker's heartbeat pipe: dots, and few of them at a time."""

from __future__ import annotations

BEAT = b"."
PAUSE = 0.010  # seconds between two reads of one pipe, so that no flood keeps the loop busy
MOST = 4096  # bytes in one pause: a heart that beats without any rest writes a hundredth of that


class HeartbeatCheck:
    """Only the first of many may be a crowd: it gathered while the supervisor stood still."""

    __slots__ = ("_crowded",)

    def __init__(self) -> None:
        self._crowded = False

    def fault(self, data: bytes) -> str | None:
        """What is wrong with what one read has brought; None if these are heartbeats."""
        if data.strip(BEAT):
            return f"expected heartbeats, got {data[:80]!r}"
        before, self._crowded = self._crowded, len(data) > MOST
        return "it floods its heartbeat pipe" if before and self._crowded else None
