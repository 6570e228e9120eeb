"""The times at which the fetcher looks for jobs although nobody has notified it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from supervisor.retry import GrowingDelay

FIRST_LOOK = 0.1
"""Seconds until the next look for jobs that other supervisors were claiming; they double after each look in vain."""


class ClaimTimers:
    """Calls `look` at regular intervals, since a notification may be lost, and again after a claim that missed the jobs; calls
    `look_for_due` when a scheduled job is due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poll: float,
        *,
        look: Callable[[], None],
        look_for_due: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._poll_interval = poll
        self._look = look
        self._look_for_due = look_for_due
        self._due: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._again_delay = GrowingDelay(FIRST_LOOK, poll)

    def start(self) -> None:
        self._loop.call_later(self._poll_interval, self._poll)

    def _poll(self) -> None:
        self.start()
        self._look()

    @property
    def next_due(self) -> float | None:
        """The time (of the loop) at which a scheduled job is known to be due, if any is."""
        return None if self._due is None else self._due.when()

    def due_at(self, when: float) -> None:
        """Look at this time (of the loop), if not before."""
        if self._due is None or when < self._due.when():
            if self._due is not None:
                self._due.cancel()
            self._due = self._loop.call_at(when, self._come_due)

    def _come_due(self) -> None:
        self._due = None
        self._look_for_due()

    def claim_missed(self) -> None:
        """Look again after a delay: there were jobs, and other supervisors had locked them all, but may not keep them."""
        if self._again is None:
            self._again = self._loop.call_later(self._again_delay.next(), self._look_again)

    def claim_did_not_miss(self) -> None:
        """Forget the looks in vain: after the next one, the first delay is the shortest again."""
        self._again_delay.reset()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _look_again(self) -> None:
        self._again = None
        self._look()
