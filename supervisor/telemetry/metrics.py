"""The metrics, counted from the events in memory, without I/O. Dashboards and alerts rely on their names."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from supervisor import events
from supervisor.jobs import (
    LEASE_DUE_AT,
    LEASE_HANDLER,
    LEASE_RETRIES,
    LEASE_TIER,
    OUTCOME_KIND,
    OUTCOME_LEASE,
    OUTCOME_TOOK,
    JobState,
    Kind,
    Lease,
    Outcome,
    Tier,
)
from supervisor.retry import FINAL_CAUSES
from supervisor.telemetry.group_metrics import GroupMetrics
from supervisor.telemetry.schedule_metrics import ScheduleMetrics

PREFIX = "supervisor_"
RUN_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)


COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OTHERS = "(others)"
"""The label value of all queues or handlers past the limit, since their names are data."""
MAX_HANDLERS = MAX_QUEUES = 100

_RETRY = Tier.RETRY.value


class Histogram:
    """The counts of values (seconds) by bucket, and their sum. A bucket includes its upper limit; the last one has none."""

    __slots__ = ("counts", "limits", "total")

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.limits, value)] += 1
        self.total += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Observe each of the values, sorted first: so the cost hardly depends on the number of buckets."""
        ordered = sorted(values)
        counts, below = self.counts, 0
        for bucket, limit in enumerate(self.limits):
            up_to = bisect_right(ordered, limit, below)
            counts[bucket] += up_to - below
            below = up_to
        counts[-1] += len(ordered) - below
        self.total += sum(ordered)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def snapshot(self) -> dict[str, Any]:
        """Return `count`, `sum`, and `buckets`: upper limit as text ("+Inf" last) -> number of values at or below it."""
        buckets, below = {}, 0
        for limit, count in zip((*self.limits, float("inf")), self.counts, strict=True):
            below += count
            buckets["+Inf" if limit == float("inf") else f"{limit:g}"] = below
        return {"count": below, "sum": self.total, "buckets": buckets}


class HistogramsByName(dict[str, Histogram]):
    """Makes a histogram for each of the first `most` names, and one for all others."""

    def __init__(self, limits: Sequence[float], most: int) -> None:
        super().__init__()
        self._limits, self._most = limits, most

    def __missing__(self, name: str) -> Histogram:
        if len(self) >= self._most:
            return self[OTHERS] if OTHERS in self else self.setdefault(OTHERS, Histogram(self._limits))
        return self.setdefault(name, Histogram(self._limits))


class Metrics:
    """A subscriber of the bus; call `snapshot()` on the same thread. `clock` is wall time in seconds, like the store's."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._group, self._schedules = GroupMetrics(), ScheduleMetrics()
        self._counters: dict[type[Any], Callable[[Any], None]] = {
            **self._group.counters,
            **self._schedules.counters,
            events.JobsSettled: self._jobs_settled,
            events.JobsClaimed: self._jobs_claimed,
            events.JobsStale: self._jobs_stale,
            events.JobCancelled: self._job_cancelled,
            events.JobsExpired: self._jobs_expired,
            events.LeasesRecovered: self._leases_recovered,
            events.QueueDepths: self._queue_depths,
            events.WorkerStarted: self._worker_started,
            events.WorkerExited: self._worker_exited,
            events.DeadLettersPublished: self._dead_letters_published,
            events.DeadLettersFailed: self._dead_letters_failed,
            events.DeadLettersStale: self._dead_letters_stale,
            events.HookFailed: self._hook_failed,
            events.Dropped: self._dropped,
        }
        self._jobs = dict.fromkeys((JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED), 0)
        self._retries = self._snoozes = self._exhausted = self._recovered = self._stale = 0
        self._retries_ended = self._retries_succeeded = 0
        self._killed: Counter[str] = Counter()
        self._published: Counter[str] = Counter()
        self._publish_failures: Counter[str] = Counter()
        self._hook_failures: Counter[str] = Counter()
        self._overflows: Counter[str] = Counter()
        self._waiting: Mapping[str, tuple[int, int]] = {}
        self._workers: set[int] = set()
        self._run_times = HistogramsByName(RUN_BUCKETS, MAX_HANDLERS)
        self._latencies = Histogram(WAIT_BUCKETS)
        self._commits = Histogram(COMMIT_BUCKETS)
        self._wait_times = Histogram(WAIT_BUCKETS)
        self._retry_waits = Histogram(WAIT_BUCKETS)
        self._backoffs = Histogram(WAIT_BUCKETS)
        self._time_saved = Histogram(WAIT_BUCKETS)
        self._ended_at = 0.0  # when the outcomes that are counted now were written

    def __call__(self, event: events.Event) -> None:
        if (count := self._counters.get(type(event))) is not None:
            count(event)

    def snapshot(self) -> dict[str, Any]:
        """Return every metric by its full name: a number, a Histogram's snapshot, or a mapping of these by label value.

        `retry_success_ratio` is None until a retry has ended.
        """
        values: dict[str, Any] = {
            "jobs_total": {state.value: count for state, count in self._jobs.items()},
            "retries_total": self._retries,
            "snoozes_total": self._snoozes,
            "retry_exhausted_total": self._exhausted,
            "retry_latency_seconds": self._backoffs.snapshot(),
            "retry_wait_seconds": self._retry_waits.snapshot(),
            "retry_success_ratio": self._retries_succeeded / self._retries_ended if self._retries_ended else None,
            "retry_time_saved_seconds": self._time_saved.snapshot(),
            "queue_depth": {queue: {"fresh": f, "retry": r} for queue, (f, r) in self._deepest()},
            "wait_time_seconds": self._wait_times.snapshot(),
            "run_time_seconds": {handler: times.snapshot() for handler, times in self._run_times.items()},
            "latency_seconds": self._latencies.snapshot(),
            "store_commit_seconds": self._commits.snapshot(),
            "leases_recovered_total": self._recovered,
            "stale_outcomes_total": self._stale,
            "workers_killed_total": dict(self._killed),
            "dlq_published_total": dict(self._published),
            "dlq_publish_failures_total": dict(self._publish_failures),
            "hook_failures_total": dict(self._hook_failures),
            "dropped_total": dict(self._overflows),
            **self._schedules.snapshot(),
            **self._group.snapshot(),
        }
        return {PREFIX + name: value for name, value in values.items()}

    def store_committed(self, seconds: float) -> None:
        """Observe a commit. Unlike the events, it is called on the thread of the store, and by nothing else."""
        self._commits.observe(seconds)

    def _deepest(self) -> Iterable[tuple[str, tuple[int, int]]]:
        if len(self._waiting) <= MAX_QUEUES:
            return self._waiting.items()
        ordered = sorted(self._waiting.items(), key=lambda item: -sum(item[1]))
        others = [ready for _, ready in ordered[MAX_QUEUES:]]
        return [*ordered[:MAX_QUEUES], (OTHERS, (sum(f for f, _ in others), sum(r for _, r in others)))]

    def _jobs_settled(self, event: events.JobsSettled) -> None:
        success = Kind.SUCCEEDED
        self._ended_at = self._clock() - event.age
        succeeded = [outcome for outcome in event.outcomes if outcome[OUTCOME_KIND] is success]
        if len(succeeded) < len(event.outcomes):
            for outcome in event.outcomes:
                if outcome.kind is not success:
                    self._not_succeeded(outcome)
        leases = [outcome[OUTCOME_LEASE] for outcome in succeeded]
        all_times = [outcome[OUTCOME_TOOK] for outcome in succeeded]
        times: dict[str, list[float]] = {}
        start = 0
        for handler, run in groupby([lease[LEASE_HANDLER] for lease in leases]):
            end = start + len([*run])
            times.setdefault(handler, []).extend([took for took in all_times[start:end] if took is not None])
            start = end
        for handler, values in times.items():
            self._run_times[handler].observe_all(values)
        self._latencies.observe_all(_since_due(leases, self._ended_at))
        retries = sum([lease[LEASE_RETRIES] > 0 for lease in leases])
        self._jobs[JobState.SUCCEEDED] += len(succeeded)
        self._retries_succeeded += retries
        self._retries_ended += retries

    def _not_succeeded(self, outcome: Outcome) -> None:
        if outcome.kind is Kind.RELEASED:
            return
        if outcome.took is not None:
            self._run_times[outcome.lease.handler].observe(outcome.took)
        if outcome.kind is Kind.SNOOZED:
            self._snoozes += 1
            return
        if outcome.lease.retries:
            self._retries_ended += 1
        if outcome.state is JobState.FAILED:
            self._jobs[JobState.FAILED] += 1
            self._latencies.observe(max(0.0, self._ended_at - outcome.lease.due_at * 1e-6))
            self._exhausted += _out_of_retries(outcome)
        elif outcome.counted:
            self._retries += 1
            self._backoffs.observe(outcome.delay)

    def _jobs_claimed(self, event: events.JobsClaimed) -> None:
        waits = _since_due(event.leases, self._clock())
        self._wait_times.observe_all(waits)
        for waited, lease in zip(waits, event.leases, strict=True):
            if lease[LEASE_TIER] == _RETRY:
                self._retry_claimed(lease, waited)

    def _retry_claimed(self, lease: Lease, waited: float) -> None:
        self._retry_waits.observe(waited)
        fresh, _ = self._waiting.get(lease.queue, (0, 0))
        self._time_saved.observe(fresh * self._mean_run_time() / max(1, len(self._workers)))

    def _mean_run_time(self) -> float:
        runs = sum(times.count for times in self._run_times.values())
        return sum(times.total for times in self._run_times.values()) / runs if runs else 0.0

    def _leases_recovered(self, event: events.LeasesRecovered) -> None:
        self._recovered += len(event.outcomes)
        self._ended_at = self._clock()
        for outcome in event.outcomes:
            self._not_succeeded(outcome)

    def _jobs_stale(self, event: events.JobsStale) -> None:
        self._stale += len(event.leases)

    def _job_cancelled(self, event: events.JobCancelled) -> None:
        self._jobs[JobState.CANCELLED] += 1

    def _jobs_expired(self, event: events.JobsExpired) -> None:
        self._jobs[JobState.CANCELLED] += len(event.jobs)

    def _queue_depths(self, event: events.QueueDepths) -> None:
        seen = {**self._waiting, **event.waiting} if event.more else event.waiting
        self._waiting = {queue: ready for queue, ready in seen.items() if any(ready)} if event.more else seen

    def _worker_started(self, event: events.WorkerStarted) -> None:
        self._workers.add(event.pid)

    def _worker_exited(self, event: events.WorkerExited) -> None:
        self._workers.discard(event.pid)
        if event.cause not in events.NORMAL_EXITS:
            self._killed[event.cause] += 1

    def _dead_letters_published(self, event: events.DeadLettersPublished) -> None:
        self._published[event.sink] += len(event.ids)

    def _dead_letters_failed(self, event: events.DeadLettersFailed) -> None:
        self._publish_failures[event.sink] += len(event.ids)

    def _dead_letters_stale(self, event: events.DeadLettersStale) -> None:
        self._stale += len(event.ids)

    def _hook_failed(self, event: events.HookFailed) -> None:
        self._hook_failures[event.hook] += 1

    def _dropped(self, event: events.Dropped) -> None:
        self._overflows[event.queue] += event.number


def _since_due(leases: Sequence[Lease], now: float) -> list[float]:
    waits = [now - lease[LEASE_DUE_AT] * 1e-6 for lease in leases]
    if waits and min(waits) < 0.0:  # the store's clock is ahead of ours
        return [max(0.0, waited) for waited in waits]
    return waits


def _out_of_retries(outcome: Outcome) -> bool:
    return outcome.retryable and (outcome.failure is None or outcome.failure.cause not in FINAL_CAUSES)
