from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import events
from supervisor.cli.app import run_command_line
from supervisor.errors import ConfigError
from supervisor.workers.system import descriptors, linux
from tests.unit.cli.conftest import FakeSupervisor


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[FakeSupervisor]]:
    class Fake(FakeSupervisor):
        made: list[FakeSupervisor] = []  # noqa: RUF012

    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugins").mkdir()
    monkeypatch.setattr("supervisor.runtime.supervisor.Supervisor", Fake)
    yield Fake


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Level and format of each call that configures the log."""
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "supervisor.telemetry.configure", lambda level, form, fd=2, mask=None: calls.append((level, form))
    )
    return calls


@pytest.mark.parametrize("code", [0, 1, 3])
def test_run_exits_with_the_code_of_the_supervisor(fake: type[FakeSupervisor], code: int) -> None:
    fake.code = code
    assert run_command_line(["run"]) == code
    assert "drain" not in fake.made[0].options


def test_a_drain_prints_a_report_and_exits_with_its_code(
    fake: type[FakeSupervisor], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.code, fake.events = 4, (events.SupervisorStopped(4, {"ready": 3}),)
    assert run_command_line(["run", "--drain", "--horizon", "90s"]) == 4
    assert (fake.made[0].options["drain"], fake.made[0].options["horizon"]) == (True, 90.0)
    assert "left behind: 3 ready" in capsys.readouterr().out


def test_a_control_group_that_is_killed_as_a_whole_is_warned_of(
    fake: type[FakeSupervisor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linux, "oom_group", lambda: "/sys/fs/cgroup/memory.oom.group")
    assert run_command_line(["run"]) == 0
    assert "/sys/fs/cgroup/memory.oom.group is 1: if one worker runs out of memory" in caplog.text
    caplog.clear()
    monkeypatch.setattr(linux, "oom_group", lambda: None)
    assert run_command_line(["run"]) == 0
    assert "memory" not in caplog.text


def test_the_log_follows_a_reload_of_the_same_file(
    fake: type[FakeSupervisor], configured: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("one.yaml")
    file.write_text("log: {level: info}")
    fake.events = (events.ConfigReloaded(("log",), ()),)
    monkeypatch.setattr(
        fake, "__init__", _and_then(fake.__init__, lambda: file.write_text("log: {level: debug, format: json}"))
    )
    assert run_command_line(["run", "-c", "one.yaml"]) == 0
    assert configured == [("info", "text"), ("debug", "json")]


def test_a_reload_to_more_workers_than_there_are_descriptors_for_is_warned_of(
    fake: type[FakeSupervisor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "shortage", lambda workers, keys: "too few" if workers > 4 else None)
    file = Path("one.yaml")
    file.write_text("workers: {count: 4}")
    fake.events = (events.ConfigReloaded(("workers",), ()),)
    assert run_command_line(["run", "-c", "one.yaml"]) == 0
    assert "too few" not in caplog.text
    monkeypatch.setattr(fake, "__init__", _and_then(fake.__init__, lambda: file.write_text("workers: {count: 5}")))
    assert run_command_line(["run", "-c", "one.yaml"]) == 0
    assert "too few" in caplog.text


def test_a_config_that_the_supervisor_refuses_is_a_mistake(
    fake: type[FakeSupervisor], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: FakeSupervisor) -> int:
        raise ConfigError(["dlq.sinks[0].type: no plugin has a sink 'fil'", "and more"])

    monkeypatch.setattr(fake, "run", refuse)
    assert run_command_line(["run"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "Error: dlq.sinks[0].type: no plugin has a sink 'fil'",
        "Error: and more",
    ]


def _and_then(method: Any, act: Any) -> Any:
    def both(*arguments: Any, **options: Any) -> None:
        method(*arguments, **options)
        act()

    return both


@pytest.mark.parametrize("arguments", [["run"], ["run", "--drain"]], ids=" ".join)
def test_nothing_starts_in_a_folder_with_neither_a_config_nor_plugins_nor_a_store(
    fake: type[FakeSupervisor], arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plugins").rmdir()
    assert run_command_line(arguments) == 2
    error = capfd.readouterr().err
    assert f"{tmp_path} has no supervisor.yaml and no etc/supervisor.yaml; nor is there jobs.db or a folder" in error
    assert "plugins: nothing was started; name the config with -c FILE" in error
    assert fake.made == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "supervisor.yaml").touch()
    assert run_command_line(arguments) == 0
