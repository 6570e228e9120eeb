"""Files and folders that the user may not use: every command reports them in one line, and none waits for them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from supervisor.stores.sqlite.store import SqliteStore
from tests.system.command import Command
from tests.system.disks import small_disk
from tests.system.privileges import require_root

# Permissions bind root too, once it has lost the capability to ignore them.
BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

pytestmark = pytest.mark.skipif(bool(BOUND) and shutil.which(BOUND[0]) is None, reason="root, and no setpriv here")

COMMANDS = [["status"], ["check"], ["enqueue", "mail"], ["run"]]


@pytest.fixture
def forbidden() -> Iterator[list[Path]]:
    """Paths without permissions for this user, which are restored afterwards."""
    paths: list[Path] = []
    yield paths
    for path in paths:
        with suppress(FileNotFoundError):
            path.chmod(0o700)


def refused(command: Command, arguments: list[str], expected: str) -> None:
    ended = command.call(*arguments, under=BOUND, timeout=9.0)
    assert (ended.code, "Traceback" in ended.err) == (2, False), ended.err
    assert len([line for line in ended.err.splitlines() if expected in line]) == 1, ended.err


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_refuses_a_store_that_this_user_may_not_open(
    command: Command, forbidden: list[Path], arguments: list[str]
) -> None:
    command.enqueue("mail")
    store = command.folder / "jobs.db"
    store.chmod(0)
    forbidden.append(store)
    refused(command, arguments, f"{store}: Permission denied; expected one that this user may read and write")


NOBODY = 65534


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_the_owner_of_a_store_of_another_user_is_named_with_the_chown_to_run(
    command: Command, arguments: list[str]
) -> None:
    require_root("a file of another user")
    command.write(config="store: {url: 'sqlite:///jobs.db', allow_writable_by_others: true}\n")
    command.enqueue("mail")
    store = command.folder / "jobs.db"
    os.chown(store, NOBODY, -1)
    owner = pwd.getpwuid(NOBODY).pw_name
    belongs = f"it belongs to user {NOBODY} ({owner}), mode 0600, and this is user 0 (root)"
    refused(command, arguments, f"{belongs}; run as its owner or as root: chown root {store}")


def test_a_store_that_root_makes_belongs_to_the_owner_of_its_folder(command: Command) -> None:
    require_root("a folder of another user")
    os.chown(command.folder, NOBODY, NOBODY)
    command.enqueue("mail")
    status = (command.folder / "jobs.db").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (NOBODY, NOBODY, 0o600)
    assert {file.stat().st_uid for file in command.folder.glob("jobs.db*")} == {NOBODY}


@pytest.mark.parametrize("is_new", [False, True], ids=["old store", "new store"])
def test_a_disk_that_is_mounted_for_reading_only_is_named(command: Command, is_new: bool) -> None:
    require_root("a disk")
    with small_disk(command.folder / "disk", "1m") as disk:
        command.write(config="store: sqlite:///disk/jobs.db\n")
        if not is_new:
            command.enqueue("mail")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for arguments in COMMANDS:
            if not is_new or arguments != ["status"]:
                refused(command, arguments, "Read-only file system; mount it for writing")


@pytest.mark.parametrize("arguments", [["check"], ["run"]], ids=" ".join)
def test_a_store_that_this_user_may_only_read_is_refused(
    command: Command, forbidden: list[Path], arguments: list[str]
) -> None:
    command.enqueue("mail")
    store = command.folder / "jobs.db"
    store.chmod(0o400)
    forbidden.append(store)
    refused(command, arguments, f"{store}: Permission denied; expected one that this user may read and write")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_refuses_a_store_in_a_folder_that_this_user_may_not_enter(
    command: Command, forbidden: list[Path], arguments: list[str]
) -> None:
    folder = command.folder / "closed"
    folder.mkdir()
    command.write(config="store: sqlite:///closed/jobs.db\n")
    command.enqueue("mail")
    folder.chmod(0)
    forbidden.append(folder)
    refused(command, arguments, f"{folder}/jobs.db: Permission denied")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_refuses_a_store_in_a_folder_that_this_user_may_not_write_to(
    command: Command, forbidden: list[Path], arguments: list[str]
) -> None:
    command.write(config="store: sqlite:///closed/jobs.db\n")
    folder = command.folder / "closed"
    folder.mkdir()
    command.enqueue("mail")
    folder.chmod(0o500)
    forbidden.append(folder)
    refused(command, arguments, f"{folder}: Permission denied; expected one that this user may read and write")


def test_a_store_that_others_keep_open_is_used_without_permission_to_write_to_its_folder(
    command: Command, forbidden: list[Path]
) -> None:
    """Neither may the user lock the files of the fair write lock, nor remove them."""
    command.write(config="store: sqlite:///closed/jobs.db\n")
    folder = command.folder / "closed"
    folder.mkdir()
    with closing(SqliteStore(folder / "jobs.db", create=True)) as store:
        with store.transaction():
            pass
        for kind in ("queue", "write"):
            (folder / f"jobs.db-{kind}.lock").chmod(0)
        folder.chmod(0o500)
        forbidden.append(folder)
        ended = command.call("enqueue", "mail", under=BOUND)
    assert (ended.code, ended.out, ended.err) == (0, "1\n", "")


@pytest.mark.parametrize("arguments", [["check"], ["run"]], ids=" ".join)
def test_a_supervisor_that_may_not_join_the_store_reports_why(
    command: Command, forbidden: list[Path], arguments: list[str]
) -> None:
    command.enqueue("mail")
    notifier = command.folder / "jobs.db.notify"
    notifier.mkdir(mode=0)
    forbidden.append(notifier)
    refused(command, arguments, f"{notifier}: Permission denied; expected one that this user may read and write")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_refuses_a_current_folder_that_this_user_may_not_enter(
    command: Command, forbidden: list[Path], arguments: list[str]
) -> None:
    folder = command.folder / "closed"
    folder.mkdir()
    forbidden.append(folder)
    within = ["sh", "-c", 'cd closed && chmod 0 . && exec "$@"', "sh"]
    ended = subprocess.run(
        [*BOUND, *within, sys.executable, "-m", "supervisor", *arguments], cwd=command.folder, env=command.env,
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: supervisor.yaml: Permission denied; expected")


def test_a_sink_whose_file_this_user_may_not_write_is_named_by_check_and_by_run_with_the_chown(
    command: Command,
) -> None:
    require_root("a file of another user")
    plugin = "from supervisor import handler\n@handler(max_retries=0)\ndef bad(job): raise ValueError\n"
    command.write(
        config="workers: {count: 1}\ndlq: {sinks: [{type: file, path: dead.jsonl}]}\n", plugins={"p.py": plugin}
    )
    dead = command.folder / "dead.jsonl"
    dead.touch(0o600)
    os.chown(dead, NOBODY, -1)
    why = f"{dead}: Permission denied; expected one that this user may read and write: it belongs to user {NOBODY} "
    refused(command, ["check"], f"dlq.sinks[0]: sink 'file': {why}")
    command.enqueue("bad")
    line = command.run(under=BOUND).logged("dead letter not accepted by sink file")
    assert why in line and f"chown root {dead}" in line
    assert f"is a file of user {NOBODY}; expected a file of this user" in command.call("check").err, "without a mode"
