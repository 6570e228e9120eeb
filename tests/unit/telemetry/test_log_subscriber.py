import inspect
import json
import logging
from typing import Any

import pytest

from supervisor import events
from supervisor.jobs import Cause, ExpiredJob, Failure, JobState, Kind, Lease, Outcome, Policy
from supervisor.kafka import events as kafka_events
from supervisor.schedules import events as schedule_events
from supervisor.telemetry import LogSubscriber
from supervisor.telemetry.log_handler import JsonFormat, TextFormat
from supervisor.text.rate_limit import MAX_KEYS, RateLimit
from tests.unit.telemetry.conftest import Clock


def lease(id: int = 42, retries: int = 0, handler: str = "thumb") -> Lease:
    return Lease(id, 7, handler, "default", "{}", None, retries, 0, 0, 0, 0, Policy())


def failed(cause: Cause = Cause.EXCEPTION, **more: Any) -> Outcome:
    failure = Failure(cause, type="ValueError", message="bad picture\nsecond line")
    return Outcome(lease(), Kind.FAILED, failure=failure, **more)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            events.SupervisorStarted("ab12", "box", 99, "postgresql://me:secret@db/jobs"),
            "INFO supervisor started: owner=ab12 host=box pid=99 store=postgresql://***@db/jobs",
        ),
        (
            events.JobsLocked([lease()]),
            "WARNING job=42 handler=thumb its row is locked by another session of the database: its outcome is kept, and settled "
            "once the row is free",
        ),
        (events.SupervisorStopping("SIGTERM"), "INFO supervisor stopping: SIGTERM"),
        (events.SignalReceived("SIGHUP", "reload"), "INFO SIGHUP received: reload"),
        (events.SupervisorStopped(0, {}), "INFO supervisor stopped: exit code 0"),
        (
            events.SupervisorStopped(4, {"ready": 3, "dead_letters": 1}),
            "INFO supervisor stopped: exit code 4; left behind: 3 ready, 1 dead letters",
        ),
        (
            events.PluginLoaded("plugins/a.py", ("thumb", "mail"), ()),
            "INFO plugin plugins/a.py loaded: handlers=thumb,mail",
        ),
        (events.PluginLoaded("plugins/a.py", (), ()), "INFO plugin plugins/a.py loaded: nothing in it"),
        (
            events.PluginFailed("plugins/a.py", 3, "SyntaxError: no", "Traceback"),
            "ERROR plugin plugins/a.py:3 did not load: SyntaxError: no",
        ),
        (events.PluginFailed("shop.jobs", None, "gone", ""), "ERROR plugin shop.jobs did not load: gone"),
        (events.PluginWarning("a.py", "started a thread"), "WARNING plugin a.py: started a thread"),
        (events.ConfigWarning("x.yaml: a: b"), "WARNING x.yaml: a: b"),
        (
            events.HookWarning("supervisor_events", "a.py", "has returned after 8s"),
            "WARNING hook supervisor_events of plugin a.py has returned after 8s",
        ),
        (events.ForkserverStarted(5), "INFO forkserver started (pid 5)"),
        (
            events.ForkserverExited(5, "killed by SIGKILL"),
            "WARNING forkserver (pid 5) exited: killed by SIGKILL; its workers keep running",
        ),
        (events.ForkserverExited(0, "could not be started: why"), "WARNING forkserver could not be started: why"),
        (
            events.WorkerExited(2, 0, "crash", "could not be started: why", None),
            "WARNING worker 2 could not be started: why",
        ),
        (events.WorkerExited(2, 0, "stopped", "no forkserver was ready", None), "INFO worker 2 exited: stopped"),
        (events.WorkerWarning(2, 0, "is late"), "WARNING worker 2 is late"),
        (
            events.WorkerExited(2, 123, "shutdown", "killed by SIGKILL during hook h of plugin a.py", None),
            "INFO worker 2 (pid 123) killed: no job cause=shutdown: killed by SIGKILL during hook h of plugin a.py",
        ),
        (events.WorkerStarted(2, 123), "INFO worker 2 (pid 123) started"),
        (
            events.WorkerExited(2, 123, "stopped", "exited with status 0", None),
            "INFO worker 2 (pid 123) exited: stopped",
        ),
        (
            events.WorkerExited(2, 123, "max_jobs", "workers.max_jobs is 100", None),
            "INFO worker 2 (pid 123) exited: max_jobs (workers.max_jobs is 100)",
        ),
        (
            events.WorkerExited(2, 123, "cancelled", "killed by SIGKILL", 42, "thumb", 1.0),
            "INFO worker 2 (pid 123) killed: job=42 handler=thumb cause=cancelled after 1.00s",
        ),
        (
            events.WorkerExited(2, 123, "not_ready", "not ready after 31s", None),
            "WARNING worker 2 (pid 123) killed: no job cause=not_ready: not ready after 31s",
        ),
        (
            events.WorkerExited(2, 123, "timeout", "killed by SIGKILL", 42, "thumb", 1.0),
            "WARNING worker 2 (pid 123) killed: job=42 handler=thumb cause=timeout after 1.00s",
        ),
        (
            events.WorkerExited(2, 123, "crash", "killed by SIGSEGV", None),
            "WARNING worker 2 (pid 123) crashed: no job cause=crash: killed by SIGSEGV",
        ),
        (
            events.WorkerOutput(2, 123, "stderr", 42, ["oh no"], "thumb"),
            "INFO worker 2 (pid 123) stderr job=42 handler=thumb: oh no",
        ),
        (events.WorkerOutput(2, 123, "stdout", 42, ["hi"]), "INFO worker 2 (pid 123) stdout job=42: hi"),
        (events.WorkerOutput(2, 123, "stdout", None, ["hello"]), "INFO worker 2 (pid 123) stdout: hello"),
        (
            events.WorkerLogged(2, 123, 40, "ERROR", "app", "oh no", "Traceback …\n", 42, "thumb", 3),
            "ERROR oh no",
        ),
        (
            events.WorkerLogged(2, 123, 25, "NOTICE", "supervisor", "loss", "", 42, None, None),
            "NOTICE loss",
        ),
        (
            events.WorkerLogged(0, 0, 20, "INFO", "app", "imported", "", None, None, None),
            "INFO imported",
        ),
        (events.WorkerWarning(2, 123, "is stuck"), "WARNING worker 2 (pid 123) is stuck"),
        (events.JobsClaimed([lease(retries=1)]), "DEBUG job=42 handler=thumb attempt 2 claimed under token 7"),
        (events.JobStarted(lease(), 123), "DEBUG job=42 handler=thumb attempt 1 started on pid 123"),
        (
            events.JobsSettled([Outcome(lease(), Kind.SUCCEEDED, took=0.0123)]),
            "DEBUG job=42 handler=thumb attempt 1 succeeded in 0.012s",
        ),
        (
            events.JobsSettled([failed(state=JobState.SCHEDULED, delay=0.52, counted=True)]),
            "INFO job=42 handler=thumb attempt 1 failed: cause=exception ValueError: bad picture; retry 1 of 3 in 0.52s",
        ),
        (
            events.JobsSettled([failed(Cause.REJECTED, state=JobState.FAILED, dead_letter=True)]),
            "WARNING job=42 handler=thumb attempt 1 failed: cause=rejected ValueError: bad picture; "
            "failed for good; now a dead letter",
        ),
        (
            events.JobsSettled([failed(Cause.UNKNOWN_HANDLER, state=JobState.SCHEDULED, delay=30.0)]),
            "INFO job=42 handler=thumb attempt 1 failed: cause=unknown_handler ValueError: bad picture; "
            "no retry counted; again in 30.00s",
        ),
        (
            events.JobsSettled([Outcome(lease(), Kind.RELEASED, state=JobState.READY)]),
            "DEBUG job=42 handler=thumb released, no retry counted",
        ),
        (
            events.JobsSettled([Outcome(lease(), Kind.RELEASED, state=JobState.SCHEDULED, delay=30.0)]),
            "DEBUG job=42 handler=thumb released, no retry counted; again in 30.00s",
        ),
        (
            events.JobsSettled([Outcome(lease(), Kind.SNOOZED, state=JobState.SCHEDULED, delay=30.0)]),
            "DEBUG job=42 handler=thumb snoozed; again in 30.00s",
        ),
        (
            events.LeasesRecovered([Outcome(lease(), Kind.RELEASED, state=JobState.READY)]),
            "INFO job=42 handler=thumb recovered: released, no retry counted",
        ),
        (
            events.JobsStale([lease()], "settle"),
            "WARNING job=42 handler=thumb stale settle under token 7: nothing changed",
        ),
        (
            events.JobCancelled(lease(), 123),
            "INFO job=42 handler=thumb cancelled; its worker (pid 123) ends the attempt",
        ),
        (
            events.JobsExpired([ExpiredJob(42, "thumb", "default")]),
            "INFO job=42 handler=thumb expired before it started: cancelled",
        ),
        (
            events.DeadLettersStale("file", [42], "acceptance"),
            "WARNING job=42 dead letter for sink file: stale acceptance, nothing changed",
        ),
        (
            events.SinkMissing("old pager", 2),
            "WARNING 2 pending dead letters wait for sink old pager, which no running supervisor has: start one that has it, "
            "or drop it with: supervisor dlq drop-sink 'old pager'",
        ),
        (events.DeadLettersPublished("file", [42]), "INFO job=42 dead letter accepted by sink file"),
        (
            events.DeadLettersFailed("file", [42], "disk full", 2.0),
            "WARNING job=42 dead letter not accepted by sink file, offered again in 2.00s: disk full",
        ),
        (
            events.StoreBecameUnavailable("can't reach host=db password=secret user=me"),
            "ERROR store unavailable: can't reach host=db password=*** user=me",
        ),
        (events.StoreAvailableAgain(12.345), "INFO store available again after 12.35s"),
        (
            events.StoreLost("/data/jobs.db: the file was deleted"),
            "ERROR store lost: /data/jobs.db: the file was deleted; outcomes not settled yet are lost; "
            "put the file back if it was moved, then start the supervisor again: a start without it makes an empty store",
        ),
        (
            events.StoreRepaired("the counts of jobs in mail"),
            "WARNING store repaired: the counts of jobs in mail",
        ),
        (
            events.LoopGap(60.0),
            "WARNING the supervisor stood still for 60.00s; timeouts and heartbeats do not count this time",
        ),
        (
            events.ClockStepped(-3600.0),
            "WARNING the clock was set back by 1h: delayed jobs and jobs in backoff are due that much later; "
            "running jobs go on",
        ),
        (
            events.StoreCallFailed("prune jobs", "postgresql://me:secret@db/jobs: a foreign key", "jobs stay"),
            "ERROR the store fails to prune jobs: postgresql://***@db/jobs: a foreign key; meanwhile jobs stay, all else goes on, "
            "and it is tried again",
        ),
        (
            events.ConfigReloaded(("retry",), ("store",)),
            "WARNING config reloaded: retry; a restart is needed for: store",
        ),
        (events.ConfigReloaded((), ()), "INFO config reloaded: nothing changed"),
        (
            events.ConfigReloaded((), (), ("a.py",), ("mail",), ("pdf", "zip")),
            "WARNING config reloaded: plugin file a.py; handlers added: mail; "
            "handlers removed, whose jobs wait until one has them again: pdf, zip",
        ),
        (
            events.ConfigRefused(("workers.count: expected 1 or more",)),
            "ERROR config refused, the old one stays: workers.count: expected 1 or more",
        ),
        (events.StatusDumped({"queues": []}), 'INFO status: {"queues":[]}'),
        (events.Dropped("hooks", 12), "WARNING the queue of hooks overflowed: 12 events dropped"),
        (
            events.HookFailed("supervisor_events", "statsd", "ValueError: no", "Traceback"),
            "ERROR hook supervisor_events of plugin statsd failed: ValueError: no",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tuple) else "",
)
def test_each_event_has_its_line(log: Any, event: Any, line: str) -> None:
    assert log(event) == [line]


def test_every_event_but_two_has_a_line(log: Any) -> None:
    silent = {events.QueueDepths, kafka_events.GroupFigures}
    every = {
        value
        for module in (events, kafka_events, schedule_events)
        for _, value in inspect.getmembers(module, inspect.isclass)
        if value.__module__ == module.__name__ and value is not kafka_events.PartitionFigures
    }
    assert {event for event in every if hasattr(event, "_fields")} - silent == set(LogSubscriber().writers)


def test_a_released_batch_is_one_line_and_one_per_job_at_debug(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    released = events.JobsReleased([lease(1), lease(2)], "drain")
    assert log(released) == [
        "INFO released 2 jobs, no retry counted: drain",
        "DEBUG job=1 handler=thumb released: drain",
        "DEBUG job=2 handler=thumb released: drain",
    ]
    caplog.set_level(logging.INFO, "supervisor")
    assert len(log(released)) == 1


def test_an_unknown_handler_is_logged_once_a_minute_however_many_jobs_it_has(
    log: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "supervisor")
    event = events.JobsReleased([lease(id) for id in range(1, 1001)], "unknown_handler")
    start = "WARNING job=1 handler=thumb unknown_handler: no plugin serves it; its jobs are released, no retry counted"
    (line,) = log(event, event)
    assert line == f"{start}, and tried again later"
    clock.now += 61
    (line,) = log(event)
    assert line == f"{start}, and tried again later (1,999 more times since the last such line)"


def test_each_signal_is_logged_up_to_ten_in_ten_seconds(log: Any, clock: Clock) -> None:
    event = events.SignalReceived("SIGHUP", "reload")
    assert log(*[event] * 12) == ["INFO SIGHUP received: reload"] * 10
    clock.now += 10
    line = "INFO SIGHUP received: reload"
    assert log(event, event) == [f"{line} (2 more times since the last such line)", line]


def test_workers_that_cannot_start_for_one_reason_are_logged_once_a_minute(log: Any, clock: Clock) -> None:
    why = "could not be started: no memory"
    lines = log(*[events.WorkerExited(number, 0, "crash", why, None) for number in range(1, 100)])
    assert lines == [f"WARNING worker 1 {why}"]
    clock.now += 61
    lines = log(events.WorkerExited(100, 0, "crash", why, None))
    assert lines == [f"WARNING worker 100 {why} (98 more times since the last such line)"]
    assert len(log(*[events.ForkserverExited(0, why)] * 3)) == 1


def test_each_job_of_a_batch_has_its_line(log: Any) -> None:
    lines = log(events.JobsSettled([Outcome(lease(id), Kind.SUCCEEDED) for id in (1, 2)]))
    assert [line.split()[1] for line in lines] == ["job=1", "job=2"]


def test_above_debug_successes_make_no_record(
    log: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "supervisor")
    monkeypatch.setattr(logging.Logger, "log", lambda *_, **__: pytest.fail("a record was made"))
    leases = [lease()] * 500
    assert (
        log(
            events.JobsClaimed(leases),
            events.JobStarted(lease(), 1),
            events.JobsSettled([Outcome(one, Kind.SUCCEEDED) for one in leases]),
        )
        == []
    )


def test_programs_get_the_job_as_fields(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    log(events.JobsSettled([failed(state=JobState.FAILED)]))
    assert vars(caplog.records[0])["fields"] == {
        "job": 42, "handler": "thumb", "queue": "default", "attempt": 1, "cause": "exception",
    }  # fmt: skip
    log(events.WorkerExited(2, 123, "timeout", "killed", 42, "thumb", 1.0))
    assert vars(caplog.records[0])["fields"] == {
        "worker": 2, "pid": 123, "cause": "timeout", "job": 42, "handler": "thumb",
    }  # fmt: skip


def test_a_percent_sign_in_a_name_is_only_a_percent_sign(log: Any) -> None:
    assert log(events.JobStarted(lease(handler="100%s"), 5)) == [
        "DEBUG job=42 handler=100%s attempt 1 started on pid 5"
    ]


def test_an_identical_store_error_is_logged_once_a_minute(log: Any, clock: Clock) -> None:
    assert len(log(*[events.StoreBecameUnavailable("locked")] * 3, events.StoreBecameUnavailable("disk full"))) == 2
    clock.now = 61.0
    assert log(events.StoreBecameUnavailable("locked")) == [
        "ERROR store unavailable: locked (2 more times since the last such line)"
    ]


def test_calls_that_fail_and_succeed_in_turns_are_one_line_a_minute_until_a_recovery_lasts(
    log: Any, clock: Clock
) -> None:
    fails = events.StoreCallFailed("extend leases", "disk is full", "others may run the jobs")
    again = events.StoreCallSucceeded("extend leases", 0.001)
    line = f"ERROR {fails.text}, all else goes on, and it is tried again"
    assert log(fails, again) == [line]
    for _ in range(4):
        clock.now += 1
        assert log(fails, again) == []
    clock.now += 4
    able = "INFO the store is able to extend leases again, after 4.00s"
    assert log(events.QueueDepths({})) == [able]
    assert log(fails) == [line], "it is a new fault"
    clock.now += 60
    assert log(fails, again, events.SupervisorStopped(0, {})) == [
        line, "INFO the store is able to extend leases again, after 60.00s", "INFO supervisor stopped: exit code 0",
    ]  # fmt: skip


def test_an_outage_after_the_store_was_available_again_is_logged_again(log: Any) -> None:
    assert (
        len(
            log(
                events.StoreBecameUnavailable("locked"),
                events.StoreAvailableAgain(1.0),
                events.StoreBecameUnavailable("locked"),
            )
        )
        == 3
    )


def test_a_hook_that_fails_for_every_batch_is_logged_once_a_minute(log: Any) -> None:
    broken = events.HookFailed("supervisor_events", "statsd", "ValueError: no", "")
    assert len(log(broken, broken, broken._replace(plugin="other"))) == 2


def test_a_sink_that_keeps_refusing_is_logged_once_a_minute(log: Any) -> None:
    refused = events.DeadLettersFailed("file", [1, 2], "disk full", 1.0)
    assert len(log(refused, refused._replace(retry_in=2.0), refused._replace(error="gone"))) == 4


def test_a_rate_limit_forgets_keys_rather_than_grow(clock: Clock) -> None:
    limit = RateLimit(clock)
    for key in range(MAX_KEYS * 3):
        assert limit.allow(key) == 0
    assert len(limit._seen) <= MAX_KEYS


@pytest.mark.parametrize(
    ("event", "line", "fields"),
    [
        (
            events.WorkerLogged(2, 123, 40, "ERROR", "app", "oh no", "Traceback …\n", 42, "thumb", 3),
            "ERROR app: worker 2 (pid 123) job=42 handler=thumb attempt=3: oh no\n    Traceback …",
            {
                "level": "error", "logger": "app", "message": "oh no", "traceback": "Traceback …\n", "job": 42, "handler": "thumb",
                "attempt": 3, "worker": 2, "pid": 123,
            },
        ),
        (
            events.WorkerLogged(2, 123, 25, "NOTICE", "supervisor", "loss", "", 42, None, None),
            "NOTICE worker 2 (pid 123) job=42: loss",
            {"level": "notice", "logger": "supervisor", "message": "loss", "job": 42, "worker": 2, "pid": 123},
        ),
        (
            events.WorkerLogged(0, 0, 20, "INFO", "app", "imported", "", None, None, None),
            "INFO app: forkserver: imported",
            {"level": "info", "logger": "app", "message": "imported"},
        ),
    ],
)  # fmt: skip
def test_a_record_of_a_worker_keeps_its_level_and_its_logger(
    caplog: pytest.LogCaptureFixture, event: Any, line: str, fields: dict[str, Any]
) -> None:
    caplog.set_level(logging.DEBUG, "supervisor")
    LogSubscriber()(event)
    (record,) = caplog.records
    assert TextFormat().format(record).partition(" ")[2] == line
    shown = json.loads(JsonFormat().format(record))
    assert shown.pop("at") and shown == fields


def test_a_record_below_the_level_of_the_log_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "supervisor")
    LogSubscriber()(events.WorkerLogged(2, 123, 20, "INFO", "app", "hello", "", 42, "thumb", 1))
    assert caplog.records == []


def test_a_record_of_kafka_is_named_by_its_place(log, caplog) -> None:
    headers = '{"kafka.topic":"orders","kafka.partition":3,"kafka.offset":1207,"kafka.key":null}'
    record = lease()._replace(queue="orders", headers=headers)
    (line,) = log(events.JobCancelled(record, 123))
    assert line.startswith("INFO job=42 handler=thumb record=orders/3@1207 cancelled")
    assert caplog.records[0].fields["record"] == "orders/3@1207"
    log(events.JobCancelled(lease(), 123))
    assert "record" not in caplog.records[0].fields
