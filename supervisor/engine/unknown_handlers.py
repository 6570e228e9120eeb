"""Jobs whose handler no plugin serves here: since when the handler has been missing, and the outcomes of the jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence, Set
from typing import NamedTuple

from supervisor.config.settings import DEFAULT_QUEUE
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.limits import Limits
from supervisor.engine.store_writer import Purpose, Writer
from supervisor.engine.tasks import report_error
from supervisor.events import Bus, JobsReleased
from supervisor.jobs import JobState, Kind, Lease, Outcome
from supervisor.retry import release_for_later, unknown_handler
from supervisor.workers.pool import Pool

HEAD_START = 0.5
"""Seconds by which a supervisor that may serve the handler of a job claims it before one that has released it."""
SEEN_AGAIN = 10.0
"""Seconds within which a job that is due is claimed again."""
MAX_MADE_DUE = 10_000
SWEEP_EVERY = 60.0  # seconds: a sweep holds up the loop for tens of milliseconds


class MissingHandler(NamedTuple):
    """A job that was claimed without its handler: since when (monotonic seconds), and after how many retries."""

    since: float
    retries: int
    handler: str


class MissingHandlers:
    """The times since when the handlers of jobs have been missing. They are kept by job, not by handler: another supervisor may
    serve the handler, and a new job must not fail at once because this supervisor happened to claim it."""

    def __init__(self, max_jobs: int) -> None:
        self._max_jobs = max_jobs
        self._by_job: dict[int, MissingHandler] = {}
        self._swept_at = float("-inf")

    def missing_for(self, lease: Lease, now: float, *, grace: float, again_in: float) -> float:
        """Return for how many seconds the handler of this job, claimed just now, has been missing.

        The seconds start again at 0 for a job that has been retried meanwhile, since it ran elsewhere, and for one that was not
        claimed for `grace` beyond the time when it should have been: `again_in` is the delay of its release. For jobs beyond the
        `max_jobs` that are remembered they stay 0, until some of the others are forgotten.
        """
        known = self._by_job.get(lease.id)
        if known is None or known.retries != lease.retries or _stale(known, now, grace, again_in):
            known = MissingHandler(now, lease.retries, sys.intern(lease.handler))
            if self._has_room(lease.id, now, grace, again_in):
                self._by_job[lease.id] = known
        missing_for = now - known.since
        if missing_for >= grace:
            self._by_job.pop(lease.id, None)
        return missing_for

    def _has_room(self, job: int, now: float, grace: float, again_in: float) -> bool:
        if job in self._by_job or len(self._by_job) < self._max_jobs:
            return True
        if now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            self._by_job = {id: it for id, it in self._by_job.items() if not _stale(it, now, grace, again_in)}
        return len(self._by_job) < self._max_jobs

    def found(self, served: Container[str]) -> None:
        """Forget the jobs of these handlers, which are served now."""
        self._by_job = {id: missing for id, missing in self._by_job.items() if missing.handler not in served}


class UnknownHandlers:
    """Turns jobs with an unknown handler into outcomes. `met` is whether there have been any."""

    def __init__(
        self, config: CurrentConfig, pool: Pool, writer: Writer, bus: Bus, now: Callable[[], float], limits: Limits
    ) -> None:
        self.met = False
        self._config = config
        self._pool = pool
        self._writer = writer
        self._bus = bus
        self._now = now
        self._missing = MissingHandlers(limits.missing_handlers)
        self._met_until: dict[str, float] = {}
        """By handler: until when a job that waits for it would have been claimed again."""

    def missing(self) -> list[str]:
        """Return the handlers that jobs wait for."""
        now, served = self._now(), self._config.handlers
        self._met_until = {it: until for it, until in self._met_until.items() if until > now and it not in served}
        return sorted(self._met_until)

    def serve(self, new: Set[str]) -> None:
        """Make due the jobs that wait for these handlers, which are served from now on. The next claim brings them, since it is behind
        this call. And forget since when they have been missing."""
        self._missing.found(self._config.handlers)
        if new:
            handlers, resolve = frozenset(new), self._config.resolve
            queues = (DEFAULT_QUEUE, *self._config.settings.queues)
            within = max(resolve(name, queue).backoff.max for name in ("", *handlers) for queue in queues)
            made = self._writer.submit(lambda store: store.make_due(handlers, within, MAX_MADE_DUE), Purpose.MAKE_DUE)
            made.add_done_callback(report_error)

    def instead_of(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes to settle in place of these: the workers did not know the handlers of the jobs."""
        served = [outcome for outcome in outcomes if outcome.lease.handler in self._config.handlers]
        not_served = [outcome.lease for outcome in outcomes if outcome.lease.handler not in self._config.handlers]
        return [*self._not_imported(served), *self.outcomes_of(not_served)]

    def _not_imported(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Replace the worker that could not import the handler, unlike other workers, and release the jobs."""
        if not outcomes:
            return []
        leases = [outcome.lease for outcome in outcomes]
        failure = outcomes[0].failure
        replaced = failure is not None and self._pool.replace(failure.pid or 0)
        self._bus.emit(JobsReleased(leases, "not_imported"))
        return [_release(lease) if replaced else release_for_later(lease) for lease in leases]

    def outcomes_of(self, leases: Sequence[Lease]) -> list[Outcome]:
        """Release jobs whose handler is unknown here, or fail those whose handler has been missing for the grace."""
        if not leases:
            return []
        now, grace = self._now(), self._config.settings.unknown_handler.grace
        outcomes = []
        for lease in leases:
            self._met_until[lease.handler] = now + lease.policy.backoff.max + SEEN_AGAIN
            missing_for = self._missing.missing_for(lease, now, grace=grace, again_in=lease.policy.backoff.max)
            outcomes.append(unknown_handler(lease, unknown_for=missing_for, grace=grace))
        self.met = True
        self._bus.emit(JobsReleased(leases, "unknown_handler"))
        return outcomes


def _release(lease: Lease) -> Outcome:
    return Outcome(lease, Kind.RELEASED, state=JobState.READY)


def _stale(missing: MissingHandler, now: float, grace: float, again_in: float) -> bool:
    return now - missing.since >= 2 * (grace + again_in)
