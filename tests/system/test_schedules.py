"""Schedules of the real command: whatever is killed, restarted, reloaded or set, each fire time has one job."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.sqlite.store import SqliteStore
from tests.stores.postgres_server import Server
from tests.system.command import Command, Running, wait_for
from tests.system.test_clock import HOUR, Clock

PLUGIN = {
    "jobs.py": """
        import os, time
        from supervisor import handler

        @handler
        def notes(job):
            return job.headers["schedule.time"]

        @handler
        def waits(job):
            while not os.path.exists("go"):
                time.sleep(0.01)

        @handler
        def typed(number: int): ...
    """
}
DECORATED = """
    from supervisor import handler

    @handler(schedule={"every": "1s", "payload": {"x": 1}})
    def sweeps(job):
        return job.payload
"""
AT_ONE = datetime(2026, 3, 28, 13, tzinfo=UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server({})
    yield server
    server.remove()


def use(command: Command, more: str = "", **schedules: Any) -> None:
    """Write the config, which is JSON and so YAML, with these schedules."""
    command.write(config=f"{more}\nworkers: {{count: 1}}\nschedules: {json.dumps(schedules)}\n", plugins=PLUGIN)


def times(command: Command, name: str) -> list[str]:
    """The fire times that have jobs, oldest first."""
    jobs = [job for job in command.jobs() if job["headers"].get("schedule.name") == name]
    return [job["headers"]["schedule.time"] for job in reversed(jobs)]


def at_least(command: Command, name: str, number: int) -> Callable[[], list[str]]:
    def found() -> list[str]:
        seen = times(command, name)
        assert len(seen) >= number, seen
        return seen

    return found


def schedules(command: Command) -> dict[str, Any]:
    return {
        json.loads(line)["schedule"]: json.loads(line)
        for line in command.ask("schedules", "list", "--json").splitlines()
    }


def started(command: Command) -> Running:
    run = command.run()
    run.logged("supervisor started")
    return run


def started_before(command: Command, clock: Clock, when: datetime) -> Running:
    """Start a supervisor half an hour earlier. From the return on it counts fire times, and it is set to `when`."""
    clock.set_to(when - timedelta(minutes=30))
    run = started(command)

    def all_known() -> None:
        with closing(SqliteStore(command.folder / "jobs.db")) as store:
            assert all(row.state.timing for row in store.schedules()), "registered"
            assert {row.state.name for row in store.schedules()} == set(schedules(command))

    wait_for(all_known)
    clock.set_to(when)
    return run


def until_fired_by_one(command: Command, name: str) -> None:
    def fired() -> None:
        row = schedules(command)[name]
        assert (row["problems"], len(row["supervisors"])) == ([], 1)

    wait_for(fired)


def reload(run: Running) -> None:
    before = run.log.count("config reloaded")
    run.signal(signal.SIGHUP)
    wait_for(lambda: run.log.count("config reloaded") > before)


def stop(run: Running) -> None:
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def store_of(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return ""
    server: Server = request.getfixturevalue("server")
    schema = f"schedules_{random.randrange(10**9)}"
    PostgresStore(server.url, schema=schema, create=True).close()
    return f"store: {json.dumps({'url': server.url, 'schema': schema})}"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_supervisors_that_are_killed_at_random_enqueue_each_fire_time_once(
    command: Command, request: pytest.FixtureRequest, kind: str
) -> None:
    use(command, store_of(kind, request), often={"handler": "notes", "every": "1s", "on_missed": "all"})
    choose = random.Random(kind)
    runs = [started(command), started(command)]
    while len(times(command, "often")) < 12:
        time.sleep(choose.uniform(0.05, 0.8))  # at any moment between two fire times
        victim = choose.randrange(2)
        runs[victim].kill()
        runs[victim] = started(command)
    wait_for(at_least(command, "often", 15))
    command.ask("schedules", "pause", "often")
    seen = times(command, "often")
    moments = [datetime.fromisoformat(each) for each in seen]
    assert moments == [moments[0] + timedelta(seconds=n) for n in range(len(moments))], "one for each second"

    def all_done() -> None:
        states = {job["state"] for job in command.jobs()}
        assert states == {"succeeded"}, states

    wait_for(all_done, timeout=30.0)
    assert times(command, "often") == seen


@pytest.mark.parametrize(
    ("on_missed", "made_up"), [("skip", []), ("once", ["16:00"]), ("all", ["14:00", "15:00", "16:00"])]
)
def test_fire_times_without_a_supervisor_are_missed(command: Command, on_missed: str, made_up: list[str]) -> None:
    clock = Clock(command)
    use(command, hourly={"handler": "notes", "cron": "0 * * * *", "on_missed": on_missed})
    first = started_before(command, clock, AT_ONE)
    wait_for(at_least(command, "hourly", 1))
    stop(first)
    clock.set(3 * HOUR + 600.0)
    second = started(command)
    second.logged("schedule hourly: 3 fire times were missed, the last one at 2026-03-28T16:00:00.000000Z")
    wait_for(lambda: [each[11:16] for each in times(command, "hourly")] == ["13:00", *made_up])
    stop(second)


def test_a_nightly_schedule_fires_once_in_the_night_of_summer_time(command: Command) -> None:
    clock = Clock(command)
    berlin = {"handler": "notes", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    use(command, nightly=berlin)
    run = started_before(command, clock, datetime(2026, 3, 29, 1, tzinfo=UTC))
    assert wait_for(at_least(command, "nightly", 1)) == ["2026-03-29T01:00:00.000000Z"]
    clock.set(23 * HOUR)
    run.logged("the clock was set forward by 23h")
    clock.set(1800.0)
    assert wait_for(at_least(command, "nightly", 2))[1] == "2026-03-30T00:30:00.000000Z"


def test_a_clock_that_is_set_by_an_hour_each_way_repeats_and_loses_nothing(command: Command) -> None:
    clock = Clock(command)
    hourly = {"handler": "notes", "cron": "0 * * * *", "on_missed": "all"}
    use(command, hourly=hourly, often={"handler": "notes", "every": "1s"})
    runs = started_before(command, clock, AT_ONE), started(command)
    wait_for(at_least(command, "hourly", 1))
    clock.set(-HOUR)
    for run in runs:
        run.logged("the clock was set back by ")
    number = len(times(command, "often"))
    wait_for(at_least(command, "often", number + 3))
    assert times(command, "hourly") == ["2026-03-28T13:00:00.000000Z"]
    clock.set(2 * HOUR)
    assert wait_for(at_least(command, "hourly", 2)) == ["2026-03-28T13:00:00.000000Z", "2026-03-28T14:00:00.000000Z"]
    number = len(times(command, "often"))
    seen = wait_for(at_least(command, "often", number + 3))
    assert len(seen) == len(set(seen))


def test_a_reload_adds_changes_and_removes_schedules(command: Command) -> None:
    use(command, old={"handler": "notes", "every": "1s"}, changed={"handler": "notes", "every": "1h"})
    run = started(command)
    wait_for(at_least(command, "old", 1))
    use(command, new={"handler": "notes", "every": "1s"}, changed={"handler": "notes", "every": "1s"})
    reload(run)
    wait_for(at_least(command, "new", 1))
    gone = times(command, "old")
    wait_for(at_least(command, "new", 3))
    wait_for(at_least(command, "changed", 3))
    assert times(command, "old") == gone
    until_fired_by_one(command, "new")
    assert schedules(command)["old"]["problems"] == ["not in this config and its plugins, so it does not fire"]
    right = command.config.read_text()
    use(command, new={"handler": "notes", "cron": "0 25 * * *"})
    run.signal(signal.SIGHUP)
    run.logged("config refused, the old one stays: ")
    command.write(config=right)
    number = len(times(command, "new"))
    wait_for(at_least(command, "new", number + 2))


def test_no_job_is_enqueued_beside_an_unfinished_one(command: Command) -> None:
    use(command, alone={"handler": "waits", "every": "1s", "overlap": "skip"})
    run = started(command)
    line = run.logged("schedule alone at ")
    assert "skipped: its last job 1 has not ended" in line
    assert len(times(command, "alone")) == 1
    assert schedules(command)["alone"]["last_outcome"] == "skipped: its last job 1 has not ended"
    (command.folder / "go").touch()
    wait_for(at_least(command, "alone", 2))


def test_a_schedule_of_a_plugin_fires_and_obeys_a_person(command: Command) -> None:
    command.write(plugins={"sweeps.py": DECORATED})
    run = started(command)
    wait_for(at_least(command, "sweeps", 1))
    until_fired_by_one(command, "sweeps")
    row = schedules(command)["sweeps"]
    assert (row["handler"], row["every"]) == ("sweeps", 1.0)
    command.ask("schedules", "pause", "sweeps")
    seen = len(times(command, "sweeps"))
    wait_for(lambda: schedules(command)["sweeps"]["last_outcome"] == "paused")
    before = schedules(command)["sweeps"]["last_at"]
    wait_for(lambda: schedules(command)["sweeps"]["last_at"] > before)
    assert len(times(command, "sweeps")) == seen
    id = int(command.ask("schedules", "run", "sweeps"))
    assert command.until(id, "succeeded")["result"] == {"x": 1}
    command.ask("schedules", "resume", "sweeps")
    wait_for(at_least(command, "sweeps", seen + 3))
    stop(run)
    assert schedules(command)["sweeps"]["problems"] == ["no running supervisor has it, so it does not fire"]


def test_a_drain_fires_nothing_and_ends(command: Command) -> None:
    use(command, often={"handler": "notes", "every": "1s", "on_missed": "all"})
    run = started(command)
    wait_for(at_least(command, "often", 1))
    stop(run)
    id = command.enqueue("waits")
    (command.folder / "go").touch()
    before = times(command, "often")
    assert command.call("run", "--drain").code == 0
    assert command.job(id)["state"] == "succeeded"
    assert times(command, "often") == before
    assert schedules(command)["often"]["supervisors"] == []


def test_a_wrong_expression_is_a_mistake_of_the_config(command: Command) -> None:
    use(command, nightly={"handler": "notes", "cron": "0 3 * * 8"})
    ended = command.call("run")
    assert ended.code == 2
    assert "supervisor.yaml:3: schedules.nightly.cron: expected a cron expression of five fields" in ended.err
    assert "its day of week is wrong, got 0 3 * * 8" in ended.err


def test_a_schedule_without_a_handler_is_warned_of_and_its_jobs_wait(command: Command) -> None:
    use(command, lost={"handler": "nobody", "every": "1s"})
    run = started(command)
    run.logged("schedules.lost.handler: no plugin has the handler 'nobody'")
    wait_for(at_least(command, "lost", 1))
    assert "no plugin has the handler 'nobody', so its jobs wait" in schedules(command)["lost"]["problems"]
    command.ask("jobs", "cancel", *[str(job["id"]) for job in command.jobs() if job["state"] != "cancelled"])


def test_a_payload_that_does_not_fit_is_warned_of_at_the_start_and_at_a_reload_as_a_check_finds_it(
    command: Command,
) -> None:
    use(command, right={"handler": "typed", "every": "1h", "payload": {"number": 1}})
    run = started(command)
    use(command, wrong={"handler": "typed", "every": "1h", "payload": {"number": "x"}})
    reload(run)
    expected = "schedule 'wrong': handler 'typed': payload.number: expected"
    found = run.logged(expected)
    assert run.log.count(expected) == 1 and "WARNING" in found
    stop(run)
    again = started(command)
    again.logged(expected)
    stop(again)
    checked = command.call("check")
    assert (checked.code, f"Error: {expected}" in checked.err) == (2, True)
