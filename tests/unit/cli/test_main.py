"""The entry point, before any command is imported."""

from __future__ import annotations

import sys

import pytest

from supervisor import __version__
from supervisor.cli import main, platform_problem
from supervisor.cli.app import run_command_line


def test_the_command_runs_on_linux_only() -> None:
    assert platform_problem("linux") is None
    for platform in ("darwin", "win32", "freebsd14"):
        assert platform_problem(platform) == f"supervisor runs on Linux only; this system is {platform}"


def test_on_another_system_the_command_exits_with_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr() == ("", "Error: supervisor runs on Linux only; this system is darwin\n")


def test_the_version_is_printed_wherever_the_option_stands(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["-c", "gone.yaml", "--version"]):
        assert run_command_line(arguments) == 0
        assert capsys.readouterr().out == f"supervisor {__version__}\n"
