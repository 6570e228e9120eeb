import json
from typing import Any

import pytest

from supervisor import events
from supervisor.jobs import Cause, ExpiredJob, Failure, JobState, Kind, Lease, Outcome, Policy, Tier
from supervisor.telemetry.metrics import MAX_HANDLERS, MAX_QUEUES, OTHERS, Histogram, Metrics

NOW = 1_000_000.0


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(clock=lambda: NOW)


def lease(retries: int = 0, handler: str = "thumb", queue: str = "default", waited: float = 0.0) -> Lease:
    tier = Tier.RETRY if retries else Tier.FRESH
    return Lease(42, 7, handler, queue, "{}", None, retries, 0, tier, int((NOW - waited) * 1e6), 0, Policy())


def succeeded(took: float | None = 0.02, **of: Any) -> Outcome:
    return Outcome(lease(**of), Kind.SUCCEEDED, took=took, state=JobState.SUCCEEDED)


def retried(delay: float = 2.0, **of: Any) -> Outcome:
    failure = Failure(Cause.EXCEPTION)
    return Outcome(
        lease(**of), Kind.FAILED, took=0.5, failure=failure, state=JobState.SCHEDULED, delay=delay, counted=True
    )


def failed(cause: Cause = Cause.EXCEPTION, retryable: bool = True, **of: Any) -> Outcome:
    failure = Failure(cause)
    return Outcome(lease(**of), Kind.FAILED, failure=failure, retryable=retryable, state=JobState.FAILED)


def metric(metrics: Metrics, name: str, *happened: Any) -> Any:
    """Return the metric `name` after these events."""
    for event in happened:
        metrics(event)
    return metrics.snapshot()["supervisor_" + name]


def test_the_metrics_have_the_promised_names(metrics: Metrics) -> None:
    promised = {
        "retries_total", "snoozes_total", "retry_exhausted_total", "retry_latency_seconds", "jobs_total", "queue_depth",
        "retry_wait_seconds", "retry_success_ratio", "retry_time_saved_seconds", "leases_recovered_total",
        "stale_outcomes_total", "workers_killed_total", "dlq_published_total", "dlq_publish_failures_total",
        "run_time_seconds", "wait_time_seconds", "latency_seconds", "store_commit_seconds", "hook_failures_total", "dropped_total",
        "schedule_jobs_total", "schedule_skipped_total", "schedule_missed_total",
        "kafka_lag", "kafka_committed_offset", "kafka_buffered_records", "kafka_undone_since_seconds",
        "kafka_commit_failures_total", "kafka_rebalances_total",
    }  # fmt: skip
    assert set(metrics.snapshot()) == {"supervisor_" + name for name in promised}


def test_a_snapshot_is_json_and_a_copy(metrics: Metrics) -> None:
    metrics(events.JobsSettled([succeeded()]))
    before = json.dumps(metrics.snapshot())
    snapshot = metrics.snapshot()
    metrics(events.JobsSettled([succeeded(), retried(), failed()]))
    assert json.dumps(snapshot) == before


def test_jobs_are_counted_by_their_last_state(metrics: Metrics) -> None:
    happened = events.JobsSettled([succeeded(), succeeded(), retried(), failed()])
    expired = events.JobsExpired([ExpiredJob(1, "thumb", "default"), ExpiredJob(2, "thumb", "default")])
    assert metric(metrics, "jobs_total", happened, events.JobCancelled(lease(), 1), expired) == {
        "succeeded": 2,
        "failed": 1,
        "cancelled": 3,
    }


def test_retries_and_their_backoff_are_counted_when_they_are_decided(metrics: Metrics) -> None:
    backoffs = metric(metrics, "retry_latency_seconds", events.JobsSettled([retried(2.0), retried(3.0), succeeded()]))
    assert (backoffs["count"], backoffs["sum"]) == (2, 5.0)
    assert metric(metrics, "retries_total") == 2


@pytest.mark.parametrize(
    ("outcome", "exhausted"),
    [
        (failed(retries=3), 1),
        (failed(Cause.REJECTED), 0),
        (failed(retryable=False), 0),
        (failed(Cause.UNKNOWN_HANDLER), 0),
        (retried(), 0),
    ],
)
def test_only_a_job_that_ran_out_of_retries_is_exhausted(metrics: Metrics, outcome: Outcome, exhausted: int) -> None:
    assert metric(metrics, "retry_exhausted_total", events.JobsSettled([outcome])) == exhausted


def test_the_success_ratio_is_of_ended_retries_only(metrics: Metrics) -> None:
    assert metric(metrics, "retry_success_ratio", events.JobsSettled([succeeded(), retried()])) is None
    ended = [succeeded(retries=1), retried(retries=1), failed(retries=2), succeeded(retries=3)]
    assert metric(metrics, "retry_success_ratio", events.JobsSettled(ended)) == 0.5


def test_a_released_job_is_no_retry_and_no_run(metrics: Metrics) -> None:
    released = Outcome(lease(retries=1), Kind.RELEASED, took=3.0, state=JobState.READY)
    before = metrics.snapshot()
    metrics(events.JobsSettled([released]))
    assert metrics.snapshot() == before


def test_a_snooze_is_a_run_and_neither_a_job_nor_a_retry(metrics: Metrics) -> None:
    snoozed = Outcome(lease(retries=1), Kind.SNOOZED, took=3.0, state=JobState.SCHEDULED, delay=30.0)
    before = metrics.snapshot()
    metrics(events.JobsSettled([snoozed]))
    after = metrics.snapshot()
    changed = {name for name, value in after.items() if value != before[name]}
    assert changed == {"supervisor_snoozes_total", "supervisor_run_time_seconds"}
    assert after["supervisor_snoozes_total"] == 1


def test_run_times_are_kept_by_handler(metrics: Metrics) -> None:
    batch = [
        succeeded(0.02),
        succeeded(0.03),
        succeeded(4.0, handler="mail"),
        succeeded(0.04),
        retried(),
        succeeded(None),
    ]
    runs = metric(metrics, "run_time_seconds", events.JobsSettled(batch))
    assert runs["thumb"]["count"] == 4
    assert runs["thumb"]["sum"] == pytest.approx(0.02 + 0.03 + 0.04 + 0.5)
    assert runs["mail"]["count"] == 1
    assert runs["mail"]["sum"] == 4.0
    assert [runs["thumb"]["buckets"][bound] for bound in ("0.01", "0.05", "0.5", "+Inf")] == [0, 3, 4, 4]


def test_waits_are_from_due_to_claim_and_retries_are_also_counted_by_themselves(metrics: Metrics) -> None:
    claimed = events.JobsClaimed([lease(waited=2.0), lease(waited=3.0, retries=1)])
    waits, retry_waits = metric(metrics, "wait_time_seconds", claimed), metric(metrics, "retry_wait_seconds")
    assert (waits["count"], waits["sum"]) == (2, pytest.approx(5.0))
    assert (retry_waits["count"], retry_waits["sum"]) == (1, pytest.approx(3.0))


def test_a_store_whose_clock_is_ahead_gives_no_negative_wait(metrics: Metrics) -> None:
    assert metric(metrics, "wait_time_seconds", events.JobsClaimed([lease(waited=-5.0)]))["sum"] == 0.0


def test_the_time_saved_is_that_of_the_fresh_jobs_that_a_retry_did_not_wait_for(metrics: Metrics) -> None:
    metrics(events.WorkerStarted(1, 101))
    metrics(events.WorkerStarted(2, 102))
    metrics(events.JobsSettled([succeeded(1.0), succeeded(3.0)]))
    metrics(events.QueueDepths({"default": (10, 1), "mail": (500, 0)}))
    saved = metric(metrics, "retry_time_saved_seconds", events.JobsClaimed([lease(retries=1), lease()]))
    assert (saved["count"], saved["sum"]) == (1, 10 * 2.0 / 2)
    metrics(events.WorkerExited(2, 102, "stopped", "exited", None))
    saved = metric(metrics, "retry_time_saved_seconds", events.JobsClaimed([lease(retries=1)]))
    assert saved["sum"] == 10.0 + 10 * 2.0 / 1


def test_no_time_is_saved_before_a_run_time_is_known(metrics: Metrics) -> None:
    assert metric(metrics, "retry_time_saved_seconds", events.JobsClaimed([lease(retries=1)]))["sum"] == 0.0


def test_queue_depths_are_those_last_seen(metrics: Metrics) -> None:
    depths = metric(metrics, "queue_depth", events.QueueDepths({"a": (3, 1)}), events.QueueDepths({"b": (7, 0)}))
    assert depths == {"b": {"fresh": 7, "retry": 0}}


def test_depths_of_a_part_of_the_queues_leave_those_of_the_others(metrics: Metrics) -> None:
    seen = events.QueueDepths({"a": (3, 1), "b": (2, 0)}), events.QueueDepths({"b": (0, 0), "c": (7, 0)}, more=True)
    assert metric(metrics, "queue_depth", *seen) == {"a": {"fresh": 3, "retry": 1}, "c": {"fresh": 7, "retry": 0}}


def test_recovered_leases_are_counted_with_the_outcomes_of_their_jobs(metrics: Metrics) -> None:
    released = Outcome(lease(), Kind.RELEASED, state=JobState.READY)
    assert metric(metrics, "leases_recovered_total", events.LeasesRecovered([released, retried(), failed()])) == 3
    assert metric(metrics, "retries_total") == 1
    assert metric(metrics, "jobs_total")["failed"] == 1


def test_stale_outcomes_are_counted(metrics: Metrics) -> None:
    assert metric(metrics, "stale_outcomes_total", events.JobsStale([lease(), lease()], "settle")) == 2
    assert metric(metrics, "stale_outcomes_total", events.DeadLettersStale("file", [42], "acceptance")) == 3


def test_killed_workers_are_counted_by_cause_and_normal_exits_are_not(metrics: Metrics) -> None:
    ends = ["timeout", "timeout", "crash", *events.NORMAL_EXITS]
    exits = [events.WorkerExited(1, 101, cause, "", None) for cause in ends]
    assert metric(metrics, "workers_killed_total", *exits) == {"timeout": 2, "crash": 1}


def test_dead_letters_are_counted_by_sink(metrics: Metrics) -> None:
    happened = [events.DeadLettersPublished("file", [1, 2]), events.DeadLettersFailed("mail", [1], "no", 1.0)]
    assert metric(metrics, "dlq_published_total", *happened) == {"file": 2}
    assert metric(metrics, "dlq_publish_failures_total") == {"mail": 1}


def test_failed_hooks_and_overflows_are_counted(metrics: Metrics) -> None:
    happened = [events.HookFailed("supervisor_events", "statsd", "no", ""), events.Dropped("hooks", 12)]
    assert metric(metrics, "hook_failures_total", *happened) == {"supervisor_events": 1}
    assert metric(metrics, "dropped_total") == {"hooks": 12}


def test_other_events_change_nothing(metrics: Metrics) -> None:
    before = metrics.snapshot()
    metrics(events.StoreBecameUnavailable("locked"))
    assert metrics.snapshot() == before


def test_a_histogram_counts_a_value_at_a_limit_as_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.snapshot() == {"count": 4, "sum": 12.0, "buckets": {"1": 2, "2": 3, "+Inf": 4}}


def test_the_latency_is_from_due_to_the_end_of_jobs_that_have_ended(metrics: Metrics) -> None:
    ended = events.JobsSettled([succeeded(waited=3.0), failed(waited=5.0), retried(waited=99.0)], age=1.0)
    latencies = metric(metrics, "latency_seconds", ended)
    assert (latencies["count"], latencies["sum"]) == (2, pytest.approx(2.0 + 4.0))


def test_commits_are_counted_by_the_time_that_they_took(metrics: Metrics) -> None:
    metrics.store_committed(0.2)
    commits = metric(metrics, "store_commit_seconds")
    assert (commits["count"], commits["sum"], commits["buckets"]["0.1"]) == (1, 0.2, 0)


def test_names_that_are_data_have_few_label_values(metrics: Metrics) -> None:
    many = [succeeded(handler=f"h{n}") for n in range(3 * MAX_HANDLERS)]
    runs = metric(metrics, "run_time_seconds", events.JobsSettled(many), events.JobsSettled(many))
    assert len(runs) == MAX_HANDLERS + 1
    assert (runs["h0"]["count"], runs[OTHERS]["count"]) == (2, 2 * 2 * MAX_HANDLERS)
    depths = metric(metrics, "queue_depth", events.QueueDepths({f"q{n}": (n, 1) for n in range(MAX_QUEUES + 3)}))
    assert len(depths) == MAX_QUEUES + 1 and "q2" not in depths
    assert depths[OTHERS] == {"fresh": 0 + 1 + 2, "retry": 3}
