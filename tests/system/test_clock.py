"""The wall clock is set while jobs run, wait and are retried."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.system.command import Command, wait_for

HOUR = 3600.0
END_OF_SUMMER_TIME = datetime(2026, 11, 1, 6, tzinfo=UTC)  # in New York
JOBS = {
    "jobs.py": """
        import os, time
        from supervisor import handler

        @handler
        def waits(job):
            open(f"begun-{job.id}", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)

        @handler
        def flaky(job):
            if job.attempt == 1:
                raise ValueError("not yet")

        @handler
        def noop(job):
            pass
    """
}
CONFIG = """
workers: {count: 2, heartbeat: 100ms, heartbeat_timeout: 10s, timeout: 1m}
lease: {ttl: 4s}
retry: {max_retries: 1, backoff: {base: 1500ms, jitter: none}}
"""
AHEAD = """
import time
real = time.time

def ahead():
    with open({path!r}) as file:
        return float(file.read())

time.time = lambda: real() + ahead()
"""


class Clock:
    """The wall clock of all processes of a command, which can be set."""

    def __init__(self, command: Command) -> None:
        folder = command.folder / "clock"
        folder.mkdir()
        self._path = folder / "ahead"
        self._ahead = 0.0
        self.set(0.0)
        (folder / "sitecustomize.py").write_text(AHEAD.format(path=str(self._path)))
        command.env["PYTHONPATH"] = f"{folder}{os.pathsep}{command.env['PYTHONPATH']}"

    def set(self, by: float) -> None:
        self._ahead += by
        new = self._path.with_suffix(".new")
        new.write_text(str(self._ahead))
        new.replace(self._path)

    def set_to(self, when: datetime) -> None:
        self.set(when.timestamp() - time.time() - self._ahead)


@pytest.fixture
def clock(command: Command) -> Clock:
    return Clock(command)


def enqueue(command: Command, *arguments: str) -> int:
    """Enqueue in another process, which has the clock."""
    return int(command.call("enqueue", *arguments).out)


def until_extended(command: Command, ids: list[int]) -> None:
    """Wait until the leases of these jobs have been extended, and once more since then."""
    for _ in range(2):
        before = {id: command.job(id)["lease"]["until"] for id in ids}

        def extended(before: dict[int, str] = before) -> None:
            assert all(command.job(id)["lease"]["until"] != before[id] for id in ids)

        wait_for(extended)


def seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()


def test_setting_the_clock_kills_no_worker_and_loses_no_lease(command: Command, clock: Clock) -> None:
    command.env["TZ"] = "America/New_York"
    clock.set_to(END_OF_SUMMER_TIME)
    clock.set(-1.0)
    command.write(config=CONFIG, plugins=JOBS)
    waits = [command.enqueue("waits"), command.enqueue("waits")]
    runs = command.run(), command.run()
    wait_for(lambda: all(Path(command.folder / f"begun-{id}").exists() for id in waits))
    for run in runs:
        run.logged("supervisor started")
    late = enqueue(command, "noop", "--delay", "30m")
    clock.set(HOUR)
    for run in runs:
        run.logged("the clock was set forward by 1h")
    command.enqueue("noop")  # notifies
    command.until(late, "succeeded")
    clock.set(-2 * HOUR)
    for run in runs:
        run.logged("the clock was set back by 2h")
    until_extended(command, waits)
    flaky = command.enqueue("flaky")
    job = command.until(flaky, "succeeded")
    assert seconds(job["errors"][0]["at"], job["finished_at"]) >= 1.5
    (command.folder / "go").touch()
    for id in waits:
        job = command.until(id, "succeeded")
        assert (job["attempt"], job["errors"]) == (1, [])
    for run in runs:
        run.signal(signal.SIGTERM)
    for run in runs:
        assert run.wait() == 0
        assert not any(text in run.log for text in ("crashed", "killed", "stale", "recovered", "stood still"))
