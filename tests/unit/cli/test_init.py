"""A new project, and the shell's completion."""

from __future__ import annotations

import ast
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from supervisor.cli.init import FILES
from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.plugins.handlers_in_files import handlers_in
from tests.unit.cli.conftest import Call, write

# --- init


def test_init_writes_a_config_and_a_plugin_and_names_what_to_run_next(call: Call, tmp_path: Path) -> None:
    answer = call("init", "new/mail")
    assert answer.code == 0
    assert "    cd new/mail\n    supervisor call thumbnail" in answer.out
    for name, text in FILES.items():
        assert (tmp_path / "new/mail" / name).read_text() == text
    assert "cd" not in call("init").out


def test_the_config_of_init_has_the_defaults(call: Call) -> None:
    call("init")
    written, defaults = load(Path("supervisor.yaml"), {}), Settings()
    for section in ("store", "plugins", "workers", "retry"):
        assert getattr(written, section) == getattr(defaults, section)
    assert len(FILES["supervisor.yaml"].splitlines()) < 10


@pytest.mark.parametrize("there", ["supervisor.yaml", "etc/supervisor.yaml", "plugins/thumbnails.py"])
def test_init_overwrites_nothing(call: Call, tmp_path: Path, there: str) -> None:
    write(there, "mine")
    answer = call("init")
    assert (answer.code, answer.out) == (2, "")
    assert f"{there} exists already" in answer.err
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert (files, Path(there).read_text()) == ([there], "mine")


def test_init_follows_no_link_to_nowhere(call: Call, tmp_path: Path) -> None:
    Path("supervisor.yaml").symlink_to(tmp_path / "other.yaml")
    assert call("init").code == 2
    assert not (tmp_path / "other.yaml").exists()


def test_init_writes_files_that_root_may_run_whatever_the_umask(call: Call) -> None:
    before = os.umask(0)
    try:
        assert call("init", "new").code == 0
    finally:
        os.umask(before)
    assert not any(
        path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) for path in (Path("new"), *Path("new").rglob("*"))
    )


def test_init_names_a_folder_that_can_not_be_made(call: Call) -> None:
    write("file", "")
    answer = call("init", "file/new")
    assert (answer.code, answer.err) == (2, "Error: file: File exists\n")


def test_init_takes_no_config_and_warns_of_one_in_the_environment(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("-c", "supervisor.yaml", "init").code == 2
    monkeypatch.setenv("SUPERVISOR_CONFIG", "/other.yaml")
    assert "$SUPERVISOR_CONFIG is set, so commands use /other.yaml" in call("init").err


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_the_shell_reads(call: Call, shell: str) -> None:
    answer = call("completion", shell)
    assert answer.code == 0 and "_SUPERVISOR_COMPLETE" in answer.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=answer.out, text=True, check=True)


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    from supervisor.cli.app import run_command_line

    monkeypatch.setenv("_SUPERVISOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    capfd.readouterr()
    run_command_line()
    return [line.partition(",")[2] for line in capfd.readouterr().out.splitlines() if line]


def test_handlers_are_completed_without_an_import(
    call: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write("supervisor.yaml", "handlers: {mail: {timeout: 1m}}\nplugins: [plugins, jobs]")
    write("plugins/a.py", "from supervisor import handler\n@handler\ndef move(job): ...\nraise SystemExit('imported')")
    write("plugins/b.py", "this is no Python")
    write("jobs/__init__.py", "")
    write("jobs/deep/c.py", "import supervisor\n@supervisor.handler('merge', timeout='1s')\ndef other(job): ...")
    assert completed("supervisor enqueue m", monkeypatch, capfd) == ["mail", "merge", "move"]
    assert completed("supervisor call mo", monkeypatch, capfd) == ["move"]
    write("elsewhere/supervisor.yaml", "handlers: {mine: {}}")
    assert completed("supervisor call -c elsewhere/supervisor.yaml m", monkeypatch, capfd) == ["mine"]
    assert completed("supervisor call -c nowhere.yaml m", monkeypatch, capfd) == []


def test_handlers_are_found_in_the_text_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from supervisor import handler\n@handler\n@handler('b')\ndef a(job): ...\n@handler(timeout=1)\nasync def c(job): ...\n"
        "@other\n@handler(NAME)\ndef d(job): ...\ndef e(job): ...\n"
    )
    assert [name for name, _ in handlers_in(file)] == ["a", "b", "c", "d"]
    file.write_text("")
    assert list(handlers_in(file)) == list(handlers_in(tmp_path / "absent.py")) == []
    assert ast.parse(FILES["plugins/thumbnails.py"])
