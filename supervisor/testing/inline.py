"""Run jobs in this process with the rules of workers and of the engine, and without waits."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from supervisor.config.settings import Settings
from supervisor.engine.claim_planner import Demand
from supervisor.errors import JobFailed
from supervisor.jobs import LOGGER, Job, JobState, Kind, Lease, Outcome, Progress, Tier, report_jobs_to
from supervisor.retry import decide, limited_snooze
from supervisor.stores.job_reports import JobReport, progress_text
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import EnqueueRow, failure_record, options_text, overlaid
from supervisor.stores.shown import readable
from supervisor.testing.handlers import Handlers
from supervisor.text.strict_json import decode, decode_object
from supervisor.text.units import iso
from supervisor.workers.blame import HOST
from supervisor.workers.child import alone
from supervisor.workers.interface import Reply
from supervisor.workers.slot import outcome_of_failed

SEEN_AT_ONCE = 1000
MAX_PROGRESS_KEPT = 100_000
Answer = TypeVar("Answer")


class InlineWorker:
    """Runs jobs one by one. Exceptions of the kinds `let_through` end the test, not the attempt."""

    def __init__(
        self, settings: Settings, handlers: Handlers, state: MemoryState, let_through: tuple[type[BaseException], ...]
    ) -> None:
        self._settings, self._handlers, self._let_through = settings, handlers, let_through
        self._state, self._store = state, MemoryStore(state=state)
        self._store.join("job_runner", HOST, os.getpid())
        self._turn = 0
        self.raised: dict[int, BaseException | None] = {}
        """The exceptions of the last attempts of jobs that failed, by id."""
        self.progress: deque[Progress] = deque(maxlen=MAX_PROGRESS_KEPT)

    def progressed(self, job: Job) -> None:
        if job.last_progress is not None:
            self.progress.append(job.last_progress)

    def logged(self, job: Job, level: int, message: str) -> None:
        logging.getLogger(LOGGER).log(level, "%s", message)

    def run_to_end(self, row: EnqueueRow) -> Any:
        """Run all attempts of a job that is in no store, and return its result. Raises JobFailed."""
        policy = self._handlers.policy(row.handler, row.queue)
        if (options := options_text(row)) is not None:
            policy = overlaid(policy, options)
        now, id = self._state.now(), self._state.next_age()
        lease = Lease(
            id, 1, row.handler, row.queue, row.payload, row.headers, 0, row.priority, Tier.FRESH, now, now, policy
        )
        errors: list[dict[str, Any]] = []
        snoozes, waited = 0, 0.0
        while True:
            outcome = self._attempt(lease, snoozes, waited)
            waited += outcome.delay
            if outcome.failure is not None:
                record = failure_record(outcome.failure, lease, self._state.now())
                errors.append({**record, "at": iso(record["at"])})
            if outcome.state is JobState.SUCCEEDED:
                return None if outcome.result is None else readable(outcome.result)
            if outcome.state is JobState.FAILED:
                raise JobFailed(id, row.handler, "failed", errors) from self.raised.get(id)
            lease = lease._replace(token=lease.token + 1)
            if outcome.kind is Kind.SNOOZED:
                snoozes += 1
            else:
                lease = lease._replace(retries=lease.retries + 1, tier=Tier.RETRY)

    def run_next(self) -> int | None:
        """Run one attempt of the job whose turn it is now, and return its id; None if no job is due."""
        look = self._store.look(None, SEEN_AT_ONCE)
        demand = Demand(
            1, self._turn, self._settings, self._handlers.policy, tokens={}, buffered={}, workers=1, with_retries={},
            large=False, limits={}, otherwise=1,
        )  # fmt: skip
        requests = demand.requests(look.waiting, look.more)
        leases = self._store.claim(requests, self._settings.lease.ttl, self._handlers.policy)
        if not leases:
            return None
        (lease,) = leases
        self._turn += 1
        outcome = Outcome(lease, Kind.RELEASED, state=JobState.READY)
        try:
            outcome = self._attempt(lease, self._store.snoozes(leases).get(lease.id, 0))
        finally:
            self._store.settle([outcome])
        return lease.id

    def close(self) -> None:
        self._store.leave()

    def _attempt(self, lease: Lease, snoozes: int, waited: float = 0.0) -> Outcome:
        """Return the decided outcome of a job that has snoozed so often, and would have `waited` for so many seconds that were left out.
        A backoff has its whole length, so that it is known when the retry is due."""
        handler, is_async = self._handlers.find(lease.handler)
        headers = None if lease.headers is None else decode_object(lease.headers, "headers")
        payload, max_retries = decode(lease.payload), lease.policy.max_retries
        job = Job(lease.id, lease.handler, payload, lease.attempt, lease.queue, headers, lease.priority, max_retries)
        wrappers, limit = self._handlers.wrappers(), self._settings.limits.result
        before = report_jobs_to(self)
        try:
            result = _outside_of_loops(is_async, partial(alone.run_attempt, handler, is_async, wrappers, job, limit))
            outcome = Outcome(lease, Kind.SUCCEEDED, result=None if result == "null" else result, took=0.0)
        except alone.JobFailed as failed:
            raised = failed.__cause__
            if isinstance(raised, self._let_through):
                raise raised from None
            self.raised[lease.id] = raised
            outcome = outcome_of_failed(lease, Reply(lease.id, failed.kind, 0.0, None, failed.error), os.getpid())
        except alone.Interrupted as interrupted:
            raise interrupted.__cause__ or interrupted from None
        finally:
            report_jobs_to(before)
            if job.last_progress is not None:
                report = JobReport(lease.id, lease.token, progress_text(lease.attempt, job.last_progress), None)
                self._store.keep_reports([report])
        bounded = limited_snooze(outcome, snoozes, self._state.clock() + waited)
        return decide(bounded, lambda: 1.0, dead_letters=self._settings.dlq.enabled)


def _outside_of_loops(is_async: bool, call: Callable[[], Answer]) -> Answer:
    """Make the call, which runs an event loop if it `is_async`: in a thread if a loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    if not is_async:
        return call()
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(copy_context().run, call).result()
