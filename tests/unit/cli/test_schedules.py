"""`supervisor schedules`: what a person sees of schedules, and changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.settings import Settings
from supervisor.schedules.policy import ScheduleState
from supervisor.stores.opening import open_store
from supervisor.stores.records import Presence
from supervisor.stores.schedules import ScheduleChange
from tests.unit.cli.conftest import Answer, Call, write

CONFIG = """
schedules:
  nightly: {handler: report, cron: "0 3 * * *", timezone: Europe/Berlin, payload: {m: 1}, queue: slow, priority: 2, jitter: 1h}
  often: {handler: ping, every: 30s, overlap: skip}
"""
PLUGIN = """
from supervisor import handler

@handler
def report(job): ...

@handler(schedule={"every": "1h"})
def sweep(job): ...
"""


@pytest.fixture(autouse=True)
def files(call: Call, scanned: None) -> None:
    write("supervisor.yaml", CONFIG)
    write("plugins/jobs.py", PLUGIN)


def store() -> Any:
    return open_store(Settings().store, create=True, base=Path())


def listed(call: Call) -> dict[str, Any]:
    return {json.loads(line)["schedule"]: json.loads(line) for line in call("schedules", "list", "--json").lines}


def put(*states: ScheduleState) -> None:
    """Write these rows, as supervisors do."""
    opened = store()
    by_name = {state.name: state for state in states}
    opened.change_schedules([*by_name], lambda now, rows: [ScheduleChange(by_name[name]) for name in rows])
    opened.close()


def running(call: Call, *names: str) -> Any:
    """A supervisor that fires these schedules. It has to be closed."""
    opened = store()
    opened.join("here-1", "here", 1)
    opened.announce(Presence("running", about={"schedules": [*names]}))
    return opened


def test_schedules_of_the_config_and_of_plugins_are_listed_before_any_store_exists(call: Call) -> None:
    found = listed(call)
    assert [*found] == ["nightly", "often", "sweep"]
    assert not Path("jobs.db").exists()
    nightly = found["nightly"]
    assert nightly.pop("next_at")[11:16] in ("01:00", "02:00")
    assert nightly == {
        "schedule": "nightly", "handler": "report", "fires": "cron 0 3 * * * Europe/Berlin", "cron": "0 3 * * *",
        "timezone": "Europe/Berlin", "every": None, "queue": "slow", "key": None, "group": None, "tags": [], "expires": None, "paused": False, "last_at": None, "last_outcome": None,
        "last_job": None, "supervisors": [], "problems": ["no running supervisor has it, so it does not fire"],
    }  # fmt: skip
    assert (found["sweep"]["every"], found["sweep"]["fires"]) == (3600.0, "every 1h")
    assert found["often"]["problems"] == [
        "no running supervisor has it, so it does not fire",
        "no plugin has the handler 'ping', so its jobs wait",
    ]


def test_what_supervisors_have_done_is_listed(call: Call) -> None:
    last = 1_790_000_000_000_000
    put(
        ScheduleState("nightly", "report", "cron 0 3 * * * Europe/Berlin", 5, last, "enqueued", last_job=3),
        ScheduleState("sweep", "sweep", "every 60s", 5, last, "missed", paused=True),
        ScheduleState("gone", "x", "every 5s", 5),
    )
    supervisor = running(call, "nightly", "sweep")
    try:
        supervisor.enqueue([])
        found = listed(call)
        nightly, sweep, gone = found["nightly"], found["sweep"], found["gone"]
        assert (nightly["last_at"], nightly["last_outcome"]) == ("2026-09-21T14:13:20.000000Z", "enqueued")
        assert nightly["last_job"] == {"id": 3, "state": None}
        assert (nightly["supervisors"], nightly["problems"]) == (["here-1"], [])
        assert (sweep["paused"], sweep["next_at"]) == (True, None)
        assert sweep["problems"] == ["paused", "supervisors fire it as every 1m: reload or restart them"]
        assert (gone["fires"], gone["next_at"], gone["queue"]) == ("every 5s", None, None)
        assert gone["problems"] == ["not in this config and its plugins, so it does not fire"]
        table = call("schedules", "list").out
        assert "cron 0 3 * * * Europe/Berlin" in table and "supervisors fire it as every 1m" in table
    finally:
        supervisor.leave()
        supervisor.close()
    assert listed(call)["nightly"]["supervisors"] == []


def test_without_schedules_the_list_names_where_they_come_from(call: Call) -> None:
    write("supervisor.yaml", "")
    write("plugins/jobs.py", "")
    assert call("schedules", "list").out == (
        "no schedules: `schedules:` in the config or @handler(schedule=...) makes one\n"
    )
    assert call("schedules", "list", "--json").out == ""


def test_a_plugin_that_does_not_load_may_have_the_handler(call: Call) -> None:
    write("plugins/broken.py", "import no_such_module")
    assert listed(call)["often"]["problems"] == ["no running supervisor has it, so it does not fire"]


def test_a_schedule_is_paused_and_resumed(call: Call) -> None:
    assert call("schedules", "resume", "nightly") == (0, "nightly: was not paused\n", "")
    assert call("schedules", "pause", "nightly") == (0, "nightly: paused\n", "")
    assert call("schedules", "pause", "nightly") == (0, "nightly: was paused already\n", "")
    assert listed(call)["nightly"]["problems"][0] == "paused"
    assert call("schedules", "resume", "nightly") == (0, "nightly: resumed\n", "")
    assert listed(call)["nightly"]["paused"] is False


def test_a_schedule_of_a_plugin_or_of_another_config_can_be_paused(call: Call) -> None:
    put(ScheduleState("elsewhere", "x", "every 5s", 5))
    for name in ("sweep", "elsewhere"):
        assert call("schedules", "pause", name) == (0, f"{name}: paused\n", "")


def test_a_name_that_nobody_knows_is_refused(call: Call) -> None:
    call("enqueue", "report")
    for command in ("pause", "resume"):
        assert call("schedules", command, "nightyl") == (
            2,
            "",
            "Error: no schedule 'nightyl' in the store, in this config and its plugins, did you mean 'nightly'?\n",
        )
    assert call("schedules", "run", "x").err == (
        "Error: no schedule 'x' in this config and its plugins; expected one of nightly, often, sweep\n"
    )
    assert call("schedules", "run", "a\nb").code == 2
    assert store().schedules() == []


def test_a_schedule_that_was_taken_out_is_forgotten(call: Call) -> None:
    put(ScheduleState("gone", "x", "every 5s", 5), ScheduleState("nightly", "report", paused=True))
    assert call("schedules", "forget", "gone") == (0, "gone: forgotten\n", "")
    assert "gone" not in listed(call)
    assert (
        call("schedules", "forget", "gone").err == "Error: no schedule 'gone' in the store; expected one of nightly\n"
    )
    assert call("schedules", "forget", "nightly").code == 0
    assert listed(call)["nightly"]["paused"] is False


def test_a_schedule_that_a_supervisor_fires_is_not_forgotten(call: Call) -> None:
    put(ScheduleState("gone", "x", "every 5s", 5))
    supervisor = running(call, "gone")
    answer = call("schedules", "forget", "gone")
    supervisor.leave()
    supervisor.close()
    assert (answer.code, answer.err) == (
        2,
        "Error: supervisor here-1 fires it: take it out of the config or the plugin, and reload that supervisor, before it is "
        "forgotten\n",
    )
    assert call("schedules", "forget", "gone").code == 0


def enqueued(answer: Answer, call: Call) -> dict[str, Any]:
    assert answer.code == 0, answer.err
    job: dict[str, Any] = call("jobs", "show", answer.out.strip(), "--json").json
    return job


def test_a_job_is_enqueued_at_once_with_all_that_the_schedule_gives_it(call: Call) -> None:
    call("schedules", "pause", "nightly")
    answer = call("schedules", "run", "nightly")
    job = enqueued(answer, call)
    assert (job["handler"], job["payload"], job["queue"], job["priority"], job["state"]) == (
        "report", {"m": 1}, "slow", 2, "ready",
    )  # fmt: skip
    assert job["headers"]["schedule.name"] == "nightly"
    assert answer.err == ""
    assert listed(call)["nightly"]["last_job"] == {"id": job["id"], "state": "ready"}
    assert listed(call)["nightly"]["last_at"] is None
    assert enqueued(call("schedules", "run", "sweep"), call)["handler"] == "sweep"


def test_no_job_runs_beside_another_of_a_schedule_that_skips(call: Call) -> None:
    first = call("schedules", "run", "often")
    assert (first.out, first.err) == ("1\n", "Warning: no plugin has the handler 'ping'\n")
    second = call("schedules", "run", "often")
    assert (second.code, second.out) == (2, "")
    assert second.err.endswith(
        "Error: job 1 of this schedule has not ended, and overlap: skip allows no other beside it: wait, or cancel it with: "
        "supervisor jobs cancel 1\n"
    )
    assert listed(call)["often"]["last_job"] == {"id": 1, "state": "ready"}
    call("jobs", "cancel", "1")
    assert call("schedules", "run", "often").out == "2\n"


def test_jobs_of_a_schedule_that_allows_it_run_beside_each_other(call: Call) -> None:
    assert [call("schedules", "run", "nightly").out for _ in range(2)] == ["1\n", "2\n"]


def test_a_kafka_store_keeps_none(call: Call) -> None:
    write("supervisor.yaml", "store: {type: kafka, bootstrap: 'box:9092', group: g, topics: {orders: report}}")
    answer = call("schedules", "list")
    assert (answer.code, "keep schedules" in answer.err) == (2, True)


def test_check_warns_of_a_schedule_without_a_handler(call: Call) -> None:
    answer = call("check")
    assert (answer.code, answer.lines[-1]) == (0, "all right")
    assert "Warning: supervisor.yaml: schedules.often.handler: no plugin has the handler 'ping'" in answer.err


def test_check_shows_when_each_schedule_fires(call: Call) -> None:
    before = datetime.now(UTC)
    shown = [line for line in call("check").lines if line.startswith("schedule: ")]
    assert [line.partition("; the next time from now is ")[0] for line in shown] == [
        "schedule: nightly: report, cron 0 3 * * * Europe/Berlin",
        "schedule: often: ping, every 30s",
        "schedule: sweep: sweep, every 1h",
    ]
    assert all(datetime.fromisoformat(line[-27:]) > before for line in shown)


def test_check_shows_what_relates_the_jobs_of_a_schedule_to_others(call: Call) -> None:
    write(
        "supervisor.yaml",
        "schedules: {sweep: {handler: sweep, every: 1h, key: k, on_failure: hold, group: g, tags: [a, b], expires: 90s, "
        "headers: {token: x}}}",
    )
    (line,) = (line for line in call("check").lines if line.startswith("schedule: "))
    assert line.startswith(
        "schedule: sweep: sweep, every 1h, key k, which a failed job holds, group g, tags a b, expires after 1m 30s, headers token; "
    )
    sweep = listed(call)["sweep"]
    assert [sweep[name] for name in ("key", "group", "tags", "expires")] == ["k", "g", ["a", "b"], 90.0]


def test_check_names_a_payload_that_does_not_fit_the_parameters_of_the_handler(call: Call) -> None:
    write("plugins/typed.py", "from supervisor import handler\n@handler\ndef mail(to: str, copies: int = 1): ...\n")
    write("supervisor.yaml", "schedules: {n: {handler: mail, every: 1h, payload: {to: me, copies: many}}}")
    answer = call("check")
    assert answer.code == 2
    assert "Error: schedule 'n': handler 'mail': payload.copies: expected" in answer.err
    write("supervisor.yaml", "schedules: {n: {handler: mail, every: 1h, payload: {to: me, copies: 3}}}")
    assert call("check").code == 0


def test_check_names_a_wrong_schedule_of_the_config_and_of_a_plugin(call: Call) -> None:
    write("supervisor.yaml", 'schedules: {n: {handler: report, cron: "0 25 * * *"}}')
    write("plugins/jobs.py", PLUGIN.replace('{"every": "1h"}', '"61 * * * *"'))
    answer = call("check")
    assert answer.code == 2
    assert "supervisor.yaml:1: schedules.n.cron: expected a cron expression of five fields" in answer.err
    assert "handler 'sweep': schedule.cron: expected a cron expression of five fields" in answer.err
    assert "its minute is wrong" in answer.err
