from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.cli.app import run_command_line
from supervisor.cli.context import CommandContext
from tests.unit.cli.conftest import Call, write


def test_check_of_a_correct_setup_ends_with_all_right(call: Call, scanned: None) -> None:
    write("plugins/mail.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    answer = call("check")
    assert answer.code == 0
    assert "mail.py: mail" in answer.out
    assert " by default: the C" in next(line for line in answer.lines if line.startswith("workers.count: "))
    assert "will be created" in answer.out
    assert answer.lines[-1] == "all right"
    assert not Path("jobs.db").exists()
    call("enqueue", "mail")
    assert "reachable" in call("check").out


def test_check_warns_of_settings_without_effect(call: Call, scanned: None) -> None:
    write("plugins/mail.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    write("supervisor.yaml", "workers: {max_memory: 1MB}\n")
    answer = call("check")
    assert (answer.code, answer.lines[-1]) == (0, "all right")
    assert "supervisor.yaml: workers.max_memory: 1MB is less than any worker has at its start" in answer.err


def test_check_names_all_mistakes_of_all_kinds_at_once(call: Call, scanned: None) -> None:
    write("plugins/bad.py", "\nimport no_such_module\n")
    write("plugins/mail.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    write(
        "supervisor.yaml",
        "workers: {cuont: 1}\nretry: {burst: 0}\nhandlers: {mial: {timeout: 1s}}\n"
        "store: sqlite:///gone/jobs.db\n"
        "dlq:\n  sinks:\n    - {type: fil, path: x}\n    - {type: file, pth: x}\n    - {type: file, name: f}\n",
    )
    answer = call("check")
    assert answer.code == 2
    for expected in (
        "supervisor.yaml:1: workers.cuont: unknown key, did you mean 'count'?",
        "supervisor.yaml:2: retry.burst: expected a whole number",
        "plugins/bad.py:2: ModuleNotFoundError: No module named 'no_such_module'",
        "supervisor.yaml: handlers.mial: no plugin has this handler, did you mean 'mail'?",
        "supervisor.yaml: dlq.sinks[0].type: no plugin has a sink 'fil', did you mean 'file'?",
        "supervisor.yaml: dlq.sinks[1]: sink 'file': missing a required argument: 'path'",
        "supervisor.yaml: dlq.sinks[2]: sink 'file': missing a required argument: 'path'",
        "gone is not a directory that can be written to",
        "8 mistakes",
    ):
        assert expected in answer.err


def test_check_finds_a_full_disk(call: Call, scanned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    write("plugins/mail.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    disk = SimpleNamespace(f_bfree=1, f_bavail=1, f_frsize=4096, f_files=100, f_ffree=5)
    monkeypatch.setattr("supervisor.cli.check.os", SimpleNamespace(**{**vars(os), "statvfs": lambda path: disk}))
    answer = call("check")
    assert (answer.code, answer.err.splitlines()) == (75, [
        f"Error: store: {Path.cwd()}: its disk is full", "no mistake, but the store is unavailable",
    ])  # fmt: skip
    disk.f_bfree = disk.f_bavail = 1000
    assert call("check").code == 0
    disk.f_ffree = 0
    assert call("check").code == 75


def test_check_finds_a_database_that_another_program_has_locked(
    call: Call, scanned: None, capfd: pytest.CaptureFixture[str]
) -> None:
    call("enqueue", "mail")
    with closing(sqlite3.connect("jobs.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        assert run_command_line(["check"], CommandContext(store_timeout=0.0)) == 75
    assert "jobs.db: database is locked" in capfd.readouterr().err
    assert call("check").code == 0


def test_check_compares_the_heartbeats_that_apply(call: Call, scanned: None) -> None:
    write(
        "plugins/mail.py",
        "from supervisor import handler\n\n"
        "@handler(heartbeat_timeout='600ms')\ndef mail(job): ...\n\n"
        "@handler(heartbeat_timeout='600ms')\ndef mended(job): ...\n",
    )
    write("supervisor.yaml", "handlers: {mended: {heartbeat: 100ms}}\n")
    answer = call("check")
    expected = "handler 'mail': heartbeat_timeout: expected at least twice its heartbeat, got 600ms"
    assert (answer.code, answer.err) == (
        2,
        f"Error: {Path.cwd()}/plugins/mail.py:3: {expected}\n1 mistake\n",
    )


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("gone/dead.jsonl", "/gone does not exist"),
        ("plugins", "/plugins is a folder, expected a file"),
        ("5", "path: expected the path of a file, got 5"),
        ("x" * 300, "File name too long"),
    ],
)
def test_check_finds_a_sink_that_run_would_refuse(call: Call, scanned: None, path: str, error: str) -> None:
    sinks = f"sinks: [{{type: file, path: dead.jsonl}}, {{type: file, name: f, path: {path}}}]"
    write("supervisor.yaml", f"dlq: {{{sinks}}}\n")
    answer = call("check")
    assert answer.code == 2
    assert "Error: supervisor.yaml: dlq.sinks[1]: sink 'file' can't be built: " in answer.err
    assert error in answer.err
    assert "1 mistake\n" in answer.err
    assert not Path("dead.jsonl").exists()
    write("supervisor.yaml", f"dlq: {{enabled: false, {sinks}}}\n")
    assert call("check").code == 0


SINK = """
import pathlib
from supervisor import hookimpl
class Sink:
    def __init__(self, host):
        {constructor}
    def publish(self, dead_letters): ...
    def close(self): pathlib.Path("closed").touch()
@hookimpl
def supervisor_sinks(): return {{"mail": Sink}}
"""


@pytest.mark.parametrize(
    ("constructor", "error"),
    [
        ("raise RuntimeError(f'no route to {host}')", "sink 'mail' can't be built: RuntimeError: no route to mailer"),
        (
            "import os; os.read(os.pipe()[0], 1)",
            "sink 'mail' of type 'mail' ({folder}/plugins/sinks.py:5): "
            "its constructor has not returned within 50ms (plugins.import_timeout)",
        ),
    ],
)
def test_check_finds_a_sink_of_a_plugin_that_can_not_be_built(
    call: Call, scanned: None, tmp_path: Path, constructor: str, error: str
) -> None:
    write("plugins/sinks.py", SINK.format(constructor=constructor))
    config = "plugins: {paths: [plugins], import_timeout: 50ms}\ndlq: {sinks: [{type: mail, host: mailer}]}\n"
    write("supervisor.yaml", config)
    answer = call("check")
    assert (answer.code, answer.err.splitlines()[-1]) == (2, "1 mistake")
    assert f"Error: supervisor.yaml: dlq.sinks[0]: {error.format(folder=tmp_path)}" in answer.err


def test_check_closes_the_sinks_that_it_has_built(call: Call, scanned: None) -> None:
    write("plugins/sinks.py", SINK.format(constructor="pass"))
    write("supervisor.yaml", "dlq: {sinks: [{type: mail, host: mailer}]}\n")
    assert call("check").code == 0
    assert Path("closed").exists()


def test_check_registers_as_a_supervisor_does_and_leaves_nothing_behind(call: Call, scanned: None) -> None:
    call("enqueue", "mail")
    before = sorted(Path().iterdir())
    assert call("check").code == 0
    assert sorted(Path().iterdir()) == before
    assert "supervisors: none" in call("status").out or "no supervisor is running" in call("status").out
    Path("jobs.db.notify").touch()
    answer = call("check")
    assert answer.code == 2
    assert "jobs.db.notify: expected a folder of this user's" in answer.err


@pytest.mark.parametrize(
    ("config", "is_known"),
    [
        ("sotre: sqlite:///other.db\n", False),
        ("store: {ulr: sqlite:///other.db}\n", False),
        ("store: 'sqlite:///${NO_SUCH_NAME}.db'\n", False),
        ("store: {url: '${NO_SUCH_NAME}'}\n", False),
        ("store: 5\n", False),
        ("retry: 5\n", True),
        ("store: {url: sqlite:///jobs.db, allow_writable_by_others: 5}\n", True),
    ],
)
def test_check_shows_no_default_store_in_place_of_one_that_it_could_not_read(
    call: Call, scanned: None, config: str, is_known: bool
) -> None:
    write("supervisor.yaml", config)
    answer = call("check")
    assert (answer.code, "store: sqlite:///jobs.db" in answer.out) == (2, is_known)
    assert "1 mistake\n" in answer.err


@pytest.mark.parametrize(
    ("config", "shown"),
    [("workers: {cuont: 1}\n", "workers.count"), ("plugins: {pahts: [a]}\nhandlers: {a: {timeout: 1s}}\n", "plugin:")],
)
def test_check_shows_no_default_in_place_of_a_misspelt_key(call: Call, scanned: None, config: str, shown: str) -> None:
    write("plugins/mail.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    write("supervisor.yaml", config)
    answer = call("check")
    assert (answer.code, shown in answer.out) == (2, False)
    assert "1 mistake\n" in answer.err


def test_check_warns_of_a_misspelt_queue(call: Call, scanned: None) -> None:
    write("supervisor.yaml", "workers: {queues: [defualt]}\n")
    answer = call("check")
    assert (answer.code, "no other key names queue 'defualt', did you mean 'default'?" in answer.err) == (0, True)


def test_check_of_a_file_that_is_not_yaml(call: Call, scanned: None) -> None:
    write("supervisor.yaml", "a: b: c\n")
    answer = call("check")
    assert answer.code == 2
    assert answer.err == (
        "Error: supervisor.yaml:1: not YAML: mapping values are not allowed in this context\n1 mistake\n"
    )


@pytest.mark.parametrize(
    ("name", "error"),
    [("folder", "folder: expected a file, not a folder"), ("x" * 300, "x: File name too long"), ("file/jobs.db", "file is not a directory")],
)  # fmt: skip
def test_check_finds_a_store_path_that_cannot_be_a_file(call: Call, scanned: None, name: str, error: str) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    write("supervisor.yaml", f"store: sqlite:///{name}\nplugins: []\n")
    answer = call("check")
    assert answer.code == 2
    assert error in answer.err
    assert answer.err.endswith("\n1 mistake\n")
