"""Mistakes on the command line, in the config and in the store."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.cli.app import run_command_line
from supervisor.cli.context import CommandContext, code_of
from supervisor.errors import (
    StoreBroken,
    StoreContended,
    StoreDamaged,
    StoreError,
    StoreMissing,
    StoreReplaced,
    StoreUnavailable,
    StoreUnsure,
)  # fmt: skip
from tests.unit.cli.conftest import Call, write


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["stauts"], "no command 'stauts', did you mean 'status'?"),
        (["jobs", "lst"], "no command 'lst', did you mean 'list'?"),
        (["dlq", "xyzzy"], "no command 'xyzzy'; expected one of list, show, redrive, purge"),
        (["status", "-c", "gone.yaml"], "gone.yaml: No such file"),
        (["-c", "gone.yaml", "status"], "gone.yaml: No such file"),
        (["jobs", "list", "--limit", str(2**63)], "is not in the range"),
        (["jobs", "show", str(2**63)], "is not in the range"),
        (["dlq", "redrive", str(2**63)], "is not in the range"),
        (["jobs", "list", "--queue", "\udcff"], "expected a name of 1 to 255 printable characters"),
        (["jobs", "list", "--handler", "\udcff"], "expected a name of 1 to 255 printable characters"),
        (["queues", "pause", ""], "expected a name of 1 to 255 printable characters"),
        (["run", "--horizon", "1h"], "--horizon goes with --drain"),
        (["run", "--drain", "--horizon", "1"], "expected a duration such as"),
        (["copy", "--from", ""], "store: expected a URL such as"),
        (["copy", "--from", "sqlite:///jobs\n.db"], "store: expected a URL such as"),
    ],
)
def test_mistakes_are_answered_in_one_line(call: Call, scanned: None, arguments: list[str], error: str) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert error in answer.err
    assert "Traceback" not in answer.err


def test_every_command_reports_every_mistake_of_a_config(call: Call) -> None:
    write("bad.yaml", "workers: {cuont: 1, timeout: 5}\nlogg: {}\n")
    for arguments in (["status"], ["run"], ["enqueue", "mail"], ["plugins"]):
        answer = call(*arguments, "-c", "bad.yaml")
        assert answer.code == 2
        assert {line.split(": ")[2] for line in answer.err.splitlines()} == {"workers.cuont", "workers.timeout", "logg"}


def test_a_config_named_after_the_command_overrides_one_named_before_it(call: Call) -> None:
    write("one.yaml", "store: sqlite:///one.db")
    write("two.yaml", "store: sqlite:///two.db")
    call("-c", "one.yaml", "enqueue", "mail")
    call("-c", "one.yaml", "enqueue", "mail", "-c", "two.yaml")
    assert Path("one.db").exists()
    assert Path("two.db").exists()


@pytest.mark.parametrize("arguments", [["jobs", "list"], ["dlq", "list"], ["queues", "list"]], ids=" ".join)
def test_a_config_may_be_named_anywhere_before_the_end(call: Call, arguments: list[str]) -> None:
    write("one.yaml", "store: sqlite:///one.db")
    call("-c", "one.yaml", "enqueue", "mail", "--queue", "mine")
    group, command = arguments
    config, other = ("-c", "one.yaml"), ("-c", "gone.yaml")
    for line in (
        (*config, group, command), (group, *config, command), (group, command, *config),
        (*other, group, *config, command), (group, *other, command, *config),
    ):  # fmt: skip
        assert call(*line).code == 0


@pytest.mark.parametrize(
    ("words", "completed"),
    [("supervisor st", "plain,status"), ("supervisor jobs re", "plain,retry"), ("supervisor -c x dlq drop", "plain,drop-sink"),
     ("supervisor jobs list --state can", "plain,cancelled"), ("supervisor enqueue --max", "plain,--max-retries"),
     ("supervisor nosuch x", "")],
)  # fmt: skip
def test_a_shell_completes_commands_options_and_states(
    call: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str, completed: str
) -> None:
    monkeypatch.setenv("_SUPERVISOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert run_command_line() == 0
    assert capfd.readouterr() == (f"{completed}\n", "")


def test_a_shell_gets_a_script_that_completes(
    call: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_SUPERVISOR_COMPLETE", "zsh_source")
    assert run_command_line() == 0
    assert capfd.readouterr().out.startswith("#compdef supervisor")


def test_commands_refuse_a_store_in_memory(call: Call) -> None:
    write("supervisor.yaml", "store: memory://")
    for arguments in (["enqueue", "mail"], ["status"]):
        assert "exists in one process only" in call(*arguments).err


def test_a_store_that_stays_unavailable_is_told_from_a_mistake_by_its_exit_code(
    call: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    call("enqueue", "mail")

    def unavailable(*arguments: Any, **options: Any) -> Any:
        raise StoreUnavailable("jobs.db: locked")

    monkeypatch.setattr("supervisor.cli.store_access.open_store", unavailable)
    assert run_command_line(["status"], CommandContext(store_timeout=0.0)) == 75
    assert capfd.readouterr() == ("", "Error: jobs.db: locked\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable, 75), (StoreContended, 75), (StoreDamaged, 75), (StoreReplaced, 75), (StoreUnsure, 1), (StoreBroken, 2),
        (StoreMissing, 2), (StoreError, 2),
    ],
)  # fmt: skip
def test_each_error_of_a_store_has_its_exit_code(error: type[StoreError], code: int) -> None:
    assert code_of(error("why")) == code


@pytest.mark.parametrize(
    "arguments", [["status"], ["enqueue", "mail"], ["run"], ["check"], ["jobs", "list"]], ids=" ".join
)
def test_a_damaged_database_is_no_mistake(call: Call, scanned: None, arguments: list[str]) -> None:
    call("enqueue", "mail")
    with Path("jobs.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"U" * 60_000)
    answer = call(*arguments)
    assert answer.code == 75
    assert "jobs.db: database disk image is malformed: restore it from a backup" in answer.err


def test_a_database_that_cannot_be_made_on_a_full_disk_is_no_mistake(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    write("supervisor.yaml", "store: sqlite:///other.db")
    with_full_disk = SimpleNamespace(**{**vars(os), "open": full})
    monkeypatch.setattr("supervisor.stores.sqlite.database_file.os", with_full_disk)
    context = CommandContext(store_timeout=0.0)
    assert run_command_line(["enqueue", "mail"], context) == 75


def test_a_database_of_something_else_is_refused(call: Call) -> None:
    write("jobs.db", "this is no database, not at all, and it is long enough to look like one" * 20)
    answer = call("status")
    assert answer.code == 2
    assert "jobs.db" in answer.err


@pytest.mark.parametrize("arguments", [["status"], ["enqueue", "mail"], ["jobs", "list"]], ids=" ".join)
def test_every_command_reports_a_store_path_that_cannot_be_a_file(call: Call, arguments: list[str]) -> None:
    Path("jobs.db").mkdir()
    answer = call(*arguments)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "jobs.db: expected a file, not a folder" in answer.err
    write("supervisor.yaml", f"store: sqlite:///{'x' * 300}\n")
    answer = call(*arguments)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "x: File name too long" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["check"],
        ["enqueue", "mail"],
        ["run"],
        ["run", "-c", "x.yaml"],
        ["copy", "--from", "sqlite:///x.db"],
    ],
    ids=" ".join,
)
def test_every_command_reports_a_current_folder_that_is_gone(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir("gone")
    (tmp_path / "gone").rmdir()
    answer = call(*arguments)
    assert answer.code == 2
    assert answer.err.startswith("Error: current folder: No such file or directory; expected one that exists")
    assert (
        call("-c", tmp_path / "x.yaml", "enqueue", "mail").err
        == f"Error: {tmp_path}/x.yaml: No such file or directory\n"
    )
    write(str(tmp_path / "x.yaml"), "store: sqlite:///jobs.db\n")
    assert call("-c", tmp_path / "x.yaml", "enqueue", "mail").out == "1\n"


def test_a_command_may_choose_its_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*arguments: Any, **options: Any) -> Any:
        raise SystemExit(7)

    call("enqueue", "mail")
    monkeypatch.setattr("supervisor.cli.jobs.print_page", leave)
    with pytest.raises(SystemExit, match="7"):
        call("jobs", "list")
