"""Suspects: jobs that ran, or may have run, when their supervisor was lost. One of them may have ended it.

None of them is blamed at first, since it is not known which it was. They run again one by one, so that a job that ends its
supervisor each time is soon lost as the only suspect, and only then is that a failed attempt. The others lose no retry.
Recovery adds 2 to the `expired_count` of a job that was lost with a start mark, and 1 to that of any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from supervisor.engine.committer import Committer
from supervisor.engine.lease_keeper import LeaseKeeper
from supervisor.engine.leases import Leases
from supervisor.engine.store_writer import NotDone, Purpose, Writer
from supervisor.jobs import Kind, Lease, Outcome
from supervisor.retry import MIN_RELEASE_SECONDS, SOLE_SUSPECT

SPREAD_SECONDS = 0.02
"""Between the times at which suspects that have to wait are due again: thousands at once would keep fresh jobs from being claimed."""
TRIAL_SECONDS = 5.0
"""After a suspect has run for so long, the next one starts beside it: otherwise long jobs would wait for each other."""


@dataclass(eq=False)
class Suspects:
    """Starts the suspects of this supervisor. Each gets its start mark in the store before it runs."""

    _writer: Writer
    _leases: Leases
    _committer: Committer
    _lease_keeper: LeaseKeeper
    _now: Callable[[], float]
    _started: list[tuple[Lease, float]] = field(default_factory=list)
    _last_due: float = 0.0
    marking: int = 0

    def admit(self, suspects: Sequence[Lease], start: Callable[[Sequence[Lease]], None]) -> None:
        """Call `start` with each of these suspects that may run now, once it has its mark. The others are released for a moment, also
        to other supervisors."""
        for lease in suspects:
            if self._may_start(lease):
                self._started.append((lease, self._now()))
                self._mark(lease, start)
            else:
                now = self._now()
                self._last_due = max(now + MIN_RELEASE_SECONDS, self._last_due + SPREAD_SECONDS)
                self._committer.add([Outcome(lease, Kind.RELEASED, delay=self._last_due - now)])

    def _may_start(self, lease: Lease) -> bool:
        self._started = [(one, since) for one, since in self._started if self._leases.holds(one)]
        if not self._started:
            return True
        if any(one.expired_count >= SOLE_SUSPECT for one in (lease, *[one for one, _ in self._started])):
            return False
        return self._now() - self._started[-1][1] >= TRIAL_SECONDS

    def _mark(self, lease: Lease, start: Callable[[Sequence[Lease]], None]) -> None:
        def marked(future: asyncio.Future[list[int]]) -> None:
            self.marking -= 1
            error = future.exception()
            if error is None and future.result():
                self._lease_keeper.give_up([lease], "extend")
            elif error is None:
                start([lease])
            elif not isinstance(error, NotDone):
                raise error

        self.marking += 1
        ttl = self._leases.ttl
        self._writer.submit(lambda store: store.extend([lease], ttl, [lease]), Purpose.EXTEND).add_done_callback(marked)
