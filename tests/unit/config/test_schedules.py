"""Schedules of the config and of @handler: what is read, refused and warned of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.config.contradictions import handler_problems
from supervisor.config.loading import load
from supervisor.config.misspelt import named_queues
from supervisor.config.schedules import of_handler
from supervisor.config.schedules_in_force import NOT_ON_KAFKA, schedule_warnings, schedules_of
from supervisor.config.settings import Settings
from supervisor.handlers import HandlerInfo
from supervisor.schedules.fire_times import Cron, Every
from supervisor.schedules.policy import Schedule

ALL_KEYS = """
schedules:
  nightly:
    handler: report
    cron: "0  3 * * mon-fri"
    timezone: Europe/Berlin
    payload: {month: last, sizes: [1, 2.5, null]}
    queue: slow
    priority: -3
    jitter: 30s
    on_missed: all
    overlap: skip
    key: reports
    on_failure: hold
    group: tenant 7
    tags: [night, report, night]
    expires: 6h
    headers: {source: cron, tries: [1, null]}
  often: {handler: ping, every: 1.5s}
"""


def test_every_key_is_read(write: Any) -> None:
    found = schedules_of(load(write(ALL_KEYS), {}), {})
    assert found["nightly"] == Schedule(
        "nightly", "report", Cron("0 3 * * mon-fri", "Europe/Berlin"), found["nightly"].payload, "slow", -3, 30.0, "all", "skip",
        "reports", "hold", "tenant 7", ("night", "report"), 6 * 3600.0, {"source": "cron", "tries": [1, None]},
    )  # fmt: skip
    assert json.loads(found["nightly"].payload) == {"month": "last", "sizes": [1, 2.5, None]}
    assert found["often"] == Schedule("often", "ping", Every(1_500_000))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ('handler: x, cron: "0 25 * * *"', "cron: expected a cron expression of five fields, such as 0 3 * * *: minute, hour, "
         "day of month, month and day of week; its hour is wrong, got 0 25 * * *"),
        ("handler: x, cron: 5", "cron: expected text; YAML reads this as a number: quote it, got 5"),
        ('handler: x, cron: "0 0 */20 * 1L"', "cron: expected a cron expression that fires at some time, got 0 0 */20 * 1L"),
        ('handler: x, cron: "* * * * *", timezone: Europe/Berln',
         "timezone: expected a time zone of this system, such as Europe/Berlin, did you mean 'Europe/Berlin'?, got Europe/Berln"),
        ("handler: x, every: 10ms", "every: expected a duration of at least 1s, got 10ms"),
        ("handler: x, every: 10", "every: expected a duration such as 500ms, 30s, 5m, 2h or 1d; a number needs a unit: write 30s, got 10"),
        ("handler: x, every: 10s, payload: {a: .nan}", "payload: payload.a: nan is not a finite number"),
        ("handler: x, every: 10s, jitter: often", "jitter: expected a duration such as 500ms, 30s, 5m, 2h or 1d, or none for no limit, got often"),
        ("handler: x, every: 10s, on_missed: twice", "on_missed: expected skip or once or all, got twice"),
        ("handler: x, every: 10s, overlap: no", "overlap: expected allow or skip, got no"),
        ("handler: x, every: 10s, priority: high", "priority: expected a whole number from -9223372036854775808 to 9223372036854775807, got high"),
        ("handler: x, every: 10s, hourly: true", "hourly: unknown key; expected one of handler, cron, every, timezone, payload, "
         "queue, priority, jitter, on_missed, overlap, key, on_failure, group, tags, expires, headers"),
        ("handler: x, every: 10s, key: ''", "key: expected a name of 1 to 255 printable characters without spaces around it, got nothing"),
        ("handler: x, every: 10s, on_failure: hold", "on_failure: expected key with it, got hold"),
        ("handler: x, every: 10s, key: k, on_failure: stop", "on_failure: expected pass or hold, got stop"),
        ("handler: x, every: 10s, group: 7", "group: expected text; YAML reads this as a number: quote it, got 7"),
        ("handler: x, every: 10s, tags: night", "tags: expected a list of at most 20 texts, got night"),
        ("handler: x, every: 10s, tags: [' x']", "tags: expected a name of 1 to 255 printable characters without spaces around it"),
        ("handler: x, every: 10s, expires: soon", "expires: expected a duration such as 500ms, 30s, 5m, 2h or 1d, or none for no limit, got soon"),
        ("handler: x, every: 10s, headers: [a]", "headers: expected a mapping"),
        ("handler: x, every: 10s, headers: {a: .inf}", "headers: headers.a: inf is not a finite number"),
        ("handler: x, every: 10s, headers: {schedule.time: now}", "headers: expected other names: schedule.time is set by the schedule"),
        ("every: 10s", "handler: missing; expected the name of a handler"),
        ("handler: ' x', every: 10s", "handler: expected a name of 1 to 255 printable characters without spaces around it, got  x"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_named_with_what_was_expected(errors: Any, keys: str, expected: str) -> None:
    assert errors(f"schedules: {{nightly: {{{keys}}}}}") == [f"supervisor.yaml:1: schedules.nightly.{expected}"]


def test_a_system_without_time_zones_is_named_with_the_package_that_has_them(
    errors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoneinfo.available_timezones", lambda: set())
    (error,) = errors('schedules: {n: {handler: x, cron: "* * * * *", timezone: Europe/Nowhere}}')
    assert error.endswith("such as Europe/Berlin; it has none, so install the package tzdata, got Europe/Nowhere")


@pytest.mark.parametrize(
    ("keys", "more"), [("handler: x", ""), ('handler: x, every: 10s, cron: "* * * * *"', ", not both")]
)
def test_a_schedule_has_one_timing(errors: Any, keys: str, more: str) -> None:
    assert errors(f"schedules: {{nightly: {{{keys}}}}}") == [
        f"supervisor.yaml:1: schedules.nightly: expected either cron or every{more}"
    ]


@pytest.mark.parametrize("cron", ["*/5 * * * *", "* * * * *"])
@pytest.mark.parametrize(
    "text", ["schedules:\n n: {{handler: x, cron: {}}}", "schedules:\n n:\n  cron: {}\n  handler: x"]
)
def test_an_expression_that_yaml_reads_as_something_else_is_to_be_quoted(errors: Any, text: str, cron: str) -> None:
    (error,) = errors(text.format(cron))
    assert "not YAML: " in error
    assert error.endswith('; write a value that begins with * in quotes, such as "*/5 * * * *"')


def test_a_wrong_name_and_a_payload_past_the_limit_are_refused(errors: Any) -> None:
    assert errors("schedules: {'': {handler: x, every: 1s}}")[0].startswith(
        "supervisor.yaml:1: schedules.: expected a name of 1 to 255"
    )
    assert errors("limits: {payload: 4B}\nschedules: {n: {handler: x, every: 1s, payload: hello}}") == [
        "supervisor.yaml:2: schedules.n.payload: payload: 7 bytes of JSON, expected at most 4"
    ]
    assert errors("limits: {payload: 4B}\nschedules: {n: {handler: x, every: 1s, headers: {a: 1}}}") == [
        "supervisor.yaml:2: schedules.n.headers: headers: 7 bytes of JSON, expected at most 4"
    ]


KAFKA = "store: {type: kafka, bootstrap: 'box:9092', group: g, topics: {orders: x}}\n"


def test_a_kafka_store_has_no_schedules(errors: Any, write: Any) -> None:
    assert errors(f"{KAFKA}schedules: {{n: {{handler: x, every: 1s}}}}") == [
        f"supervisor.yaml:2: schedules: {NOT_ON_KAFKA}"
    ]
    scheduled = HandlerInfo("x", {"schedule": {"every": "1s"}}, "f.py", 1)
    assert handler_problems(load(write(KAFKA), {}), scheduled) == [f"handler 'x': schedule: {NOT_ON_KAFKA}"]
    assert handler_problems(Settings(), scheduled) == []


def test_warnings_name_the_schedules_that_enqueue_for_nobody(write: Any) -> None:
    path = write(
        "workers: {queues: [mail]}\n"
        "schedules: {n: {handler: reprot, every: 1s, queue: slow, timezone: UTC}, ok: {handler: report, every: 1s}}"
    )
    settings = load(path, {})
    assert [warning.removeprefix(f"{path}: schedules.n") for warning in schedule_warnings(settings, {"report"})] == [
        ".handler: no plugin has the handler 'reprot', did you mean 'report'?; its jobs wait until one has it",
        ".queue: no worker here serves queue 'slow'; another supervisor has to, or add it to workers.queues",
        ".timezone: it has no effect beside every",
    ]
    assert "slow" in named_queues(settings)


@pytest.mark.parametrize(
    ("timing", "jitter", "shortest"),
    [
        ("every: 10s", "11s", "10s"),
        ("every: 10s", "10s", None),
        ('cron: "0 9,17 * * *"', "9h", "8h"),
        ('cron: "0 9,17 * * *"', "8h", None),
        ('cron: "0 0 1 1 *"', "10d", None),
    ],
)
def test_a_jitter_longer_than_the_time_between_two_fire_times_is_warned_of(
    write: Any, timing: str, jitter: str, shortest: str | None
) -> None:
    path = write(f"schedules: {{n: {{handler: x, {timing}, jitter: {jitter}}}}}")
    found = [*schedule_warnings(load(path, {}), {"x"})]
    assert (
        found
        == [
            f"{path}: schedules.n.jitter: it is longer than the {shortest} between two fire times, so jobs may come in another order than "
            "their fire times, and several at once"
        ][: shortest is not None]
    )


def test_a_job_that_expires_before_it_may_be_due_is_warned_of(write: Any) -> None:
    path = write(
        "schedules: {n: {handler: x, every: 1h, jitter: 10m, expires: 10m}, ok: {handler: x, every: 1h, jitter: 9m, expires: 10m}}"
    )
    assert [*schedule_warnings(load(path, {}), {"x"})] == [
        f"{path}: schedules.n.expires: it is not longer than jitter, so jobs that are due later than that never run"
    ]


# --- @handler


def info(name: str, **options: Any) -> HandlerInfo:
    return HandlerInfo(name, options, "f.py", 1)


def test_a_decorator_gives_its_handler_a_schedule_of_its_name() -> None:
    written = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "payload": [1], "overlap": "skip"}
    handlers = {"report": info("report", schedule=written, queue="slow", priority=5), "ping": info("ping")}
    (schedule,) = schedules_of(Settings(), handlers).values()
    assert schedule == Schedule(
        "report", "report", Cron("0 3 * * *", "Europe/Berlin"), "[1]", "slow", 5, 0.0, "once", "skip"
    )


def test_a_decorator_gives_jobs_a_key_a_group_tags_an_expiry_and_headers() -> None:
    written = {"every": 5, "key": "k", "group": "g", "tags": ("a", "b"), "expires": 60, "headers": {"h": 1}}
    (schedule,) = schedules_of(Settings(), {"report": info("report", schedule=written)}).values()
    assert (schedule.key, schedule.on_failure, schedule.group, schedule.tags) == ("k", "pass", "g", ("a", "b"))
    assert (schedule.expires, schedule.headers) == (60.0, {"h": 1})
    large = info("report", schedule={"every": 5, "headers": {"h": "long"}})
    assert handler_problems(Settings(limits={"payload": 8}), large) == [
        "handler 'report': schedule: headers: 12 bytes of JSON, expected at most 8"
    ]


def test_the_config_overrides_the_schedule_of_a_decorator_and_its_queue() -> None:
    handlers = {"report": info("report", schedule={"every": 5}, queue="slow", priority=5)}
    settings = Settings(
        schedules={
            "report": {"handler": "report", "every": 7},
            "more": {"handler": "report", "every": 9, "priority": 0},
        },
        handlers={"report": {"queue": "fast"}},
    )
    found = schedules_of(settings, handlers)
    assert {name: (it.timing, it.queue, it.priority) for name, it in found.items()} == {
        "report": (Every(7_000_000), "fast", 5),
        "more": (Every(9_000_000), "fast", 0),
    }


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0 25 * * *", "schedule.cron: expected a cron expression of five fields"),
        ({"evry": "5s"}, "schedule.evry: unknown key, did you mean 'every'?"),
        ({"every": "5 parsecs"}, "schedule.every: expected a duration"),
        ({"every": 0.5}, "schedule.every: expected a duration of at least 1s, got 0.5"),
        ({}, "schedule: expected either cron or every"),
        ({"every": 5, "cron": "* * * * *"}, "schedule: expected either cron or every"),
        ({"every": 5, "handler": "x"}, "schedule.handler: unknown key; the handler is the one below @handler"),
        ({"every": 5, "payload": {1}}, "schedule.payload: payload: set is not JSON"),
        ({"every": 5, "headers": {"a": {1}}}, "schedule.headers: headers.a: set is not JSON"),
        ({"every": 5, "on_failure": "hold"}, "schedule.on_failure: expected key with it"),
        ({"every": 5, "tags": "night"}, "schedule.tags: expected a list of at most 20 texts, got 'night'"),
        (5, "schedule: expected a cron expression or a mapping, got 5"),
    ],
)
def test_a_wrong_schedule_of_a_decorator_is_refused(written: Any, expected: str) -> None:
    with pytest.raises(ValueError) as refused:
        of_handler("x", written)
    assert str(refused.value).startswith(expected)
