"""The outcomes that the slots of an async worker report at one moment, passed on together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from supervisor.jobs import LEASE_HANDLER, Lease, Outcome
from supervisor.workers.interface import PoolListener
from supervisor.workers.run_times import RunTimes
from supervisor.workers.slot import successes


class GatheredOutcomes:
    """The listener of the slots. What it gets while outcomes are gathered is passed on together: a change of each of a hundred slots
    would cost a look at all of them."""

    def __init__(self, listener: PoolListener, times: RunTimes) -> None:
        self.times = times
        self.jobs_reclaimed, self.job_wrote = listener.jobs_reclaimed, listener.job_wrote
        self.plugins_reported = listener.plugins_reported
        self._listener = listener
        self._outcomes: list[Outcome] | None = None

    @contextmanager
    def gathered(self) -> Iterator[None]:
        if self._outcomes is not None:  # the outer block passes them on
            yield
            return
        self._outcomes = []
        try:
            yield
        finally:
            outcomes, self._outcomes = self._outcomes, None
            if outcomes:
                self._listener.jobs_ended(outcomes)
            self._listener.workers_changed()

    def jobs_ended(self, outcomes: list[Outcome]) -> None:
        if self._outcomes is None:
            self._listener.jobs_ended(outcomes)
        else:
            self._outcomes += outcomes

    def jobs_succeeded(self, leases: Sequence[Lease], times: Sequence[float], results: Sequence[str | None]) -> None:
        self.times.learn_each([lease[LEASE_HANDLER] for lease in leases], times)
        self.jobs_ended(successes(leases, times, results))

    def workers_changed(self) -> None:
        if self._outcomes is None:
            self._listener.workers_changed()
