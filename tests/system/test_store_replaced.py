"""The SQLite file is deleted, moved or replaced while a supervisor or a client has it open."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.command import Command, wait_for

PLUGIN = {
    "jobs.py": """
        import time
        from pathlib import Path
        from supervisor import handler

        @handler
        def name(job):
            return "one"

        @handler
        def waits(job):
            Path("begun").touch()
            while not Path("go").exists():
                time.sleep(0.01)
    """
}
GONE = "the file was deleted, moved or replaced while it was open"


def delete_all(folder: Path) -> None:
    for path in folder.glob("jobs.db*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def delete_file(folder: Path) -> None:
    (folder / "jobs.db").unlink()


def move_folder_entry(folder: Path) -> None:
    (folder / "jobs.db").rename(folder / "old.db")


def replace_by_backup(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "jobs.db")) as here, closing(sqlite3.connect(folder / "backup.db")) as backup:
        here.backup(backup)
    (folder / "backup.db").rename(folder / "jobs.db")


def serving(command: Command) -> None:
    command.write(config="workers: {count: 1, heartbeat: 200ms}\n", plugins=PLUGIN)


@pytest.mark.parametrize("change", [delete_all, delete_file, move_folder_entry, replace_by_backup])
def test_an_idle_supervisor_notices_within_seconds_and_exits_with_1(
    command: Command, change: Callable[[Path], None]
) -> None:
    serving(command)
    id = command.enqueue("name")
    run = command.run()
    command.until(id, "succeeded")
    change(command.folder)
    line = run.logged(GONE, timeout=5)
    assert "ERROR" in line and str(command.folder / "jobs.db") in line and "start the supervisor again" in line
    assert run.wait() == 1
    assert "Traceback" not in run.log
    delete_all(command.folder)


def test_a_job_that_runs_ends_before_the_supervisor_does_and_the_next_one_serves_the_new_file(command: Command) -> None:
    serving(command)
    command.enqueue("waits")
    run = command.run()
    wait_for((command.folder / "begun").exists)
    delete_all(command.folder)
    run.logged("store lost: ")
    id = command.enqueue("name")
    (command.folder / "go").touch()
    assert run.wait() == 1
    command.run().logged("supervisor started")
    assert command.until(id, "succeeded")["result"] == "one"


def test_after_hup_a_store_behind_a_link_that_leads_elsewhere_is_reported_and_plugins_are_followed(
    command: Command,
) -> None:
    config = "workers: {count: 1}\nstore: sqlite:///jobs.db\n"
    for release, result in (("1", "one"), ("2", "two")):
        command.write(plugins={})
        folder = command.folder / "releases" / release
        (folder / "plugins").mkdir(parents=True)
        (folder / "supervisor.yaml").write_text(config)
        plugin = f"from supervisor import handler\n@handler\ndef name(job):\n    return {result!r}\n"
        (folder / "plugins" / "jobs.py").write_text(plugin)
    (command.folder / "current").symlink_to("releases/1")
    command.config = command.folder / "current" / "supervisor.yaml"
    run = command.run()
    run.logged("supervisor started")
    (command.folder / "next").symlink_to("releases/2")
    (command.folder / "next").rename(command.folder / "current")
    run.signal(signal.SIGHUP)
    line = run.logged("config reloaded")
    first, second = (str(command.folder / "releases" / release / "jobs.db") for release in "12")
    assert f"a restart is needed for: store (its path leads to {second} now, and led to {first})" in line
    command.config = command.folder / "releases" / "1" / "supervisor.yaml"
    assert command.until(command.enqueue("name"), "succeeded")["result"] == "two"


def overwrite_beginning(folder: Path) -> None:
    with (folder / "jobs.db").open("r+b") as file:
        file.write(b"\xa5" * 3 * 4096)


def truncate(folder: Path) -> None:
    (folder / "jobs.db").write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "why", "said"),
    [
        (overwrite_beginning, "file is not a database: it was overwritten while it was open", "file is not a database"),
        (truncate, "the file was truncated while it was open", "the file is empty, but its log is there"),
    ],
)
def test_a_file_that_is_overwritten_or_truncated_is_lost_and_commands_say_so_at_once(
    command: Command, change: Callable[[Path], None], why: str, said: str
) -> None:
    serving(command)
    command.enqueue("waits")
    run = command.run()
    wait_for((command.folder / "begun").exists)
    change(command.folder)
    for arguments in (("status",), ("enqueue", "--force", "name"), ("check",)):
        began = time.monotonic()
        ended = command.call(*arguments)
        assert (ended.code != 0, said in ended.err, time.monotonic() - began < 8.0) == (True, True, True), ended
    line = run.logged(f"store lost: {command.folder}/jobs.db: {why}")
    assert "ERROR" in line and "restore it from a backup" in line
    (command.folder / "go").touch()
    assert run.wait() == 1
    assert "Traceback" not in run.log
    delete_all(command.folder)
