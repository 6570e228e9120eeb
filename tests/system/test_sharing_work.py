"""Two supervisors share the work: none keeps jobs that another could run, none runs jobs that are not due, and their workers
never touch the database that the supervisors have open."""

from __future__ import annotations

import time
from collections import Counter

from tests.system.command import Command, wait_for
from tests.system.test_sharing import intact

PLUGIN = {
    "work.py": """
        import os
        from pathlib import Path
        from supervisor import Client, handler

        @handler
        def quick(job):
            return os.getppid()

        @handler(timeout="none")
        def long(job):
            Path("long").touch()
            while True:
                pass

        @handler
        def parent(job):
            "Return the files of the database that this worker has open, and enqueue a job."
            folder = "/proc/self/fd"
            names = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder) if os.path.exists(f"{folder}/{fd}")]
            with Client("sqlite:///jobs.db") as jobs:
                jobs.enqueue("quick")
            return [name for name in names if "/jobs.db" in name]
    """
}
CONFIG = "workers: {count: 1, heartbeat: 200ms}\nlease: {ttl: 1s}\n"


def test_jobs_behind_a_long_one_are_run_by_an_idle_supervisor(command: Command) -> None:
    command.write(config=CONFIG, plugins=PLUGIN)
    busy = command.run()
    for id in [command.enqueue("quick") for _ in range(10)]:
        command.until(id, "succeeded")
    command.enqueue_many([{"handler": "long"}] + [{"handler": "quick"}] * 20)
    wait_for((command.folder / "long").exists)
    wait_for(lambda: len(command.jobs("--state", "in_flight")) > 1)  # some are buffered behind it
    enqueued = time.monotonic()
    later = command.enqueue("quick", None, "--delay", "2500ms", "--priority", "9")
    idle = command.run()

    def all_quick_ones() -> None:
        assert {job["state"] for job in command.jobs("--handler", "quick") if job["id"] != later} == {"succeeded"}

    wait_for(all_quick_ones)
    assert command.job(later)["state"] == "scheduled" or time.monotonic() - enqueued > 2.5
    command.until(later, "succeeded")
    ran_by = Counter(job["result"] for job in command.jobs("--handler", "quick"))
    assert ran_by == {busy.forkserver(): 10, idle.forkserver(): 21}
    assert all(job["errors"] == [] for job in command.jobs())


def test_workers_have_no_database_of_the_supervisor_open_and_may_open_it_themselves(command: Command) -> None:
    command.write(config="workers: {count: 2, max_jobs: 5}\n", plugins=PLUGIN)
    command.enqueue_many([{"handler": "parent"}] * 40)
    runs = [command.run("--drain"), command.run("--drain")]
    assert [run.wait(60) for run in runs] == [0, 0]
    jobs = command.jobs()
    assert (len(jobs), {job["state"] for job in jobs}) == (80, {"succeeded"})
    opened = {name.partition("/jobs.db")[2] for job in jobs if job["handler"] == "parent" for name in job["result"]}
    assert all(name.startswith(".notify/") and name.endswith(".lock") for name in opened), opened
    assert intact(command.folder / "jobs.db")
